// Command errand is the command line and the machine worker of Errand.
package main

import (
	"os"

	"github.com/errandhq/errand/internal/machineapp"
)

func main() { os.Exit(machineapp.Main(os.Args[1:])) }
