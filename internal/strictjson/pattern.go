package strictjson

import (
	"regexp"
	"sync"
)

// Pattern returns a check whether a text matches a regular expression. The expression is compiled when the first
// text is checked, so that a program which checks none does not pay for it at its start; one that cannot be compiled
// panics then. The check is safe for concurrent use.
func Pattern(expression string) func(text string) bool {
	compiled := sync.OnceValue(func() *regexp.Regexp { return regexp.MustCompile(expression) })
	return func(text string) bool { return compiled().MatchString(text) }
}
