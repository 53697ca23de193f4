// Command recordhistories runs the workflows against a real Temporal server, with activities that it scripts,
// and writes their histories. A test replays every recorded history on the code of today, so that a change
// which would break a run in flight is found. After an intended change of workflow logic, give the scenarios
// of the new version names of their own and keep the old files.
//
//	go run ./tools/recordhistories workflows/testdata v1 [SCENARIO ...]
package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	historypb "go.temporal.io/api/history/v1"
	"go.temporal.io/api/temporalproto"
	"go.temporal.io/sdk/activity"
	"go.temporal.io/sdk/client"
	sdklog "go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"
	sdkworker "go.temporal.io/sdk/worker"

	"github.com/errandhq/errand/activities/control"
	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/embedded"
	"github.com/errandhq/errand/worker"
)

const (
	installation = "recorded"
	machineQueue = "recorded/machine/m"
)

// scenario is one run, or one wake-up of a schedule. Its functions stand for the machine and the ledger.
type scenario struct {
	name string
	// wakeUp is set for a wake-up, and says what the ledger decides.
	wakeUp func() (automation.ScheduleDecision, error)
	// step answers for a step's activity.
	step func(ctx context.Context, in automation.StepInput, attempt int32) (automation.StepVerdict, error)
	// during is done while the workflow waits for its first step.
	during func(ctx context.Context, c client.Client, id string) error
	final  automation.FinalizeVerdict
}

var completed = automation.StepVerdict{Outcome: automation.OutcomeCompleted}

func complete(context.Context, automation.StepInput, int32) (automation.StepVerdict, error) {
	return completed, nil
}

// untilCancelled is a step that has not begun: its activity waits until Temporal cancels it.
func untilCancelled(ctx context.Context, _ automation.StepInput, _ int32) (automation.StepVerdict, error) {
	for ctx.Err() == nil {
		activity.RecordHeartbeat(ctx)
		time.Sleep(100 * time.Millisecond)
	}
	return automation.StepVerdict{}, ctx.Err()
}

// afterCancel is a step that has begun: its machine ends it a while after the cancel, as cancelled.
func afterCancel(context.Context, automation.StepInput, int32) (automation.StepVerdict, error) {
	time.Sleep(2 * time.Second)
	return automation.StepVerdict{Outcome: automation.OutcomeCancelled}, nil
}

func scenarios() []scenario { return append(runScenarios(), triggerScenarios()...) }

// runScenarios are what can become of a run.
func runScenarios() []scenario {
	done := automation.FinalizeVerdict{Status: automation.RunCompleted}
	cancelled := automation.FinalizeVerdict{Status: automation.RunCancelled}
	return []scenario{
		{name: "completed", step: complete, final: done},
		{
			name:  "failed",
			final: automation.FinalizeVerdict{Status: automation.RunFailed, Code: "nonzero_exit", StepID: "build"},
			step: func(_ context.Context, in automation.StepInput, _ int32) (automation.StepVerdict, error) {
				if in.StepID == "build" {
					return automation.StepVerdict{}, temporal.NewNonRetryableApplicationError("exit status 2", "nonzero_exit", nil)
				}
				return completed, nil
			},
		},
		{
			name: "retried", final: done,
			step: func(_ context.Context, in automation.StepInput, attempt int32) (automation.StepVerdict, error) {
				if in.StepID == "notify" && attempt < 3 {
					return automation.StepVerdict{}, temporal.NewApplicationError("no route", "transport_unavailable")
				}
				return completed, nil
			},
		},
		{
			name: "superseded", final: automation.FinalizeVerdict{Status: automation.RunRunning, Superseded: true},
			step: func(context.Context, automation.StepInput, int32) (automation.StepVerdict, error) {
				return automation.StepVerdict{Stopped: automation.StopSuperseded}, nil
			},
		},
		{
			name: "cancelled-before-begin", step: untilCancelled, final: cancelled,
			during: func(ctx context.Context, c client.Client, id string) error {
				return c.SignalWorkflow(ctx, id, "", automation.CancelSignal.Name, automation.CancelNotice{})
			},
		},
		{
			name: "cancelled-while-executing", step: afterCancel, final: cancelled,
			during: func(ctx context.Context, c client.Client, id string) error {
				return c.SignalWorkflow(ctx, id, "", automation.CancelSignal.Name, automation.CancelNotice{Begun: "notify"})
			},
		},
		{
			name: "redispatched", final: done,
			step: func(ctx context.Context, in automation.StepInput, attempt int32) (automation.StepVerdict, error) {
				if activity.GetInfo(ctx).ActivityID == "notify" {
					return untilCancelled(ctx, in, attempt)
				}
				return completed, nil
			},
			during: func(ctx context.Context, c client.Client, id string) error {
				return c.SignalWorkflow(ctx, id, "", automation.DispatchSignal.Name, automation.DispatchNotice{StepID: "notify"})
			},
		},
		{
			name: "cancelled-in-temporal", step: afterCancel, final: cancelled,
			during: func(ctx context.Context, c client.Client, id string) error { return c.CancelWorkflow(ctx, id, "") },
		},
	}
}

// triggerScenarios are what can become of a wake-up of a schedule.
func triggerScenarios() []scenario {
	return []scenario{
		{name: "trigger-admitted", wakeUp: func() (automation.ScheduleDecision, error) {
			return automation.ScheduleDecision{
				Admitted: []string{"r2"}, Cancelled: []automation.Cancellation{{Run: automation.Run{ID: "r1"}}},
			}, nil
		}},
		{name: "trigger-nothing", wakeUp: func() (automation.ScheduleDecision, error) { return automation.ScheduleDecision{}, nil }},
		{name: "trigger-without-ledger", wakeUp: func() (automation.ScheduleDecision, error) {
			return automation.ScheduleDecision{}, automation.Errorf(automation.CodeStoreUnavailable, "the database does not answer")
		}},
	}
}

// ledger answers as the scenario wants.
type ledger struct{ scenario scenario }

func (l *ledger) FinalizeRun(context.Context, automation.FinalizeInput) (automation.FinalizeVerdict, error) {
	return l.scenario.final, nil
}

func (l *ledger) Decide(context.Context, string) (automation.ScheduleDecision, error) {
	return l.scenario.wakeUp()
}

func (*ledger) CancelRun(context.Context, automation.CancelInput) (automation.CancelVerdict, error) {
	return automation.CancelVerdict{Begun: "notify"}, nil
}

func main() {
	if len(os.Args) < 3 {
		fmt.Fprintln(os.Stderr, "usage: recordhistories DIRECTORY VERSION [SCENARIO ...]")
		os.Exit(2)
	}
	if err := record(context.Background(), os.Args[1], os.Args[2], os.Args[3:]); err != nil {
		fmt.Fprintln(os.Stderr, "recordhistories:", err)
		os.Exit(1)
	}
}

// record writes the histories of the named scenarios, or of all.
func record(ctx context.Context, directory, version string, names []string) error {
	data, err := os.MkdirTemp("", "histories")
	if err != nil {
		return err
	}
	defer os.RemoveAll(data) // a temporary directory
	quiet := slog.New(slog.DiscardHandler)
	server, err := embedded.Start(ctx, embedded.Options{Dir: data, Logger: quiet})
	if err != nil {
		return err
	}
	defer server.Stop()
	c, err := client.DialContext(ctx, client.Options{
		HostPort: server.HostPort(), Namespace: server.Namespace(), Logger: sdklog.NewStructuredLogger(quiet),
		ConnectionOptions: client.ConnectionOptions{TLS: server.TLS()},
	})
	if err != nil {
		return err
	}
	defer c.Close()
	for _, s := range scenarios() {
		if len(names) > 0 && !slices.Contains(names, s.name) {
			continue
		}
		history, err := play(ctx, c, s)
		if err != nil {
			return fmt.Errorf("%s: %w", s.name, err)
		}
		encoded, err := temporalproto.CustomJSONMarshalOptions{Indent: " "}.Marshal(history)
		if err != nil {
			return err
		}
		path := filepath.Join(directory, version+"-"+s.name+".json")
		if err := os.WriteFile(path, append(encoded, '\n'), 0o644); err != nil { //nolint:gosec // it is a file of the repository
			return err
		}
		fmt.Println(path, len(history.GetEvents()), "events")
	}
	return nil
}

// play runs one scenario to its end and returns its history.
func play(ctx context.Context, c client.Client, s scenario) (*historypb.History, error) {
	runs := worker.NewControl(c, installation, control.Activities{Ledger: &ledger{s}, Schedules: &ledger{s}}, nil)
	if err := runs.Start(); err != nil {
		return nil, err
	}
	defer runs.Stop()
	if s.wakeUp != nil {
		return playWakeUp(ctx, c, s)
	}
	steps := sdkworker.New(c, machineQueue, sdkworker.Options{DisableWorkflowWorker: true, MaxHeartbeatThrottleInterval: time.Second})
	for _, kind := range []automation.StepKind{automation.KindAction, automation.KindCommand, automation.KindScript} {
		steps.RegisterActivityWithOptions(func(ctx context.Context, in automation.StepInput) (automation.StepVerdict, error) {
			return s.step(ctx, in, activity.GetInfo(ctx).Attempt)
		}, activity.RegisterOptions{Name: automation.ExecuteStep(kind).Name})
	}
	if err := steps.Start(); err != nil {
		return nil, err
	}
	defer steps.Stop()

	id := "recorded/run/" + s.name + "/1"
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: id, TaskQueue: automation.ControlQueue(installation), EnableEagerStart: true,
	}, automation.WorkflowAutomationRun, automation.RunInput{
		RunID: s.name, Generation: 1, MachineQueue: machineQueue,
		Steps: []automation.StepOutline{
			{ID: "notify", Kind: automation.KindAction, Summary: "notify · channels.notify_user", TimeoutMs: 60_000},
			{ID: "build", Kind: automation.KindCommand, Summary: "build · make", TimeoutMs: 60_000},
			{ID: "report", Kind: automation.KindScript, Summary: "report · shell script", TimeoutMs: 60_000},
		},
	})
	if err != nil {
		return nil, err
	}
	if s.during != nil {
		time.Sleep(time.Second) // until the first step's activity is open
		if err := s.during(ctx, c, id); err != nil {
			return nil, err
		}
	}
	var verdict automation.FinalizeVerdict
	err = run.Get(ctx, &verdict)
	wanted := s.final.Status == automation.RunFailed || s.final.Status == automation.RunCancelled
	if (err != nil) != wanted {
		return nil, errors.Join(fmt.Errorf("the workflow has ended as it should not"), err)
	}
	return historyOf(ctx, c, run)
}

// playWakeUp wakes up a schedule and returns the history.
func playWakeUp(ctx context.Context, c client.Client, s scenario) (*historypb.History, error) {
	run, err := c.ExecuteWorkflow(ctx, client.StartWorkflowOptions{
		ID: automation.TriggerWorkflowID(installation, s.name), TaskQueue: automation.ControlQueue(installation),
	}, automation.WorkflowScheduleTrigger, automation.TriggerInput{ScheduleID: s.name})
	if err != nil {
		return nil, err
	}
	_, wanted := s.wakeUp()
	if err := run.Get(ctx, nil); (err != nil) != (wanted != nil) {
		return nil, errors.Join(errors.New("the workflow has ended as it should not"), err)
	}
	return historyOf(ctx, c, run)
}

// historyOf returns the history of a closed workflow.
func historyOf(ctx context.Context, c client.Client, run client.WorkflowRun) (*historypb.History, error) {
	history := &historypb.History{}
	events := c.GetWorkflowHistory(ctx, run.GetID(), run.GetRunID(), false, enumspb.HISTORY_EVENT_FILTER_TYPE_ALL_EVENT)
	for events.HasNext() {
		event, err := events.Next()
		if err != nil {
			return nil, err
		}
		history.Events = append(history.Events, event)
	}
	return history, nil
}
