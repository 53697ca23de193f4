package machine

import (
	"errors"
	"maps"
	"os/user"
	"slices"
	"strings"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/process"
)

// The variables of ours that a program sees, and no others. Both keys are `<run id>:<step id>`, the second for
// programs that were written for this product's predecessor.
const (
	KeyVariable       = "ERRAND_IDEMPOTENCY_KEY"
	legacyKeyVariable = "AMALGM_AUTOMATION_IDEMPOTENCY_KEY"
	runVariable       = "ERRAND_RUN_ID"
	stepVariable      = "ERRAND_STEP_ID"
)

// environment returns what a step's program sees: what the worker may pass on, then the step's own variables,
// which may replace those, then ours, which nothing replaces.
func (r *Runner) environment(step automation.ConcreteStep, cwd string) []string {
	environ := process.WithVariables(r.environ, "PWD="+cwd)
	if !slices.ContainsFunc(environ, func(entry string) bool { return strings.HasPrefix(entry, "HOME=") }) {
		if home, err := r.home(); err == nil {
			environ = append(environ, "HOME="+home)
		}
	}
	vars := make([]string, 0, len(step.Env)+4)
	for _, name := range slices.Sorted(maps.Keys(step.Env)) {
		vars = append(vars, name+"="+step.Env[name])
	}
	key := step.IdempotencyKey()
	vars = append(vars, KeyVariable+"="+key, legacyKeyVariable+"="+key, runVariable+"="+step.RunID, stepVariable+"="+step.StepID)
	return process.WithVariables(environ, vars...)
}

// HomeDirectory returns the home directory of the user that this process runs as. The user database comes first:
// HOME of environ may be what sudo, a service manager or a container left there.
func HomeDirectory(environ []string) (string, error) {
	if u, err := user.Current(); err == nil && u.HomeDir != "" {
		return u.HomeDir, nil
	}
	for _, entry := range environ {
		if home, ok := strings.CutPrefix(entry, "HOME="); ok && home != "" {
			return home, nil
		}
	}
	return "", errors.New("the machine's user has no home directory, neither in the user database nor in HOME")
}
