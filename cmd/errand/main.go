// Command errand is the command line of Errand, for people and programs, and the worker that executes steps on
// a machine.
package main

import (
	"os"
	_ "time/tzdata" // schedules read zones, also on hosts that have no zone database

	"github.com/errandhq/errand/internal/machineapp"
)

func main() { os.Exit(machineapp.Main(os.Args[1:])) }
