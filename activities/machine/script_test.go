package machine_test

import (
	"encoding/json"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
)

func TestScriptsComplete(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		runtime automation.Runtime
		source  string
		args    []string
		stdout  string
	}{
		{"shell", automation.RuntimeShell, "x=1\ny=2\necho $((x+y)) | tr 3 4", nil, "4\n"},
		{"shell arguments", automation.RuntimeShell, `printf '[%s]' "$#" "$@"`, []string{"a b", "-c", "--", "*"}, "[4][a b][-c][--][*]"},
		{"shell with a #! line", automation.RuntimeShell, "#!/bin/sh -e\necho ok", nil, "ok\n"},
		{"shell source that starts with a dash", automation.RuntimeShell, "-x 2>/dev/null || echo ok", nil, "ok\n"},
		{"shell, empty", automation.RuntimeShell, "", nil, ""},
		{
			"python", automation.RuntimePython, "import json\n\ndef f(n):\n    return {'é': n}\n\nprint(json.dumps(f(1), ensure_ascii=False))",
			nil, "{\"é\": 1}\n",
		},
		{"python arguments", automation.RuntimePython, "import sys\nprint(sys.argv[1:])", []string{"a b", "-c", "--help"}, "['a b', '-c', '--help']\n"},
		{"python, main guard", automation.RuntimePython, "if __name__ == '__main__':\n    print('main')", nil, "main\n"},
		{"python source that starts with a dash", automation.RuntimePython, "-1\nprint('ok')", nil, "ok\n"},
		{"python, empty", automation.RuntimePython, "", nil, ""},
		{"node arguments", automation.RuntimeNode, `console.log(JSON.stringify(process.argv.slice(2)))`, []string{"a b", "-e", "--help"}, `["a b","-e","--help"]` + "\n"},
		{
			"node with import, require and top-level await", automation.RuntimeNode,
			"import { basename } from 'node:path';\nconst os = require('node:os');\nconst x = await new Promise((done) => setTimeout(done, 1, 'é'));\nconsole.log(basename('/a/b'), typeof os.EOL, x);",
			nil, "b string é\n",
		},
		{"node, require alone", automation.RuntimeNode, "const fs = require('fs');\nconsole.log(typeof fs.readFileSync)", nil, "function\n"},
		{
			"node that makes its own require", automation.RuntimeNode,
			"import { createRequire } from 'node:module';\nconst require = createRequire(import.meta.url);\nconsole.log(typeof require('fs').readFileSync)",
			nil, "function\n",
		},
		{"node, main guard", automation.RuntimeNode, "if (require.main === module) console.log('main')", nil, "main\n"},
		{"node source that starts with a dash", automation.RuntimeNode, "-1;\nconsole.log('ok')", nil, "ok\n"},
		{"node with a #! line", automation.RuntimeNode, "#!/usr/bin/env node\nconsole.log('ok')", nil, "ok\n"},
		{"node, empty", automation.RuntimeNode, "", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			p := completed(t, script(t, tt.runtime, tt.source, tt.args...))
			if p.Stdout != tt.stdout || p.Stderr != "" {
				t.Errorf("stdout %q, stderr %q, want %q", p.Stdout, p.Stderr, tt.stdout)
			}
		})
	}
}

func TestImportsResolveFromTheWorkingDirectory(t *testing.T) {
	t.Parallel()
	files := map[string]string{
		"local.py":                         "name = 'local py'",
		"package/__init__.py":              "name = 'package py'",
		"local.mjs":                        "export const name = 'local mjs';",
		"local.cjs":                        "module.exports = 'local cjs';",
		"data.json":                        `{"name":"data json"}`,
		"node_modules/esm/package.json":    `{"name":"esm","type":"module","exports":"./index.js"}`,
		"node_modules/esm/index.js":        "export default 'esm package';",
		"node_modules/common/package.json": `{"name":"common","main":"index.js"}`,
		"node_modules/common/index.js":     "module.exports = 'common package';",
		"child.cjs":                        "process.send('child ' + process.argv[2] + ' ' + process.execArgv.length)",
		"thread.mjs":                       "import { parentPort } from 'node:worker_threads';\nparentPort.postMessage('thread');",
	}
	tests := []struct {
		name    string
		runtime automation.Runtime
		source  string
		stdout  []string
	}{
		{"python", automation.RuntimePython, "import local, package\nprint(local.name)\nprint(package.name)", []string{"local py", "package py"}},
		{
			"node import", automation.RuntimeNode,
			"import { name } from './local.mjs';\nimport esm from 'esm';\nimport common from 'common';\nfor (const x of [name, esm, common, (await import('./local.mjs')).name]) console.log(x)",
			[]string{"local mjs", "esm package", "common package", "local mjs"},
		},
		{
			"node require", automation.RuntimeNode,
			"for (const x of [require('./local.cjs'), require('common'), require('./data.json').name, require.resolve('./local.cjs') === __dirname + '/local.cjs']) console.log(x)",
			[]string{"local cjs", "common package", "data json", "true"},
		},
		{
			"node fork", automation.RuntimeNode,
			"import { fork } from 'node:child_process';\nfork('./child.cjs', ['x']).on('message', (m) => console.log(m))",
			[]string{"child x 0"},
		},
		{
			"node worker thread", automation.RuntimeNode,
			"import { Worker } from 'node:worker_threads';\nnew Worker('./thread.mjs').on('message', (m) => console.log(m))",
			[]string{"thread"},
		},
		{"shell", automation.RuntimeShell, ". ./data.sh\necho $name", []string{"data sh"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			step := script(t, tt.runtime, tt.source)
			for name, content := range files {
				writeFile(t, filepath.Join(step.Cwd, name), content, 0o644)
			}
			writeFile(t, filepath.Join(step.Cwd, "data.sh"), "name='data sh'", 0o644)
			p := completed(t, step)
			if diff := cmp.Diff(tt.stdout, strings.Split(strings.TrimSuffix(p.Stdout, "\n"), "\n")); diff != "" {
				t.Errorf("stdout (-want +got):\n%s\nstderr %s", diff, p.Stderr)
			}
		})
	}
}

func TestTracebacksCountTheSourcesOwnLines(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name    string
		runtime automation.Runtime
		source  string
		stderr  []string
	}{
		{"python", automation.RuntimePython, "def f():\n    raise ValueError('boom')\n\n\nf()\n", []string{"line 2, in f", "line 5, in <module>", "ValueError: boom"}},
		{"python syntax", automation.RuntimePython, "x = 1\n\ny = = 2\n", []string{"line 3", "SyntaxError"}},
		{"node", automation.RuntimeNode, "import 'node:fs';\nfunction f() {\n  throw new Error('boom');\n}\nawait 0;\nf();\n", []string{":3:9)", ":6:1", "Error: boom"}},
		{"node first line", automation.RuntimeNode, "throw new Error('boom')", []string{":1:7", "Error: boom"}},
		{"node syntax", automation.RuntimeNode, "let x = 1;\n\nlet = = 2;\n", []string{":3", "SyntaxError"}},
		{"shell", automation.RuntimeShell, "set -e\n\nnosuchcommand\n", []string{"script: ", "3: ", "nosuchcommand"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := runner(t, nil).Start(script(t, tt.runtime, tt.source)).Wait()
			failedWith(t, r, automation.StepErrNonzeroExit, string(tt.runtime))
			stderr := processResult(t, r).Stderr
			for _, text := range tt.stderr {
				if !strings.Contains(stderr, text) {
					t.Errorf("stderr does not have %q:\n%s", text, stderr)
				}
			}
		})
	}
}

func TestLargestSource(t *testing.T) {
	t.Parallel()
	tests := map[automation.Runtime]struct{ comment, code string }{
		automation.RuntimeShell:  {"#", "echo ok"},
		automation.RuntimePython: {"#", "print('ok')"},
		automation.RuntimeNode:   {"//", "console.log('ok')"},
	}
	for runtime, tt := range tests {
		t.Run(string(runtime), func(t *testing.T) {
			t.Parallel()
			head := tt.comment + " é "
			fill := automation.MaxSourceBytes - len(head) - len("\n"+tt.code)
			source := head + strings.Repeat("x", fill) + "\n" + tt.code
			if len(source) != automation.MaxSourceBytes {
				t.Fatalf("the source has %d bytes", len(source))
			}
			if p := completed(t, script(t, runtime, source)); p.Stdout != "ok\n" {
				t.Errorf("stdout %q", p.Stdout)
			}
		})
	}
}

// What a script prints as JSON must come through all layers as it was.
func TestScriptOutputIsVerbatim(t *testing.T) {
	t.Parallel()
	want := map[string]any{"html": "<b>&</b>", "quote": `"\`, "text": "é€😀\u2028", "n": 1.5}
	encoded, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	step := script(t, automation.RuntimeNode, "console.log(process.argv[2])", string(encoded))
	if p := completed(t, step); p.Stdout != string(encoded)+"\n" {
		t.Errorf("stdout %q, want %q", p.Stdout, encoded)
	}
}
