package automation_test

import (
	"strings"
	"testing"

	"github.com/errandhq/errand/automation"
)

func TestScopes(t *testing.T) {
	t.Parallel()
	const none, unknown = automation.Scope(""), automation.Scope("root")
	order := []automation.Scope{automation.ScopeRead, automation.ScopeControl, automation.ScopePerson, automation.ScopeAdmin}
	for i, has := range order {
		for j, needed := range order {
			if got, want := has.Allows(needed), i >= j; got != want {
				t.Errorf("%s allows what needs %s: %v, want %v", has, needed, got, want)
			}
		}
		for _, bad := range []automation.Scope{none, unknown} {
			if has.Allows(bad) || bad.Allows(has) || bad.Allows(bad) || bad.Known() {
				t.Errorf("%q and %s allow each other something", bad, has)
			}
		}
	}
}

func TestAuthorizeNamesTheScope(t *testing.T) {
	t.Parallel()
	for has, words := range map[automation.Scope][]string{
		automation.ScopeRead: {"update", "needs the scope control", "has the scope read"},
		"":                   {"update", "needs the scope control", "has no scope"},
	} {
		err := has.Authorize("update", automation.ScopeControl)
		if automation.CodeOf(err) != automation.CodeForbidden {
			t.Fatalf("%q: %v", has, err)
		}
		for _, word := range words {
			if !strings.Contains(err.Error(), word) {
				t.Errorf("%q: %v does not say %q", has, err, word)
			}
		}
	}
	if err := automation.ScopeControl.Authorize("create-key", automation.ScopePerson); err == nil || !strings.Contains(err.Error(), "scope admin") {
		t.Errorf("what a person may do: %v", err)
	}
	if err := automation.ScopeAdmin.Authorize("update", automation.ScopeControl); err != nil {
		t.Error(err)
	}
}
