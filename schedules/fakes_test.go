package schedules_test

import (
	"cmp"
	"context"
	"encoding/binary"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	schedulepb "go.temporal.io/api/schedule/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/grpc"
	"google.golang.org/protobuf/proto"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/schedule"
	"github.com/errandhq/errand/internal/logtest"
	"github.com/errandhq/errand/schedules"
)

const installation = "install"

// row is a schedule in the ledger of a test.
type row struct {
	sync  automation.ScheduleSync
	state schedule.State
	wake  time.Time
}

// ledger is a ledger in memory. Its decisions are those of the core.
type ledger struct {
	mu      sync.Mutex
	rows    map[string]*row
	leases  map[string]leaseRow
	broken  map[string]error // schedules that cannot be decided
	calls   map[string]int   // decisions by schedule
	running int              // decisions that are being made
	most    int              // how many were being made at once
	runs    []string         // admitted runs: schedule and instant
	told    []string         // pauses and their ends that were made in Temporal
	before  func()           // is called once, before the ledger is told of one
}

type leaseRow struct {
	holder string
	until  time.Time
}

func newLedger() *ledger {
	return &ledger{rows: map[string]*row{}, leases: map[string]leaseRow{}, broken: map[string]error{}, calls: map[string]int{}}
}

// add adds a schedule that was created just now.
func (l *ledger) add(t *testing.T, id string, spec schedule.Spec, policy schedule.Policy) {
	t.Helper()
	now := time.Now()
	timing, err := schedule.Restore(spec, now)
	if err != nil {
		t.Fatal(err)
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	r := &row{state: schedule.New(id, timing, policy, now), sync: automation.ScheduleSync{
		ID: id, AutomationID: "a-" + id, AutomationName: "Automation " + id, MachineID: "m", CreatedAt: now, Spec: spec, Generation: 1,
	}}
	if next, ok := timing.Next(now); ok {
		r.wake = r.state.JitteredAt(next)
	}
	l.rows[id] = r
}

// edit changes a schedule as a user does.
func (l *ledger) edit(id string, change func(*automation.ScheduleSync)) {
	l.mu.Lock()
	defer l.mu.Unlock()
	change(&l.rows[id].sync)
	l.rows[id].sync.Generation++
}

// notices returns the pauses and their ends that the ledger was told of.
func (l *ledger) notices() []string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return slices.Clone(l.told)
}

func (l *ledger) row(id string) automation.ScheduleSync {
	l.mu.Lock()
	defer l.mu.Unlock()
	if r := l.rows[id]; r != nil {
		return r.sync
	}
	return automation.ScheduleSync{}
}

func (l *ledger) Lease(_ context.Context, name, holder string, ttl time.Duration) (bool, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if have := l.leases[name]; have.holder != holder && have.until.After(time.Now()) {
		return false, nil
	}
	l.leases[name] = leaseRow{holder, time.Now().Add(ttl)}
	return true, nil
}

func (l *ledger) DecideSchedule(_ context.Context, id string) (automation.ScheduleDecision, error) {
	l.mu.Lock()
	l.calls[id]++
	l.running++
	l.most = max(l.most, l.running)
	l.mu.Unlock()
	time.Sleep(time.Millisecond) // of the bubble's time: what a transaction takes
	l.mu.Lock()
	defer l.mu.Unlock()
	l.running--
	r := l.rows[id]
	if err := l.broken[id]; err != nil || r == nil {
		return automation.ScheduleDecision{}, err
	}
	decision := schedule.Decide(r.state, time.Now())
	r.state = r.state.Apply(decision)
	if r.wake = decision.NextWake; r.state.Status == schedule.StatusFinished && !r.sync.Paused {
		r.sync.Paused, r.sync.Note = true, "finished"
		r.sync.Generation++
	}
	done := automation.ScheduleDecision{NextWake: decision.NextWake}
	for _, instant := range decision.Admit {
		run := id + "@" + instant.At.Format(time.RFC3339)
		l.runs, done.Admitted = append(l.runs, run), append(done.Admitted, run)
		if instant.CancelsEarlier {
			done.Cancelled = append(done.Cancelled, automation.Cancellation{Run: automation.Run{ID: "earlier", Generation: 3}, Begun: "step"})
		}
	}
	return done, nil
}

func (l *ledger) DueSchedules(_ context.Context, limit int) ([]string, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	var due []*row
	for _, r := range l.rows {
		if !r.wake.IsZero() && !r.wake.After(time.Now()) {
			due = append(due, r)
		}
	}
	slices.SortFunc(due, func(a, b *row) int {
		return cmp.Or(a.wake.Compare(b.wake), strings.Compare(a.sync.ID, b.sync.ID))
	})
	var ids []string
	for _, r := range due[:min(limit, len(due))] {
		ids = append(ids, r.sync.ID)
	}
	return ids, nil
}

func (l *ledger) NextScheduleWake(context.Context) (next time.Time, err error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, r := range l.rows {
		if !r.wake.IsZero() && (next.IsZero() || r.wake.Before(next)) {
			next = r.wake
		}
	}
	return next, nil
}

// sorted returns copies of the rows that a condition chooses, in the order of their ids.
func (l *ledger) sorted(limit int, choose func(automation.ScheduleSync) bool) []automation.ScheduleSync {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []automation.ScheduleSync
	for _, id := range slices.Sorted(maps.Keys(l.rows)) {
		if s := l.rows[id].sync; choose(s) && len(list) < limit {
			list = append(list, s)
		}
	}
	return list
}

func (l *ledger) UnsyncedSchedules(_ context.Context, engineID string, limit int) ([]automation.ScheduleSync, error) {
	return l.sorted(limit, func(s automation.ScheduleSync) bool {
		return s.Generation != s.SyncedGeneration || s.EngineID != engineID
	}), nil
}

func (l *ledger) ScheduleSyncs(_ context.Context, after string, limit int) ([]automation.ScheduleSync, error) {
	return l.sorted(limit, func(s automation.ScheduleSync) bool { return s.ID > after && !s.Removed }), nil
}

func (l *ledger) ScheduleSync(_ context.Context, id string) (automation.ScheduleSync, bool, error) {
	s := l.row(id)
	return s, s.ID != "", nil
}

func (l *ledger) MarkScheduleSynced(_ context.Context, id string, generation int64, engineID string) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	r := l.rows[id]
	if r == nil || r.sync.Generation != generation {
		return nil
	}
	r.sync.SyncedGeneration, r.sync.EngineID = generation, engineID
	if r.sync.Removed {
		delete(l.rows, id)
	}
	return nil
}

func (l *ledger) PauseSchedule(_ context.Context, id string, generation int64, paused bool, reason string) error {
	if l.before != nil {
		l.before()
		l.before = nil
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.told = append(l.told, fmt.Sprint(id, " ", paused, " ", reason))
	r := l.rows[id]
	if r.sync.Generation != generation {
		return nil
	}
	switch before := r.state.Status; {
	case paused:
		r.state = r.state.Pause(reason)
		r.sync.Paused, r.sync.Note = true, reason
	case before == schedule.StatusPaused:
		r.state = r.state.Resume(time.Now())
		r.sync.Paused, r.sync.Note = false, ""
	} // disabled or finished: it stays so, and the engine is told
	r.sync.Generation++
	return nil
}

// temporal is a Temporal in memory. Its methods are those that the package calls.
type temporal struct {
	workflowservice.WorkflowServiceClient

	mu       sync.Mutex
	id       string
	down     bool
	alarms   map[string]*alarm
	listed   map[string]*alarm // what lists show, when it is behind
	refused  map[string]error  // schedules that it does not take
	writes   []string
	looks    int    // how many schedules were described
	noSelect bool   // whether it cannot select schedules by id
	before   func() // is called before an update
}

type alarm struct {
	request *workflowservice.CreateScheduleRequest
	token   uint64
}

func newTemporal() *temporal {
	return &temporal{id: "engine", alarms: map[string]*alarm{}, refused: map[string]error{}}
}

var errDown = automation.Errorf(automation.CodeEngineUnavailable, "down")

func (f *temporal) ID() string {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.id
}

func (f *temporal) Namespace() string { return "namespace" }

func (f *temporal) Check(context.Context) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.down {
		return errDown
	}
	return nil
}

func (f *temporal) Call(ctx context.Context, doing string, call func(context.Context, workflowservice.WorkflowServiceClient) error) error {
	if err := f.Check(ctx); err != nil {
		return err
	}
	if err := call(ctx, f); err != nil {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return nil
}

func (f *temporal) Attributes(automationID, machineID string, trigger automation.TriggerKind) map[string]string {
	return map[string]string{"ErrandAutomationId": automationID, "ErrandMachineId": machineID, "ErrandTrigger": string(trigger)}
}

func (f *temporal) CreateSchedule(
	_ context.Context, request *workflowservice.CreateScheduleRequest, _ ...grpc.CallOption,
) (*workflowservice.CreateScheduleResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := f.refused[request.GetScheduleId()]; err != nil {
		return nil, err
	}
	if f.alarms[request.GetScheduleId()] != nil {
		return nil, serviceerror.NewWorkflowExecutionAlreadyStarted("there", "", "")
	}
	f.writes = append(f.writes, "create "+request.GetScheduleId())
	f.alarms[request.GetScheduleId()] = &alarm{request: proto.CloneOf(request), token: 1}
	return &workflowservice.CreateScheduleResponse{}, nil
}

func (f *temporal) DescribeSchedule(
	_ context.Context, request *workflowservice.DescribeScheduleRequest, _ ...grpc.CallOption,
) (*workflowservice.DescribeScheduleResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.looks++
	a := f.alarms[request.GetScheduleId()]
	if a == nil {
		return nil, serviceerror.NewNotFound("none")
	}
	r := proto.CloneOf(a.request)
	return &workflowservice.DescribeScheduleResponse{
		Schedule: r.GetSchedule(), Memo: r.GetMemo(), SearchAttributes: r.GetSearchAttributes(),
		ConflictToken: binary.BigEndian.AppendUint64(nil, a.token),
	}, nil
}

func (f *temporal) UpdateSchedule(
	_ context.Context, request *workflowservice.UpdateScheduleRequest, _ ...grpc.CallOption,
) (*workflowservice.UpdateScheduleResponse, error) {
	f.mu.Lock()
	before := f.before
	f.before = nil
	f.mu.Unlock()
	if before != nil {
		before()
	}
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.alarms[request.GetScheduleId()]
	if a == nil {
		return nil, serviceerror.NewNotFound("none")
	}
	f.writes = append(f.writes, "update "+request.GetScheduleId())
	if binary.BigEndian.Uint64(request.GetConflictToken()) == a.token { // else Temporal drops it without a word
		a.request.Schedule, a.request.SearchAttributes = proto.CloneOf(request.GetSchedule()), request.GetSearchAttributes()
		a.token++
	}
	return &workflowservice.UpdateScheduleResponse{}, nil
}

func (f *temporal) DeleteSchedule(
	_ context.Context, request *workflowservice.DeleteScheduleRequest, _ ...grpc.CallOption,
) (*workflowservice.DeleteScheduleResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.alarms[request.GetScheduleId()] == nil {
		return nil, serviceerror.NewNotFound("none")
	}
	f.writes = append(f.writes, "delete "+request.GetScheduleId())
	delete(f.alarms, request.GetScheduleId())
	return &workflowservice.DeleteScheduleResponse{}, nil
}

func (f *temporal) ListSchedules(
	_ context.Context, request *workflowservice.ListSchedulesRequest, _ ...grpc.CallOption,
) (*workflowservice.ListSchedulesResponse, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	prefix := ""
	if query := request.GetQuery(); query != "" {
		if f.noSelect {
			return nil, serviceerror.NewInvalidArgument("unknown ScheduleId")
		}
		prefix = strings.TrimSuffix(strings.TrimPrefix(query, `ScheduleId STARTS_WITH "`), `"`)
	}
	shown := f.alarms
	if f.listed != nil {
		shown = f.listed
	}
	answer := &workflowservice.ListSchedulesResponse{}
	for _, id := range slices.Sorted(maps.Keys(shown)) {
		if !strings.HasPrefix(id, prefix) || id <= string(request.GetNextPageToken()) {
			continue
		}
		if len(answer.GetSchedules()) == int(request.GetMaximumPageSize()) {
			answer.NextPageToken = []byte(answer.GetSchedules()[len(answer.GetSchedules())-1].GetScheduleId())
			break
		}
		s := proto.CloneOf(shown[id].request.GetSchedule())
		s.Spec.StructuredCalendar = s.GetSpec().GetStructuredCalendar()[:min(10, len(s.GetSpec().GetStructuredCalendar()))]
		answer.Schedules = append(answer.Schedules, &schedulepb.ScheduleListEntry{ScheduleId: id, Info: &schedulepb.ScheduleListInfo{
			Spec: s.GetSpec(), Notes: s.GetState().GetNotes(), Paused: s.GetState().GetPaused(),
		}})
	}
	return answer, nil
}

// byHand changes a schedule of ours as somebody does who works in Temporal.
func (f *temporal) byHand(id string, change func(*schedulepb.Schedule)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	a := f.alarms[automation.EngineScheduleID(installation, id)]
	change(a.request.GetSchedule())
	a.token++
}

// pauseByHand pauses or resumes a schedule with a note.
func (f *temporal) pauseByHand(id string, paused bool, note string) {
	f.byHand(id, func(s *schedulepb.Schedule) { s.State.Paused, s.State.Notes = paused, note })
}

func (f *temporal) schedule(id string) *schedulepb.Schedule {
	f.mu.Lock()
	defer f.mu.Unlock()
	if a := f.alarms[automation.EngineScheduleID(installation, id)]; a != nil {
		return proto.CloneOf(a.request.GetSchedule())
	}
	return nil
}

// written returns what was written since the last call, without our prefix.
func (f *temporal) written() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	var list []string
	for _, w := range f.writes {
		list = append(list, strings.Replace(w, automation.EngineSchedulePrefix(installation), "", 1))
	}
	f.writes = nil
	return list
}

// looked returns how many schedules were described since the last call.
func (f *temporal) looked() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	looks := f.looks
	f.looks = 0
	return looks
}

func (f *temporal) set(change func()) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change()
}

// world is the package over a ledger and a Temporal in memory, in a bubble of fake time.
type world struct {
	ledger   *ledger
	temporal *temporal
	log      *logtest.Buffer
	options  schedules.Options
}

func newWorld() *world {
	w := &world{ledger: newLedger(), temporal: newTemporal(), log: &logtest.Buffer{}}
	w.options = w.server("me")
	return w
}

// server returns the options of one of several servers.
func (w *world) server(holder string) schedules.Options {
	return schedules.Options{
		Store: w.ledger, Engine: w.temporal, InstallationID: installation, Holder: holder, Now: time.Now,
		NewID: func() string { return "request" }, Logger: slog.New(slog.NewTextHandler(w.log, nil)),
	}
}

// run runs a part until check returns.
func run(t *testing.T, part interface{ Run(ctx context.Context) }, check func()) {
	t.Helper()
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		part.Run(ctx)
		close(done)
	}()
	synctest.Wait()
	check()
	stop()
	<-done
}

// pass lets time go by in the bubble.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

var nightly = schedule.Spec{Cron: "30 2 * * *", Timezone: "Europe/Berlin"}
