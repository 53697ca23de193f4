package cli

import (
	"fmt"
	"slices"
	"strings"

	"github.com/errandhq/errand/internal/catalog"
)

// completion prints the script that makes a shell complete commands, options and files. It is made of the catalog
// and asks nobody when it is used: neither a service nor this program.
func (p *Program) completion(shell string) int {
	scripts := map[string]func() string{"bash": bashCompletion, "zsh": zshCompletion, "fish": fishCompletion}
	script, found := scripts[shell]
	if !found {
		return p.fail(usageError{fmt.Sprintf("there is no completion for %q; use bash, zsh or fish", shell)})
	}
	if _, err := fmt.Fprint(p.Stdout, script()); err != nil {
		return p.fail(fmt.Errorf("writing the script: %w", err))
	}
	return exitOK
}

// words are what a shell completes at one place, with what each means.
type word struct{ name, meaning string }

func commandWords() []word {
	var words []word
	for _, command := range catalog.Commands() {
		words = append(words, word{command.Name, command.Summary})
	}
	for _, w := range otherCommands() {
		if !strings.Contains(w.name, " ") { // of two words, the first is there already
			words = append(words, w)
		}
	}
	return words
}

// optionWords are the options of one command of the command line.
func optionWords(name string) []word {
	command, found := catalog.Find(name)
	switch {
	case found:
		words := []word{
			{"--input", "the input, a JSON object"},
			{"--file", "a file that holds the input"},
			{"--stdin", "read the input from standard input"},
			{"--pretty", "indent the answer"},
			{"--text", "print plain text"},
			{"--help", "print the contract"},
		}
		if command.Bundle != "" {
			words = append(words, word{"--dry-run", "only say what would change"})
		}
		if name == "machine" {
			words = append(words, enrollOptions()...)
		}
		return words
	case name == "worker":
		return []word{
			{"--server", "address of the control plane"},
			{"--code-file", "file that holds an enrolment code"},
			{"--name", "name of this machine"},
			{"--concurrency", "steps at the same time"},
			{"--drain", "how long steps may go on"},
			{"--exit-when-orphaned", "leave without a control plane"},
			{"--log-format", "auto, text or json"},
			{"--log-level", "debug, info, warn or error"},
			{"--help", "print how it is used"},
		}
	case name == "mcp":
		return []word{
			{"--log-format", "auto, text or json"}, {"--log-level", "debug, info, warn or error"}, {"--help", "print how it is used"},
		}
	}
	return []word{{"--help", "print how it is used"}}
}

// enrollOptions are those of machine enroll.
func enrollOptions() []word {
	return []word{
		{"--server", "address of the control plane"},
		{"--code", "one-time code"},
		{"--name", "name of this machine"},
		{"--label", "a label, name=value"},
	}
}

func names(words []word) string {
	var all []string
	for _, w := range words {
		all = append(all, w.name)
	}
	return strings.Join(all, " ")
}

// argumentWords are the arguments of commands that take one.
func argumentWords() map[string]string {
	subjects := commandWords()
	for _, topic := range catalog.Topics() {
		subjects = append(subjects, word{name: topic.Name})
	}
	return map[string]string{"completion": "bash zsh fish", "help": names(subjects), "machine": "enroll"}
}

func bashCompletion() string {
	var cases strings.Builder
	for _, w := range commandWords() {
		words := optionWords(w.name)
		arguments := argumentWords()[w.name]
		fmt.Fprintf(&cases, "    %s) words='%s' ;;\n", w.name, strings.TrimSpace(names(words)+" "+arguments))
	}
	return fmt.Sprintf(`# Completion of errand for bash: source it, for example from ~/.bashrc, with
#   source <(errand completion bash)
_errand() {
  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} command= words= i
  for ((i = 1; i < COMP_CWORD; i++)); do
    case ${COMP_WORDS[i]} in
    automations | -*) ;;
    *) command=${COMP_WORDS[i]}; break ;;
    esac
  done
  case $previous in
  --file | --code-file) COMPREPLY=($(compgen -f -- "$current")); return ;;
  --input | --server | --name) COMPREPLY=(); return ;;
  esac
  case $command in
    '') words='%s --help --version' ;;
%s  esac
  COMPREPLY=($(compgen -W "$words" -- "$current"))
}
complete -o filenames -F _errand errand
`, names(commandWords()), cases.String())
}

func zshCompletion() string {
	var commands, cases strings.Builder
	for _, w := range commandWords() {
		fmt.Fprintf(&commands, "    '%s:%s'\n", w.name, w.meaning)
		var specs []string
		for _, option := range optionWords(w.name) {
			specs = append(specs, fmt.Sprintf("'%s[%s]%s'", option.name, option.meaning, zshValue(option.name)))
		}
		if arguments := argumentWords()[w.name]; arguments != "" {
			specs = append(specs, fmt.Sprintf("'1:argument:(%s)'", arguments))
		}
		fmt.Fprintf(&cases, "    %s) _arguments %s ;;\n", w.name, strings.Join(specs, " "))
	}
	return fmt.Sprintf(`#compdef errand
# Completion of errand for zsh: put it into a folder of $fpath as _errand, or
#   source <(errand completion zsh)
_errand() {
  local -a commands
  commands=(
%s  )
  if ((CURRENT == 2)); then
    _describe command commands
    return
  fi
  local command=$words[2]
  shift words
  ((CURRENT--))
  case $command in
%s  esac
}
if [ "$funcstack[1]" = _errand ]; then _errand "$@"; else compdef _errand errand; fi
`, commands.String(), cases.String())
}

func zshValue(option string) string {
	switch {
	case option == "--file" || option == "--code-file":
		return ":file:_files"
	case slices.Contains([]string{"--stdin", "--pretty", "--text", "--help", "--dry-run"}, option):
		return ""
	}
	return ":value: "
}

func fishCompletion() string {
	var b strings.Builder
	b.WriteString("# Completion of errand for fish: errand completion fish > ~/.config/fish/completions/errand.fish\ncomplete -c errand -f\n")
	for _, w := range commandWords() {
		fmt.Fprintf(&b, "complete -c errand -n __fish_use_subcommand -a %s -d '%s'\n", w.name, w.meaning)
		for _, option := range optionWords(w.name) {
			value := ""
			if zshValue(option.name) != "" {
				value = " -r"
			}
			if strings.HasSuffix(option.name, "file") {
				value = " -r -F"
			}
			fmt.Fprintf(&b, "complete -c errand -n '__fish_seen_subcommand_from %s' -l %s%s -d '%s'\n",
				w.name, strings.TrimPrefix(option.name, "--"), value, option.meaning)
		}
		if arguments := argumentWords()[w.name]; arguments != "" {
			fmt.Fprintf(&b, "complete -c errand -n '__fish_seen_subcommand_from %s' -a '%s'\n", w.name, arguments)
		}
	}
	return b.String()
}
