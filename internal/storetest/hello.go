package storetest

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var helloTests = []test{
	{"Records", testHelloRecords},
	{"Instances", testInstances},
	{"Held", testHeld},
	{"HeldByRevoked", testHeldByRevoked},
	{"Invalid", testHelloInvalid},
}

var firstInstance = automation.Instance{DirectoryID: "dir", BootID: "boot", Start: 3, Host: "attic"}

func hello(i automation.Instance, held ...automation.Held) automation.Hello {
	return automation.Hello{Instance: i, Version: "v9", Platform: "linux/arm64", Concurrency: 4, Held: held}
}

func (f *fixture) hello(t *testing.T, i automation.Instance, held ...automation.Held) []automation.HeldAnswer {
	t.Helper()
	answers, err := f.Hello(t.Context(), f.machine.ID, hello(i, held...))
	if err != nil {
		t.Fatalf("Hello: %v", err)
	}
	return answers
}

func testHelloRecords(t *testing.T, f *fixture) {
	h := hello(firstInstance)
	h.Labels = map[string]string{"disk": "ssd"}
	if _, err := f.Hello(t.Context(), f.machine.ID, h); err != nil {
		t.Fatalf("Hello: %v", err)
	}
	now := f.clock.Now()
	want := f.machine
	want.Version, want.Platform, want.Labels, want.Concurrency = "v9", "linux/arm64", h.Labels, 4
	want.Instance, want.LastSeenAt = &h.Instance, &now
	got, err := f.Machine(t.Context(), f.machine.ID)
	if err != nil {
		t.Fatalf("Machine: %v", err)
	}
	wantEqual(t, "the machine after hello", got, want)
	_, err = f.Hello(t.Context(), NewID(), h)
	wantCode(t, "an unknown machine", err, automation.CodeNotFound)
	_, err = f.Hello(t.Context(), "x", h)
	wantCode(t, "a machine that is not an id", err, automation.CodeNotFound)
}

func testInstances(t *testing.T, f *fixture) {
	with := func(change func(*automation.Instance)) automation.Instance {
		i := firstInstance
		change(&i)
		return i
	}
	for name, tc := range map[string]struct {
		next  automation.Instance
		alive bool // accepted while the first one lives
	}{
		"reconnect":       {firstInstance, true},
		"next start":      {with(func(i *automation.Instance) { i.Start++ }), true},
		"earlier start":   {with(func(i *automation.Instance) { i.Start-- }), false},
		"other boot":      {with(func(i *automation.Instance) { i.BootID, i.Start = "boot2", 4 }), false},
		"other host":      {with(func(i *automation.Instance) { i.Host, i.Start = "cellar", 4 }), false},
		"other directory": {with(func(i *automation.Instance) { i.DirectoryID, i.Start = "dir2", 4 }), false},
	} {
		m := f.enroll(t, f.owner, name)
		say := func(i automation.Instance) error {
			_, err := f.Hello(t.Context(), m.ID, hello(i))
			return err
		}
		if err := say(firstInstance); err != nil {
			t.Fatalf("%s: Hello of the first: %v", name, err)
		}
		f.clock.Advance(automation.OnlineWithin)
		err := say(tc.next)
		if tc.alive {
			if err != nil {
				t.Errorf("%s: refused: %v", name, err)
			}
			continue
		}
		wantCode(t, name, err, automation.CodeForbidden)
		var refusal *automation.Error
		if errors.As(err, &refusal) && (!strings.Contains(refusal.Message, `"attic"`) || refusal.RetryAfter <= 0) {
			t.Errorf("%s: the refusal says %q, retry after %v", name, refusal.Message, refusal.RetryAfter)
		}
		if got, err := f.Machine(t.Context(), m.ID); err != nil || *got.Instance != firstInstance {
			t.Errorf("%s: the refused instance was recorded: %+v, %v", name, got.Instance, err)
		}
		f.clock.Advance(time.Microsecond)
		if err := say(tc.next); err != nil {
			t.Errorf("%s: refused though the first has been silent: %v", name, err)
		}
		if tc.next.BootID == firstInstance.BootID && tc.next.Host == firstInstance.Host && tc.next.DirectoryID == firstInstance.DirectoryID {
			continue // the first is the later start of the same boot, and takes over again
		}
		wantCode(t, name+": the first, replaced", say(firstInstance), automation.CodeForbidden)
	}
}

func testHeld(t *testing.T, f *fixture) {
	other := f.enroll(t, f.owner, "other")
	a := f.create(t, f.definition("job", "one", "two"))
	running, cancelled, done, pending, forced := f.admit(t, a), f.admit(t, a), f.admit(t, a), f.admit(t, a), f.admit(t, a)
	f.mustBegin(t, running, "one")
	f.mustBegin(t, cancelled, "one")
	f.cancel(t, cancelled, false)
	f.complete(t, done, "one", `1`)
	f.mustBegin(t, forced, "one")
	f.cancel(t, forced, true)
	d := f.definition("foreign", "one")
	d.MachineID = other.ID
	foreign := f.admit(t, f.create(t, d))
	f.mustBegin(t, foreign, "one")

	held := func(r automation.Run, execution int64, state automation.HeldState) automation.Held {
		return automation.Held{StepRef: ref(r, "one"), Execution: execution, State: state}
	}
	unknown := automation.Held{StepRef: automation.StepRef{RunID: NewID(), StepID: "one"}, Execution: 1, State: automation.HeldRunning}
	strange := automation.Held{StepRef: automation.StepRef{RunID: "\x00", StepID: "\xff"}, Execution: 1, State: automation.HeldFinished}
	cases := []struct {
		held automation.Held
		want automation.HeldVerdict
	}{
		{held(running, 1, automation.HeldRunning), automation.VerdictKeep},
		{held(running, 1, automation.HeldFinished), automation.VerdictFinish},
		{held(running, 0, automation.HeldRunning), automation.VerdictEnd},
		{held(cancelled, 1, automation.HeldRunning), automation.VerdictEnd},
		{held(cancelled, 1, automation.HeldFinished), automation.VerdictFinish},
		{held(done, 1, automation.HeldRunning), automation.VerdictEnd},
		{held(done, 1, automation.HeldFinished), automation.VerdictForget},
		{held(pending, 4, automation.HeldRunning), automation.VerdictKeep}, // its begin was lost with the power
		{held(forced, 1, automation.HeldRunning), automation.VerdictEnd},
		{held(forced, 1, automation.HeldFinished), automation.VerdictFinish},
		{held(foreign, 1, automation.HeldRunning), automation.VerdictEnd},
		{unknown, automation.VerdictEnd},
		{strange, automation.VerdictForget},
	}
	var said []automation.Held
	var want []automation.HeldAnswer
	for _, c := range cases {
		said = append(said, c.held)
		want = append(want, automation.HeldAnswer{StepRef: c.held.StepRef, Execution: c.held.Execution, Verdict: c.want})
	}
	wantEqual(t, "the verdicts", f.hello(t, firstInstance, said...), want)
	if none := f.hello(t, firstInstance); none == nil || len(none) != 0 {
		t.Errorf("the verdicts on nothing are %#v, want an empty list", none)
	}

	many := make([]automation.Held, 0, 250)
	for range cap(many) {
		many = append(many, held(f.admit(t, a), 1, automation.HeldRunning))
	}
	for i, answer := range f.hello(t, firstInstance, many...) {
		if answer.Verdict != automation.VerdictKeep {
			t.Fatalf("verdict %d of many is %q", i, answer.Verdict)
		}
	}
}

func testHeldByRevoked(t *testing.T, f *fixture) {
	run := f.newRun(t, "one")
	f.mustBegin(t, run, "one")
	f.db.Revoke(t, f.machine.ID)
	answers := f.hello(t, firstInstance, automation.Held{StepRef: ref(run, "one"), Execution: 1, State: automation.HeldRunning})
	if len(answers) != 1 || answers[0].Verdict != automation.VerdictEnd {
		t.Errorf("a revoked machine is told %+v, want end", answers)
	}
	m, err := f.Machine(t.Context(), f.machine.ID)
	if err != nil || m.Instance != nil || m.LastSeenAt != nil {
		t.Errorf("hello of a revoked machine was recorded: %+v, %v", m, err)
	}
}

func testHelloInvalid(t *testing.T, f *fixture) {
	for path, change := range map[string]func(*automation.Hello){
		"instance.directoryId": func(h *automation.Hello) { h.Instance.DirectoryID = "" },
		"instance.bootId":      func(h *automation.Hello) { h.Instance.BootID = "a\x00" },
		"instance.host":        func(h *automation.Hello) { h.Instance.Host = "\xff" },
		"version":              func(h *automation.Hello) { h.Version = strings.Repeat("x", 1000) },
		"platform":             func(h *automation.Hello) { h.Platform = "\x00" },
		"concurrency":          func(h *automation.Hello) { h.Concurrency = 0 },
		"labels":               func(h *automation.Hello) { h.Labels = map[string]string{"a": strings.Repeat("x", 1<<20)} },
	} {
		h := hello(firstInstance)
		change(&h)
		_, err := f.Hello(t.Context(), f.machine.ID, h)
		wantCode(t, path, err, automation.CodeValidationFailed)
		if got := paths(err); len(got) == 0 || got[0] != path {
			t.Errorf("the error about %s names %v", path, got)
		}
	}
}
