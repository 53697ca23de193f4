//go:build unix

// Package acceptance_test shows the product as a person types it: scripts (testdata/<topic>/*.txtar) that start
// the built errandd, give commands to errand and look at what happened, with real programs, a real Temporal and,
// where it matters, a real PostgreSQL. Each script has a data directory, a home and a port of its own. The commands
// that scripts have beside those of testscript are documented in commands_test.go.
package acceptance_test

import (
	"flag"
	"os"
	"path/filepath"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/pgtest"
)

// parallel is how many scripts run at a time where -parallel does not say: they wait most of the time.
const parallel = "4"

func TestMain(m *testing.M) {
	if dir := os.Getenv(toolsVariable); dir != "" {
		serveTools(dir)
		return
	}
	flag.Parse()
	given := false
	flag.Visit(func(f *flag.Flag) { given = given || f.Name == "test.parallel" })
	if !given {
		if err := flag.Set("test.parallel", parallel); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}

func TestScripts(t *testing.T) {
	t.Parallel()
	topics, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, topic := range topics {
		t.Run(topic.Name(), func(t *testing.T) {
			t.Parallel()
			testscript.Run(t, testscript.Params{
				Dir:                filepath.Join("testdata", topic.Name()),
				Setup:              func(env *testscript.Env) error { return setup(env, topic.Name()) },
				Cmds:               commands,
				RequireUniqueNames: true,
			})
		})
	}
}

// serverKey is where a script's installation is among its values.
type serverKey struct{}

// setup prepares the installation of a script; the script starts it. Scripts of the topic postgres have an empty
// database for it.
func setup(env *testscript.Env, topic string) error {
	tb, ok := env.T().(testing.TB)
	if !ok {
		panic("testscript hides the test that it runs in")
	}
	examples, err := filepath.Abs(filepath.Join("..", "examples"))
	if err != nil {
		return err
	}
	options := apptest.Options{Dir: filepath.Join(env.WorkDir, ".installation")}
	if topic == "postgres" {
		options.DatabaseURL = pgtest.Database(tb)
	}
	s := apptest.New(tb, options)
	env.Defer(s.Close) // before the script's directory is removed
	env.Values[serverKey{}] = s
	env.Vars = append(env.Vars, s.Environment()...)
	env.Setenv("URL", s.URL())
	env.Setenv("EXAMPLES", examples)
	env.Setenv("ERRANDD_LOG", s.LogPath())
	env.Setenv("LOCAL_WORKER_LOG", s.LocalWorkerLogPath())
	return nil
}
