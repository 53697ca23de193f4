package schedules

import (
	"context"
	"errors"
	"strings"

	commonpb "go.temporal.io/api/common/v1"
	schedulepb "go.temporal.io/api/schedule/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"golang.org/x/time/rate"

	"github.com/errandhq/errand/automation"
)

const (
	// listPage is how many schedules one call lists.
	listPage = 500
	// listsPerSecond bounds these calls: Temporal answers ten a second of them.
	listsPerSecond = 4
)

// Engine is what the package needs of Temporal.
type Engine interface {
	// ID names the cluster and namespace, "" before it has been reached.
	ID() string
	Namespace() string
	// Check asks Temporal whether it serves. It is the engine that says so in the log.
	Check(ctx context.Context) error
	// Call makes one call within a bounded time. Errors that a later try may cure are engine_unavailable.
	Call(ctx context.Context, doing string, call func(context.Context, workflowservice.WorkflowServiceClient) error) error
	// Attributes returns the search attributes of what belongs to an automation and a machine; nil when the
	// namespace has none.
	Attributes(automationID, machineID string, trigger automation.TriggerKind) map[string]string
}

// temporal makes the calls that concern schedules.
type temporal struct {
	engine         Engine
	installationID string
	newID          func() string
	lists          *rate.Limiter
}

// held is a schedule as Temporal holds it.
type held struct {
	schedule   *schedulepb.Schedule
	memo       *commonpb.Memo
	attributes *commonpb.SearchAttributes
	token      []byte
}

// identity names who makes a change, for people who look at Temporal.
func (t temporal) identity() string { return "errandd/" + t.installationID }

// describe returns a schedule; false when Temporal has none of that id.
func (t temporal) describe(ctx context.Context, id string) (h held, found bool, err error) {
	err = t.engine.Call(ctx, "reading schedule "+id, func(ctx context.Context, service workflowservice.WorkflowServiceClient) error {
		answer, err := service.DescribeSchedule(ctx, &workflowservice.DescribeScheduleRequest{
			Namespace: t.engine.Namespace(), ScheduleId: automation.EngineScheduleID(t.installationID, id),
		})
		if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
			return nil
		}
		if err != nil {
			return err
		}
		found = true
		h = held{
			schedule: answer.GetSchedule(), memo: answer.GetMemo(), attributes: answer.GetSearchAttributes(),
			token: answer.GetConflictToken(),
		}
		return nil
	})
	return h, found, err
}

// create creates a schedule; false when there is one of that id.
func (t temporal) create(ctx context.Context, a alarm) (created bool, err error) {
	err = t.engine.Call(ctx, "creating schedule "+a.id, func(ctx context.Context, service workflowservice.WorkflowServiceClient) error {
		_, err := service.CreateSchedule(ctx, &workflowservice.CreateScheduleRequest{
			Namespace: t.engine.Namespace(), ScheduleId: a.id, Schedule: a.schedule, Memo: a.memo,
			SearchAttributes: a.attributes, Identity: t.identity(), RequestId: t.newID(),
		})
		_, exists := errors.AsType[*serviceerror.AlreadyExists](err)
		if _, running := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); running || exists {
			return nil
		}
		created = err == nil
		return err
	})
	return created, err
}

// update replaces a schedule that is still as it was described. Where it is not, Temporal drops the update without a
// word: who calls describes it again.
func (t temporal) update(ctx context.Context, a alarm, token []byte) error {
	return t.engine.Call(ctx, "changing schedule "+a.id, func(ctx context.Context, service workflowservice.WorkflowServiceClient) error {
		_, err := service.UpdateSchedule(ctx, &workflowservice.UpdateScheduleRequest{
			Namespace: t.engine.Namespace(), ScheduleId: a.id, Schedule: a.schedule, ConflictToken: token,
			SearchAttributes: a.attributes, Identity: t.identity(), RequestId: t.newID(),
		})
		if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
			return nil
		}
		return err
	})
}

// remove deletes a schedule. One that is not there is no error.
func (t temporal) remove(ctx context.Context, id string) error {
	return t.engine.Call(ctx, "deleting schedule "+id, func(ctx context.Context, service workflowservice.WorkflowServiceClient) error {
		_, err := service.DeleteSchedule(ctx, &workflowservice.DeleteScheduleRequest{
			Namespace: t.engine.Namespace(), ScheduleId: automation.EngineScheduleID(t.installationID, id), Identity: t.identity(),
		})
		if _, missing := errors.AsType[*serviceerror.NotFound](err); missing {
			return nil
		}
		return err
	})
}

// list returns what Temporal tells at a glance of each schedule of this installation, by the id of the schedule. It
// may be some seconds behind.
func (t temporal) list(ctx context.Context) (map[string]glance, error) {
	prefix := automation.EngineSchedulePrefix(t.installationID)
	request := &workflowservice.ListSchedulesRequest{
		Namespace: t.engine.Namespace(), MaximumPageSize: listPage, Query: `ScheduleId STARTS_WITH "` + prefix + `"`,
	}
	listed := map[string]glance{}
	for {
		if err := t.lists.Wait(ctx); err != nil {
			return nil, err
		}
		var page *workflowservice.ListSchedulesResponse
		err := t.engine.Call(ctx, "listing schedules", func(ctx context.Context, service workflowservice.WorkflowServiceClient) (err error) {
			page, err = service.ListSchedules(ctx, request)
			if _, unknown := errors.AsType[*serviceerror.InvalidArgument](err); unknown && request.Query != "" {
				request.Query = "" // a server that cannot select them by their id
				page, err = service.ListSchedules(ctx, request)
			}
			return err
		})
		if err != nil {
			return nil, err
		}
		for _, entry := range page.GetSchedules() {
			if id, ours := strings.CutPrefix(entry.GetScheduleId(), prefix); ours {
				info := entry.GetInfo()
				listed[id] = glanceOf(info.GetSpec(), info.GetNotes(), info.GetPaused())
			}
		}
		if request.NextPageToken = page.GetNextPageToken(); len(request.NextPageToken) == 0 {
			return listed, nil
		}
	}
}
