// Command errandd is the control plane of Errand: API, admission, ledger and workflows. Started without any
// setting it needs no other service and serves the machine that it runs on.
package main

import (
	"os"
	_ "time/tzdata" // schedules read zones, also on hosts that have no zone database

	"github.com/errandhq/errand/internal/app"
)

func main() { os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr)) }
