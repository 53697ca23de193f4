package api_test

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// finishStep begins and finishes a step of a run.
func (w *world) finishStep(runID, stepID, outcome string) {
	w.t.Helper()
	w.do("POST", "/v1/machine/steps/begin", fmt.Sprintf(
		`{"runId":%q,"stepId":%q,"generation":1,"requestId":%q}`, runID, stepID, newID()), asMachine)
	done := w.do("POST", "/v1/machine/steps/finish", fmt.Sprintf(
		`{"runId":%q,"stepId":%q,"execution":1,"outcome":%q,"result":{"exitCode":1}}`, runID, stepID, outcome), asMachine).json(w.t)
	if done["accepted"] != true {
		w.t.Fatalf("finish: %v", done)
	}
}

func TestRetry(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	id := w.create()
	first := w.runNow(id)
	path := "/v1/runs/" + first + "/retry"
	if a := w.do("POST", path, ""); a.status != 409 || a.code(t) != "not_finished" {
		t.Errorf("a run that goes on: %d %s", a.status, a.body)
	}
	w.finishStep(first, "greet", "completed")
	w.finishStep(first, "again", "failed")
	for body, place := range map[string]string{
		`{"from_step":""}`: "from_step", `{"from_step":"x"}`: "from_step", `{"run_id":"x"}`: "run_id", `{"step":"greet"}`: "step",
	} {
		a := w.do("POST", path, body)
		if a.status != 400 || a.code(t) != "validation_failed" || !cmp.Equal(a.places(t), []any{place}) {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	made := w.do("POST", path, `{}`, header("Idempotency-Key", "k"))
	second := made.json(t)
	if made.status != 201 || second["retryOf"] != first || second["status"] != "pending" {
		t.Fatalf("%d %s", made.status, made.body)
	}
	carried := second["steps"].([]any)[0].(map[string]any)
	if carried["carriedFrom"] != first || carried["status"] != "completed" || !cmp.Equal(carried["output"], map[string]any{"exitCode": 1.0}) {
		t.Errorf("the carried step: %v", carried)
	}
	if diff := cmp.Diff([]string{first, second["id"].(string)}, w.admitted); diff != "" {
		t.Errorf("the engine was asked to start (-want +got):\n%s", diff)
	}
	if again := w.do("POST", path, `{"idempotency_key":"k"}`).json(t); again["id"] != second["id"] {
		t.Errorf("one key has admitted %v and %v", second["id"], again["id"])
	}
	if a := w.do("POST", path, `{"idempotency_key":"k","from_step":"greet"}`); a.status != 409 || a.code(t) != "idempotency_conflict" {
		t.Errorf("another request under the key: %d %s", a.status, a.body)
	}
	w.do("DELETE", "/v1/automations/"+id, "")
	if a := w.do("POST", path, ""); a.status != 404 {
		t.Errorf("of a deleted automation: %d %s", a.status, a.body)
	}
}

// places returns the paths that a refusal names.
func (a answer) places(t *testing.T) []any {
	t.Helper()
	var places []any
	refusal, _ := a.json(t)["error"].(map[string]any)
	details, _ := refusal["details"].([]any)
	for _, detail := range details {
		places = append(places, detail.(map[string]any)["path"])
	}
	return places
}

func TestCancelRuns(t *testing.T) {
	t.Parallel()
	w := newWorld(t)
	one, other := w.create(), w.create()
	pending, executing, ofOther := w.runNow(one), w.runNow(one), w.runNow(other)
	w.do("POST", "/v1/machine/steps/begin", fmt.Sprintf(`{"runId":%q,"stepId":"greet","generation":1,"requestId":"r"}`, executing), asMachine)
	for _, body := range []string{`{}`, `{"reason":"all of them"}`, `{"automation_id":""}`, `{"machine_id":"x"}`} {
		if a := w.do("POST", "/v1/runs/cancel", body); a.status != 400 || a.code(t) != "validation_failed" {
			t.Errorf("%s: %d %s", body, a.status, a.body)
		}
	}
	cancel := func(body string) any { return w.do("POST", "/v1/runs/cancel", body).json(t)["cancelled"] }
	if n := cancel(`{"automation_id":"` + newID() + `"}`); n != 0.0 {
		t.Errorf("runs of no automation: %v", n)
	}
	if n := cancel(`{"automation_id":"` + one + `","reason":"r"}`); n != 2.0 {
		t.Errorf("runs of an automation: %v", n)
	}
	for run, want := range map[string]string{pending: "cancelled", executing: "running", ofOther: "pending"} {
		if got := w.do("GET", "/v1/runs/"+run, "").json(t); got["status"] != want || (got["cancelReason"] == "r") != (run != ofOther) {
			t.Errorf("want %s: %v", want, got)
		}
	}
	if len(w.cancelled) != 2 {
		t.Errorf("the workflows that were told: %v", w.cancelled)
	}
	if n := cancel(`{"machine_id":"` + w.machine.ID + `"}`); n != 1.0 {
		t.Errorf("runs of a machine, of which two were cancelled before: %v", n)
	}
}
