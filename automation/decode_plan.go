package automation

import (
	"fmt"
	"slices"
	"strings"
	"unicode"

	"github.com/errandhq/errand/internal/strictjson"
)

// MaxActionIDLength is the number of bytes that an action's id may have.
const MaxActionIDLength = 200

// DecodePlan decodes a plan and applies every rule of the format to it. The error is a validation_failed that
// lists all violations of the document; the warnings are about an accepted plan.
//
// A plan reads back as it was sent, defaults that were written out included. Only the order of a step's own
// members and of env is not kept, and strings are spelled in their shortest form.
func DecodePlan(data []byte) (Plan, []Violation, error) {
	var p Plan
	violations, warnings := strictjson.Decode(data, &p)
	if len(violations) > 0 {
		return Plan{}, nil, Invalid(violations...)
	}
	return p, warnings, nil
}

// SupportsPlanVersion reports whether plans of the version can be saved, admitted and executed.
func SupportsPlanVersion(version int) bool { return slices.Contains(SupportedPlanVersions, version) }

// UnmarshalStrict implements [strictjson.Unmarshaler] with every rule of the format.
func (p *Plan) UnmarshalStrict(v strictjson.Value) {
	var doc struct {
		Version strictjson.Value `json:"version" strict:"required"`
		Steps   strictjson.Value `json:"steps" strict:"required"`
	}
	*p = Plan{}
	v.Decode(&doc)
	// As it is stored a plan is no longer than this. What is in a larger one is not worth the work.
	if size := len(v.Raw()); size > MaxPlanBytes {
		v.Report("is %d bytes; a plan may have %d (1 MiB)", size, MaxPlanBytes)
		return
	}
	if doc.Version.Present() && doc.Version.Decode(&p.Version) && !SupportsPlanVersion(p.Version) {
		doc.Version.Report("%d is not a supported plan version; this service supports %s",
			p.Version, list("and", SupportedPlanVersions))
		return // what a step of another version may hold is not known here
	}
	if doc.Steps.Present() {
		p.Steps = readSteps(doc.Steps, p.Version)
	}
}

// readSteps reads the steps of a plan; of version 2, which knows all members, when the version is 0.
func readSteps(v strictjson.Value, version int) []Step {
	if !v.Array() {
		return nil
	}
	var steps []Step
	places := map[string]string{}
	count := 0
	for _, element := range v.Elements() {
		if count++; count > MaxSteps {
			continue
		}
		var step Step
		readStep(element, version, &step)
		steps = append(steps, step)
		if first, taken := places[step.ID]; taken {
			element.Member("id").Report("%q is the id of another step too: %s", step.ID, first)
		} else if step.ID != "" {
			places[step.ID] = strictjson.PathMember(element.Path(), "id")
		}
	}
	if count < 1 || count > MaxSteps {
		v.Report("holds %d steps; a plan has 1 to %d", count, MaxSteps)
	}
	return steps
}

// readStep reads one step. Members that do not obey their rule are reported and stay zero.
func readStep(v strictjson.Value, version int, s *Step) {
	if !v.Object() {
		return
	}
	lane, named := laneOf(v, version)
	present := map[string]bool{}
	for name, member := range v.Members() {
		row := stepMemberNamed(name)
		switch {
		case row == nil:
			member.Unknown(stepMemberNames(lane, version))
		case version == 1 && !row.version1:
			member.Report("needs plan version 2; steps of version 1 have id, actionId and input only")
		case lane != "" && !slices.Contains(row.lanes, lane):
			member.Report("belongs to %s steps; this is %s", list("and", row.lanes), describeLane(lane, named))
		default:
			present[name] = true
			row.read(member, s)
		}
	}
	for _, row := range stepMembers {
		if row.required && !present[row.name] && slices.Contains(row.lanes, lane) {
			v.Missing(row.name)
		}
	}
}

// laneOf returns the lane of a step, "" when its kind is not a known one, and whether the step names it.
func laneOf(v strictjson.Value, version int) (lane StepKind, named bool) {
	kind := v.Member("kind")
	if version == 1 || !kind.Present() {
		return KindAction, false
	}
	for _, lane := range lanes {
		if string(kind.Raw()) == `"`+string(lane)+`"` {
			return lane, true
		}
	}
	return "", true
}

func describeLane(lane StepKind, named bool) string {
	if named {
		return "of kind " + string(lane)
	}
	return "an action, since it has no kind"
}

var (
	lanes        = []StepKind{KindAction, KindCommand, KindScript}
	processLanes = []StepKind{KindCommand, KindScript}
	runtimes     = []Runtime{RuntimeShell, RuntimeNode, RuntimePython}
	treatments   = []Leftovers{LeftoversEnd, LeftoversKeep}
)

// stepMember is one member that a step may have. The reader stores it when it obeys its rule.
type stepMember struct {
	name     string
	lanes    []StepKind
	required bool // in these lanes
	version1 bool
	read     func(v strictjson.Value, s *Step)
}

// stepMembers is the table of the format, in its order.
var stepMembers = []stepMember{
	{name: "id", lanes: lanes, required: true, version1: true, read: readID},
	{name: "kind", lanes: lanes, read: readKind},
	{name: "actionId", lanes: []StepKind{KindAction}, required: true, version1: true, read: readActionID},
	{name: "input", lanes: []StepKind{KindAction}, required: true, version1: true, read: readInput},
	{name: "credential", lanes: []StepKind{KindAction}, read: readCredential},
	{name: "command", lanes: []StepKind{KindCommand}, required: true, read: readCommand},
	{name: "runtime", lanes: []StepKind{KindScript}, required: true, read: readRuntime},
	{name: "source", lanes: []StepKind{KindScript}, required: true, read: readSource},
	{name: "args", lanes: processLanes, read: readArgs},
	{name: "cwd", lanes: processLanes, read: readCwd},
	{name: "env", lanes: processLanes, read: readEnv},
	{name: "stdin", lanes: processLanes, read: readStdin},
	{name: "timeoutMs", lanes: lanes, read: readTimeout},
	{name: "maxOutputBytes", lanes: processLanes, read: readMaxOutput},
	{name: "leftovers", lanes: processLanes, read: readLeftovers},
}

func stepMemberNamed(name string) *stepMember {
	for i := range stepMembers {
		if stepMembers[i].name == name {
			return &stepMembers[i]
		}
	}
	return nil
}

// stepMemberNames returns the members that a step of the lane may have; of any lane when it is "".
func stepMemberNames(lane StepKind, version int) []string {
	var names []string
	for _, row := range stepMembers {
		if (lane == "" || slices.Contains(row.lanes, lane)) && (version != 1 || row.version1) {
			names = append(names, row.name)
		}
	}
	return names
}

var (
	stepIDPattern     = strictjson.Pattern(`^[A-Za-z][A-Za-z0-9_-]{0,63}$`)
	actionIDPattern   = strictjson.Pattern(`^[a-z0-9_-]+(\.[a-z0-9_-]+)+$`)
	credentialPattern = strictjson.Pattern(`^[A-Za-z0-9_.-]{1,64}$`)
	envNamePattern    = strictjson.Pattern(`^[A-Za-z_][A-Za-z0-9_]*$`)
	drivePattern      = strictjson.Pattern(`^[A-Za-z]:[\\/]`)
)

// rule returns a reader of a text that stores it where it belongs when check finds nothing to say against it.
func rule[T ~string](field func(*Step) *T, check func(string) string) func(strictjson.Value, *Step) {
	return func(v strictjson.Value, s *Step) {
		var text string
		if !v.Decode(&text) {
			return
		}
		if refusal := check(text); refusal != "" {
			v.Report("%s", refusal)
			return
		}
		*field(s) = T(text)
	}
}

// matching returns a check of a text against a pattern.
func matching(pattern func(string) bool, refusal string) func(string) string {
	return func(text string) string {
		if pattern(text) {
			return ""
		}
		return refusal
	}
}

// oneOf returns a check of a text against a list.
func oneOf[T ~string](values []T) func(string) string {
	return func(text string) string {
		if slices.Contains(values, T(text)) {
			return ""
		}
		return fmt.Sprintf("must be one of %s", list("or", values))
	}
}

var (
	readID = rule(func(s *Step) *string { return &s.ID },
		matching(stepIDPattern, "must be 1 to 64 letters, digits, _ or -, and start with a letter"))
	readKind       = rule(func(s *Step) *StepKind { return &s.Kind }, oneOf(lanes))
	readActionID   = rule(func(s *Step) *string { return &s.ActionID }, checkActionID)
	readCredential = rule(func(s *Step) *string { return &s.Credential },
		matching(credentialPattern, "must be the name of a credential: 1 to 64 letters, digits, _, . or -"))
	readCommandText = rule(func(s *Step) *string { return &s.Command }, checkCommand)
	readRuntime     = rule(func(s *Step) *Runtime { return &s.Runtime }, oneOf(runtimes))
	readSource      = rule(func(s *Step) *string { return &s.Source }, checkSource)
	readCwd         = rule(func(s *Step) *string { return &s.Cwd }, checkCwd)
	readLeftovers   = rule(func(s *Step) *Leftovers { return &s.Leftovers }, oneOf(treatments))
	readTimeout     = bounded(func(s *Step) *int64 { return &s.TimeoutMs },
		MaxTimeout.Milliseconds(), "milliseconds (7 days)")
	readMaxOutput = bounded(func(s *Step) *int64 { return &s.MaxOutputBytes }, MaxMaxOutputBytes, "bytes (8 MiB)")
)

// bounded returns a reader of a whole number from 1 to most.
func bounded(field func(*Step) *int64, most int64, unit string) func(strictjson.Value, *Step) {
	return func(v strictjson.Value, s *Step) {
		var n int64
		if !v.Decode(&n) {
			return
		}
		if n < 1 || n > most {
			v.Report("must be from 1 to %d %s", most, unit)
			return
		}
		*field(s) = n
	}
}

func checkActionID(id string) string {
	switch {
	case len(id) > MaxActionIDLength:
		return fmt.Sprintf("must be at most %d characters", MaxActionIDLength)
	case !actionIDPattern(id):
		return "must be two or more parts of a-z, 0-9, _ and -, separated by dots, such as channels.notify_user"
	}
	return ""
}

// checkCommand allows a bare name and an absolute path, on POSIX and on Windows: which machine executes the
// step may change, and a name with a slash of either kind is relative to a directory on one of them.
func checkCommand(command string) string {
	switch {
	case strings.TrimSpace(command) == "":
		return "must not be empty"
	case strings.ContainsFunc(command, unicode.IsControl):
		return "must not contain control characters"
	case len(command) > MaxArgumentBytes:
		return fmt.Sprintf("is %d bytes; at most %d are possible", len(command), MaxArgumentBytes)
	case strings.ContainsAny(command, `/\`) && !absolutePath(command):
		return "must be a bare name, to be looked up on the machine's PATH, or an absolute path; " +
			"a relative path would depend on the working directory"
	}
	return ""
}

func checkSource(source string) string {
	switch {
	case source == "":
		return "must not be empty"
	case len(source) > MaxSourceBytes:
		return fmt.Sprintf("is %d bytes; a script may have %d (96 KiB)", len(source), MaxSourceBytes)
	}
	return ""
}

func checkCwd(cwd string) string {
	if absolutePath(cwd) {
		return ""
	}
	if strings.HasPrefix(cwd, "~") || strings.HasPrefix(cwd, "$") {
		return "must be an absolute path; nothing is expanded in it. " +
			"Without cwd a step runs in the home directory of the machine's user"
	}
	return `must be an absolute path: /… or a drive such as C:\…`
}

// absolutePath reports whether a path is absolute on POSIX (it starts with /) or on Windows (it starts with a
// drive and a slash of either kind). Windows paths without a drive depend on the current one.
func absolutePath(path string) bool {
	return strings.HasPrefix(path, "/") || drivePattern(path)
}

func readCommand(v strictjson.Value, s *Step) {
	readCommandText(v, s)
	if strings.Contains(s.Command, " ") && !absolutePath(s.Command) {
		v.Warn(v.Path(), "is the name of one program and not a command line: arguments belong into args, "+
			"shell syntax into a script step")
	}
}

func readArgs(v strictjson.Value, s *Step) {
	if !v.Array() {
		return
	}
	s.Args = []string{}
	for _, element := range v.Elements() {
		var arg string
		if !element.Decode(&arg) {
			continue
		}
		if n := len(arg); n > MaxArgumentBytes {
			element.Report("is %d bytes; one argument may have %d", n, MaxArgumentBytes)
		}
		s.Args = append(s.Args, arg)
	}
}

func readEnv(v strictjson.Value, s *Step) {
	if !v.Object() {
		return
	}
	s.Env = map[string]string{}
	for name, member := range v.Members() {
		var value string
		if !member.Decode(&value) {
			continue
		}
		if refusal := checkEnv(name, value); refusal != "" {
			member.Report("%s", refusal)
			continue
		}
		s.Env[name] = value
	}
}

func checkEnv(name, value string) string {
	switch {
	case !envNamePattern(name):
		return "is not a name for a variable: letters, digits and _, not starting with a digit"
	case strings.HasPrefix(name, "ERRAND_"), strings.HasPrefix(name, "AMALGM_"):
		return "has a reserved prefix; variables that start with ERRAND_ or AMALGM_ are set by the machine"
	case len(name)+1+len(value) > MaxArgumentBytes:
		return fmt.Sprintf("is %d bytes as NAME=value; one variable may have %d",
			len(name)+1+len(value), MaxArgumentBytes)
	}
	return ""
}

func readInput(v strictjson.Value, s *Step) {
	s.Input = v.Raw()
	warnOfTemplates(v)
}

func readStdin(v strictjson.Value, s *Step) {
	s.Stdin = v.Raw()
	warnOfTemplates(v)
}

// list joins values for a sentence: "a", "a and b", "a, b and c".
func list[T any](conjunction string, values []T) string {
	texts := make([]string, len(values))
	for i, v := range values {
		texts[i] = fmt.Sprint(v)
	}
	if len(texts) < 2 {
		return strings.Join(texts, "")
	}
	last := len(texts) - 1
	return strings.Join(texts[:last], ", ") + " " + conjunction + " " + texts[last]
}
