// Command ensure-postgresql makes sure that the tests find a PostgreSQL of a
// supported version. When there is none it installs the distribution's package,
// where apt-get exists and may be run without a password; anywhere else it says
// what to install and fails. It starts no server and configures none.
package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"strings"

	"github.com/errandhq/errand/internal/pgtest"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(ctx context.Context) error {
	_, err := pgtest.Locate(ctx)
	if !errors.Is(err, pgtest.ErrNotInstalled) {
		return err
	}
	apt, ok := aptGet(ctx)
	if !ok {
		return err
	}
	fmt.Println("PostgreSQL for the tests is missing: installing the distribution's package.")
	for _, args := range [][]string{{"update"}, {"install", "--yes", "--no-install-recommends", "postgresql"}} {
		if err := runLoud(ctx, append(apt, args...)); err != nil {
			return err
		}
	}
	in, err := pgtest.Locate(ctx)
	if err != nil {
		return fmt.Errorf("after installing the distribution's postgresql: %w; newer versions: https://www.postgresql.org/download/", err)
	}
	fmt.Printf("installed PostgreSQL %d in %s\n", in.Major, in.BinDir)

	return nil
}

// aptGet returns the start of an apt-get command line that will ask nothing, or
// false when this user has none.
func aptGet(ctx context.Context) ([]string, bool) {
	if _, err := exec.LookPath("apt-get"); err != nil {
		return nil, false
	}
	command := []string{"env", "DEBIAN_FRONTEND=noninteractive", "apt-get"}
	if os.Geteuid() == 0 {
		return command, true
	}
	if exec.CommandContext(ctx, "sudo", "-n", "true").Run() != nil {
		return nil, false
	}

	return append([]string{"sudo", "-n"}, command...), true
}

func runLoud(ctx context.Context, argv []string) error {
	fmt.Println("+ " + strings.Join(argv, " "))
	cmd := exec.CommandContext(ctx, argv[0], argv[1:]...)
	cmd.Stdout, cmd.Stderr = os.Stdout, os.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("running %s: %w", strings.Join(argv, " "), err)
	}

	return nil
}
