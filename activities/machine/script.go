package machine

import (
	_ "embed"
	"encoding/base64"
	"fmt"

	"github.com/errandhq/errand/automation"
)

// nodePrelude is a module that node loads before a script: it gives an ES module what scripts expect of the
// other kind (require, __dirname, …), without a line of its own in the script's source.
//
//go:embed node_prelude.js
var nodePrelude []byte

var nodePreludeURL = "data:text/javascript;base64," + base64.StdEncoding.EncodeToString(nodePrelude)

// scriptName stands where a program has its own name: $0 of a shell script, process.argv[1] of node.
const scriptName = "script"

// interpreter returns the interpreter of a script with its arguments.
//
// The source is an argument, not a file: then imports resolve from the working directory in node and python,
// tracebacks count the source's own lines, standard input stays free, and nothing is left on the disk when
// the machine crashes. It fits: a source has at most 96 KiB, an argument may have 128.
func interpreter(step automation.ConcreteStep) (program string, args []string, err *automation.StepError) {
	source := step.Source
	switch step.Runtime {
	case automation.RuntimeShell:
		// "--" for a source that starts with a dash.
		program, args = "sh", []string{"-c", "--", source, scriptName}
	case automation.RuntimePython:
		program, args = "python3", []string{"-c", source}
	case automation.RuntimeNode:
		if source == "" {
			source = "\n" // node takes an empty source for a missing one
		}
		program, args = "node", []string{"--import=" + nodePreludeURL, "--input-type=module", "--eval=" + source, "--", scriptName}
	default:
		return "", nil, &automation.StepError{
			Code:    automation.StepErrInterpreterNotFound,
			Message: fmt.Sprintf("this worker does not know the runtime %q; a newer one may", step.Runtime),
		}
	}
	return program, append(args, step.Args...), nil
}
