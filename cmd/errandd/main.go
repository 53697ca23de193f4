// Command errandd is the control plane of Errand.
package main

import (
	"os"

	"github.com/errandhq/errand/internal/app"
)

func main() { os.Exit(app.Main(os.Args[1:], os.Stdout, os.Stderr)) }
