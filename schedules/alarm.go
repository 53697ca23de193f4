package schedules

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"time"

	commonpb "go.temporal.io/api/common/v1"
	enumspb "go.temporal.io/api/enums/v1"
	schedulepb "go.temporal.io/api/schedule/v1"
	sdkpb "go.temporal.io/api/sdk/v1"
	taskqueuepb "go.temporal.io/api/taskqueue/v1"
	workflowpb "go.temporal.io/api/workflow/v1"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/durationpb"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
)

const (
	// catchupWindow is how late Temporal may make up for a firing that it missed. What is later is the ledger's to
	// decide.
	catchupWindow = time.Minute
	// wakeUpWithin is how long a wake-up waits for a server. The ticker of the one that comes back does its work.
	wakeUpWithin = time.Minute
	// wakeEvery is how often Temporal wakes up one schedule at most. A wake-up is a workflow, for which Temporal writes a
	// few dozen times what the ledger does: a hundred schedules of one second would leave it no time for runs. What is
	// due in between is the ticker's.
	wakeEvery = time.Minute
	// notePrefix begins every note that is ours. A note without it was written by a person, with a pause or its end.
	notePrefix = "Errand: "
	// maxReasonBytes bounds what a person's note adds to the ledger.
	maxReasonBytes = 400
	// memoTiming is the field of the memo that says the timing in words.
	memoTiming = "timing"
)

// alarm is a schedule as Temporal is to hold it.
type alarm struct {
	id         string
	schedule   *schedulepb.Schedule
	memo       *commonpb.Memo
	attributes *commonpb.SearchAttributes
}

// alarm returns what Temporal is to hold for a schedule of the ledger. It fails for a timing that this build cannot
// read.
func (t temporal) alarm(s automation.ScheduleSync) (alarm, error) {
	timing, err := schedule.Restore(s.Spec, s.CreatedAt)
	if err != nil {
		return alarm{}, fmt.Errorf("reading the timing of schedule %s: %w", s.ID, err)
	}
	words := timing.Describe()
	spec := specOf(timing)
	state := &schedulepb.ScheduleState{Notes: notePrefix + words, Paused: s.Paused}
	every, _, _ := timing.Interval()
	switch {
	case s.Paused:
		state.Notes = notePrefix + cmp.Or(s.Note, "it does not fire") + " · " + words
	case len(spec.GetStructuredCalendar())+len(spec.GetInterval()) == 0:
		// Temporal would delete a schedule that never fires.
		state.Paused, state.Notes = true, notePrefix+"Temporal cannot hold this time; errandd fires it · "+words
	case every > 0 && every < wakeEvery:
		state.Notes += " · errandd fires it, Temporal wakes it up about once a minute"
	}
	attributes := keywords(t.engine.Attributes(s.AutomationID, s.MachineID, automation.TriggerSchedule))
	return alarm{
		id: automation.EngineScheduleID(t.installationID, s.ID),
		schedule: &schedulepb.Schedule{
			Spec:  spec,
			State: state,
			Policies: &schedulepb.SchedulePolicies{
				OverlapPolicy: enumspb.SCHEDULE_OVERLAP_POLICY_ALLOW_ALL, CatchupWindow: durationpb.New(catchupWindow),
			},
			Action: &schedulepb.ScheduleAction{Action: &schedulepb.ScheduleAction_StartWorkflow{
				StartWorkflow: t.wakeUp(s, attributes),
			}},
		},
		memo:       &commonpb.Memo{Fields: map[string]*commonpb.Payload{memoTiming: payload(words)}},
		attributes: attributes,
	}, nil
}

// wakeUp returns the workflow that a firing starts.
func (t temporal) wakeUp(s automation.ScheduleSync, attributes *commonpb.SearchAttributes) *workflowpb.NewWorkflowExecutionInfo {
	return &workflowpb.NewWorkflowExecutionInfo{
		WorkflowId:   automation.TriggerWorkflowID(t.installationID, s.ID),
		WorkflowType: &commonpb.WorkflowType{Name: automation.WorkflowScheduleTrigger},
		TaskQueue: &taskqueuepb.TaskQueue{
			Name: automation.ControlQueue(t.installationID), Kind: enumspb.TASK_QUEUE_KIND_NORMAL,
		},
		Input:                    &commonpb.Payloads{Payloads: []*commonpb.Payload{payload(automation.TriggerInput{ScheduleID: s.ID})}},
		WorkflowExecutionTimeout: durationpb.New(wakeUpWithin),
		SearchAttributes:         attributes,
		UserMetadata:             &sdkpb.UserMetadata{Summary: payload(automation.WorkflowSummary(s.AutomationName, automation.TriggerSchedule))},
	}
}

// specOf returns the times of a timing as Temporal can hold them: calendars, an interval or one instant, and nothing
// for an instant beyond the years that it knows. Of a short interval it gets a multiple, at which it fires at some of
// the instants.
func specOf(timing schedule.Timing) *schedulepb.ScheduleSpec {
	if every, anchor, ok := timing.Interval(); ok {
		if every < wakeEvery {
			multiple := int64((wakeEvery + every - 1) / every)
			every = time.Duration(multiple) * every
		}
		seconds := int64(every / time.Second)
		phase := (anchor.Unix()%seconds + seconds) % seconds
		return &schedulepb.ScheduleSpec{Interval: []*schedulepb.IntervalSpec{{
			Interval: durationpb.New(every), Phase: durationpb.New(time.Duration(phase) * time.Second),
		}}}
	}
	if at, ok := timing.Instant(); ok {
		if at.Year() < schedule.CalendarFirstYear || at.Year() > schedule.CalendarLastYear {
			return &schedulepb.ScheduleSpec{}
		}
		return &schedulepb.ScheduleSpec{TimezoneName: time.UTC.String(), StructuredCalendar: []*schedulepb.StructuredCalendarSpec{{
			Year: only(at.Year()), Month: only(int(at.Month())), DayOfMonth: only(at.Day()), DayOfWeek: all(0, 6),
			Hour: only(at.Hour()), Minute: only(at.Minute()), Second: only(at.Second()),
		}}}
	}
	calendars, zone := timing.Calendars()
	spec := &schedulepb.ScheduleSpec{}
	for _, c := range calendars {
		spec.TimezoneName = zone.String()
		structured := &schedulepb.StructuredCalendarSpec{
			Month: rangesOr(c.Months, all(1, 12)), DayOfMonth: rangesOr(c.Days, all(1, 31)),
			DayOfWeek: rangesOr(c.Weekdays, all(0, 6)), Hour: rangesOr(c.Hours, all(0, 23)),
			Minute: rangesOr(c.Minutes, all(0, 59)), Second: only(0),
		}
		if c.Years != nil {
			structured.Year = ranges(c.Years)
		}
		spec.StructuredCalendar = append(spec.StructuredCalendar, structured)
	}
	return spec
}

func only(value int) []*schedulepb.Range { return all(value, value) }

func all(first, last int) []*schedulepb.Range {
	return []*schedulepb.Range{{Start: int32(first), End: int32(last), Step: 1}} //nolint:gosec // parts of a date
}

func rangesOr[T ~int](list []T, whole []*schedulepb.Range) []*schedulepb.Range {
	if list == nil {
		return whole
	}
	return ranges(list)
}

// ranges returns a sorted list of numbers as ranges: one with a step for a list with even gaps, else one for each
// stretch of numbers without a gap. Temporal writes its own in the same form, with every field set.
func ranges[T ~int](list []T) []*schedulepb.Range {
	if gap := evenGap(list); gap > 1 {
		r := all(int(list[0]), int(list[len(list)-1]))
		r[0].Step = int32(gap) //nolint:gosec // parts of a date
		return r
	}
	var out []*schedulepb.Range
	for _, value := range list {
		if n := len(out); n > 0 && int(out[n-1].GetEnd())+1 == int(value) {
			out[n-1].End++
			continue
		}
		out = append(out, only(int(value))...)
	}
	return out
}

// evenGap returns the gap between neighbours in a list of at least three numbers, or 0 when it differs.
func evenGap[T ~int](list []T) int {
	if len(list) < 3 {
		return 0
	}
	gap := list[1] - list[0]
	for i := 2; i < len(list); i++ {
		if list[i]-list[i-1] != gap {
			return 0
		}
	}
	return int(gap)
}

// payload encodes a value as the SDK's default data converter does.
func payload(value any) *commonpb.Payload {
	data, err := json.Marshal(value)
	if err != nil {
		panic(err) // strings, and structs of strings
	}
	return &commonpb.Payload{Metadata: map[string][]byte{"encoding": []byte("json/plain")}, Data: data}
}

// keywords returns search attributes of the type keyword, or nil without any.
func keywords(values map[string]string) *commonpb.SearchAttributes {
	if len(values) == 0 {
		return nil
	}
	fields := make(map[string]*commonpb.Payload, len(values))
	for name, value := range values {
		field := payload(value)
		field.Metadata["type"] = []byte(enumspb.INDEXED_VALUE_TYPE_KEYWORD.String())
		fields[name] = field
	}
	return &commonpb.SearchAttributes{IndexedFields: fields}
}

// same reports whether Temporal holds what it is to hold. Search attributes count where the installation sets any.
func (a alarm) same(have held) bool {
	want, got := a.schedule, have.schedule
	return proto.Equal(want.GetSpec(), got.GetSpec()) &&
		proto.Equal(want.GetPolicies(), got.GetPolicies()) &&
		proto.Equal(want.GetState(), got.GetState()) &&
		proto.Equal(want.GetAction().GetStartWorkflow(), got.GetAction().GetStartWorkflow()) &&
		(a.attributes == nil || sameFields(a.attributes.GetIndexedFields(), have.attributes.GetIndexedFields()))
}

// sameMemo reports whether the memo is right. Temporal does not change the one of a schedule that exists.
func (a alarm) sameMemo(have held) bool { return sameFields(a.memo.GetFields(), have.memo.GetFields()) }

// sameFields reports whether all fields of want are in got.
func sameFields(want, got map[string]*commonpb.Payload) bool {
	for name, field := range want {
		if string(field.GetData()) != string(got[name].GetData()) {
			return false
		}
	}
	return true
}

// listedCalendars is how many calendars of a schedule Temporal shows in a list.
const listedCalendars = 10

// glance is what a list of schedules tells of one.
type glance struct {
	spec   string
	note   string
	paused bool
}

// glance returns what a list is to show of the alarm.
func (a alarm) glance() glance {
	return glanceOf(a.schedule.GetSpec(), a.schedule.GetState().GetNotes(), a.schedule.GetState().GetPaused())
}

func glanceOf(spec *schedulepb.ScheduleSpec, note string, paused bool) glance {
	var b strings.Builder
	fmt.Fprint(&b, spec.GetTimezoneName())
	for _, i := range spec.GetInterval() {
		fmt.Fprint(&b, " every ", i.GetInterval().AsDuration(), i.GetPhase().AsDuration())
	}
	calendars := spec.GetStructuredCalendar()
	for _, c := range calendars[:min(len(calendars), listedCalendars)] {
		for _, part := range [][]*schedulepb.Range{
			c.GetYear(), c.GetMonth(), c.GetDayOfMonth(), c.GetDayOfWeek(), c.GetHour(), c.GetMinute(), c.GetSecond(),
		} {
			b.WriteByte('/')
			for _, r := range part {
				fmt.Fprint(&b, r.GetStart(), "-", max(r.GetEnd(), r.GetStart()), ":", max(r.GetStep(), 1), ",")
			}
		}
	}
	for _, odd := range []int{
		len(spec.GetExcludeStructuredCalendar()), int(spec.GetJitter().AsDuration()),
		int(spec.GetStartTime().AsTime().Unix()), int(spec.GetEndTime().AsTime().Unix()),
	} {
		fmt.Fprint(&b, " ", odd)
	}
	return glance{spec: b.String(), note: note, paused: paused}
}

// byHand reports whether a person has paused or resumed the schedule in Temporal, and not yet been noticed.
func (a alarm) byHand(have held) bool {
	state := have.schedule.GetState()
	return state.GetPaused() != a.schedule.GetState().GetPaused() && !strings.HasPrefix(state.GetNotes(), notePrefix)
}

// reason says in the ledger what a person has done in Temporal.
func reason(have held) string {
	done := "resumed in Temporal"
	if have.schedule.GetState().GetPaused() {
		done = "paused in Temporal"
	}
	if note := strings.TrimSpace(have.schedule.GetState().GetNotes()); note != "" {
		return automation.Shorten(done+": "+note, maxReasonBytes)
	}
	return done
}
