package automation_test

import (
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/strictjson"
)

// truncated is the form of a result that the journal cannot hold.
type truncated struct {
	Truncated     bool            `json:"truncated" strict:"required"`
	OriginalBytes int             `json:"originalBytes" strict:"required"`
	Preview       json.RawMessage `json:"preview" strict:"required"`
}

// journalled fails unless a bounded result can be reported to the ledger and stored there.
func journalled(t *testing.T, result json.RawMessage) {
	t.Helper()
	if len(result) > automation.MaxResultBytes {
		t.Errorf("the result has %d bytes", len(result))
	}
	report := fmt.Sprintf(`{"runId":"r","stepId":"s","execution":1,"outcome":"completed","result":%s}`, result)
	var finish automation.FinishRequest
	if violations := strictjson.Unmarshal([]byte(report), &finish); violations != nil {
		t.Errorf("the result cannot be reported: %v", violations)
	}
	if string(finish.Result) != string(result) {
		t.Error("the result changes on the way to the ledger")
	}
}

func TestBoundResultKeepsWhatFits(t *testing.T) {
	t.Parallel()
	largest := `"` + strings.Repeat("x", automation.MaxResultBytes-2) + `"`
	deepest := strings.Repeat(`{"a":`, 62) + `[]` + strings.Repeat(`}`, 62)
	for _, tt := range []struct{ name, result, want string }{
		{"object", `{"b": 1.0, "a": [1e3, null]}`, `{"b":1.0,"a":[1e3,null]}`},
		{"null", `null`, `null`},
		{"text", ` "\u003c" `, `"<"`},
		{"exactly 1 MiB", largest, largest},
		{"deepest", deepest, deepest},
		{"more than 1 MiB of spaces", strings.Repeat(" ", 2<<20) + `{}`, `{}`},
		{"nothing", ``, ``},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			for _, kind := range []automation.StepKind{automation.KindAction, automation.KindCommand, automation.KindScript} {
				if got := automation.BoundResult(kind, json.RawMessage(tt.result)); string(got) != tt.want {
					t.Errorf("bounded result of kind %s is %.200s, want %.200s", kind, got, tt.want)
				}
			}
		})
	}
}

func TestBoundResultPreviews(t *testing.T) {
	t.Parallel()
	long := strings.Repeat("x", 2<<20)
	cut := strings.Repeat("x", 16<<10-len("…[2080794 bytes omitted]")) + "…[2080794 bytes omitted]"
	numbers := `[` + strings.Repeat("12345,", 1<<18) + `0]`
	deep := strings.Repeat(`[`, 64) + strings.Repeat(`]`, 64)
	for _, tt := range []struct{ name, result, preview string }{
		{"text", `"` + long + `"`, `"` + cut + `"`},
		{"members after a long one", `{"body":"` + long + `","status":200}`, `{"body":"` + cut + `","status":200}`},
		{"long name", `{"` + long + `":1}`, `{"` + cut + `":1}`},
		{"prefix of an array", numbers, `[` + strings.Repeat("12345,", 43690) + `0]`},
		{"nested too deeply", deep, strings.Repeat(`[`, 62) + `"…"` + strings.Repeat(`]`, 62)},
		{"members beside what is too deep", `{"a":` + deep + `,"b":1}`, `{"a":` + strings.Repeat(`[`, 61) + `"…"` + strings.Repeat(`]`, 61) + `,"b":1}`},
		{"10,000 levels", strings.Repeat(`[`, 10_000) + strings.Repeat(`]`, 10_000), strings.Repeat(`[`, 62) + `"…"` + strings.Repeat(`]`, 62)},
		{"duplicate members", `{"a":1,"a":{"b":2},"c":3}`, `{"a":1,"c":3}`},
		{"invalid UTF-8", "[\"a\xffb\",\"\\ud800\"]", "[\"a\uFFFDb\",\"\uFFFD\"]"},
		{"not JSON", "hello \xff world", `"hello ` + "\uFFFD" + ` world"`},
		{"cut JSON", `{"a":[1,`, `"{\"a\":[1,"`},
		{"more than one value", `{} {}`, `"{} {}"`},
		{"blank", ` `, `" "`},
		{"huge number", `[` + strings.Repeat("1", 2<<20) + `]`, `[]`},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			got := automation.BoundResult(automation.KindAction, json.RawMessage(tt.result))
			journalled(t, got)
			var form truncated
			if violations := strictjson.Unmarshal(got, &form); violations != nil {
				t.Fatalf("the result is %.200s: %v", got, violations)
			}
			if !form.Truncated || form.OriginalBytes != len(tt.result) {
				t.Errorf("truncated %t with %d bytes, want true with %d", form.Truncated, form.OriginalBytes, len(tt.result))
			}
			want := tt.preview
			if tt.name == "prefix of an array" {
				want = strings.TrimSuffix(want, `,0]`) + `]`
			}
			if string(form.Preview) != want {
				t.Errorf("preview of %d bytes is %.100s…, want %d bytes, %.100s…", len(form.Preview), form.Preview, len(want), want)
			}
		})
	}
}

// TestBoundResultIsAlwaysJournalled bounds random, often broken results.
func TestBoundResultIsAlwaysJournalled(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(3, 4))
	for range 12 {
		result := largeResult(t, rng)
		got := automation.BoundResult(automation.KindAction, result)
		journalled(t, got)
		if again := automation.BoundResult(automation.KindAction, got); string(again) != string(got) {
			t.Error("a bounded result is bounded again")
		}
		compact, violations := strictjson.Compact(result)
		if violations == nil && len(compact) <= automation.MaxResultBytes {
			if string(got) != string(compact) {
				t.Errorf("a result of %d bytes was changed", len(compact))
			}
			continue
		}
		var form truncated
		if violations := strictjson.Unmarshal(got, &form); violations != nil || form.OriginalBytes != len(result) {
			t.Errorf("a result of %d bytes became %.100s (%v)", len(result), got, violations)
		}
	}
}

// largeResult returns a JSON value of up to some mebibytes, every third time with one byte changed or cut off.
func largeResult(t *testing.T, rng *rand.Rand) json.RawMessage {
	t.Helper()
	var values []any
	for range 1 + rng.IntN(20) {
		value := randomValue(rng, 4)
		if rng.IntN(4) == 0 {
			value = strings.Repeat(randomText(rng, 20), rng.IntN(15_000))
		}
		values = append(values, map[string]any{randomText(rng, 1+rng.IntN(4)): value})
	}
	result := encode(t, values)
	switch rng.IntN(6) {
	case 0:
		result[rng.IntN(len(result))] = byte(rng.IntN(256))
	case 1:
		result = result[:rng.IntN(len(result))]
	}
	return result
}

func TestBoundProcessResultKeepsWhatFits(t *testing.T) {
	t.Parallel()
	code := 3
	got := automation.BoundProcessResult(automation.ProcessResult{
		ExitCode: &code, Stdout: "<ok>\n", StdoutBytes: 5, StderrTruncated: true, DurationMs: 41, Leftovers: 2,
	})
	want := `{"exitCode":3,"signal":null,"stdout":"<ok>\n","stderr":"","stdoutBytes":5,"stderrBytes":0,` +
		`"stdoutTruncated":false,"stderrTruncated":true,"durationMs":41,"leftovers":2}`
	if string(got) != want {
		t.Errorf("result is\n%s, want\n%s", got, want)
	}
	journalled(t, got)
}

func TestBoundProcessResultShortensTheMiddle(t *testing.T) {
	t.Parallel()
	numbered := func(n int) string {
		var b strings.Builder
		for i := range n {
			fmt.Fprintf(&b, "%07d\n", i)
		}
		return b.String()
	}
	for _, tt := range []struct {
		name           string
		stdout, stderr string
		cutStdout      bool
		cutStderr      bool
		least          int // bytes of the whole
	}{
		{"stdout alone", numbered(1 << 18), "warning\n", true, false, 1<<20 - 100},
		{"stderr alone", "ok\n", numbered(1 << 18), false, true, 1<<20 - 100},
		{"both", numbered(1 << 18), numbered(1 << 19), true, true, 1<<20 - 100},
		{"one that just fits", strings.Repeat("x", 500<<10), numbered(1 << 18), false, true, 1<<20 - 100},
		{"control characters", strings.Repeat("\x01\x02", 1<<20), "", true, false, 1<<20 - 100},
		{"quotes", strings.Repeat(`"\`, 1<<20), strings.Repeat("é", 1<<20), true, true, 1<<20 - 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			r := automation.ProcessResult{
				Stdout: tt.stdout, Stderr: tt.stderr, StdoutBytes: int64(len(tt.stdout)), StderrBytes: int64(len(tt.stderr)),
			}
			encoded := automation.BoundProcessResult(r)
			journalled(t, encoded)
			if len(encoded) < tt.least {
				t.Errorf("only %d bytes are left", len(encoded))
			}
			got := decodeProcessResult(t, encoded)
			if got.StdoutTruncated != tt.cutStdout || got.StderrTruncated != tt.cutStderr {
				t.Errorf("truncated %t and %t, want %t and %t", got.StdoutTruncated, got.StderrTruncated, tt.cutStdout, tt.cutStderr)
			}
			checkStream(t, tt.stdout, got.Stdout, tt.cutStdout)
			checkStream(t, tt.stderr, got.Stderr, tt.cutStderr)
		})
	}
}

func decodeProcessResult(t *testing.T, encoded json.RawMessage) automation.ProcessResult {
	t.Helper()
	var r automation.ProcessResult
	if violations := strictjson.Unmarshal(encoded, &r); violations != nil {
		t.Fatalf("not a process result: %v", violations)
	}
	return r
}

var marker = regexp.MustCompile(`\n…\[([0-9]+) bytes omitted\]…\n`)

// checkStream compares a stream with what is left of it.
func checkStream(t *testing.T, before, after string, cut bool) {
	t.Helper()
	if !cut {
		if after != before {
			t.Errorf("a stream of %d bytes was changed", len(before))
		}
		return
	}
	at := marker.FindStringSubmatchIndex(after)
	if at == nil {
		t.Fatalf("no marker in %d bytes", len(after))
	}
	head, tail := after[:at[0]], after[at[1]:]
	if !strings.HasPrefix(before, head) || !strings.HasSuffix(before, tail) || head == "" || tail == "" {
		t.Errorf("%d and %d bytes are not the ends of the stream", len(head), len(tail))
	}
	if n, err := strconv.Atoi(after[at[2]:at[3]]); err != nil || n != len(before)-len(head)-len(tail) {
		t.Errorf("the marker says %s bytes, and %d are missing", after[at[2]:at[3]], len(before)-len(head)-len(tail))
	}
}

func TestBoundProcessResultCutsOnceMore(t *testing.T) {
	t.Parallel()
	// What a machine kept of 100 MB: the first and the last mebibyte, with a line that only looks like the marker.
	head := "\n…[7 bytes omitted]…\n" + strings.Repeat("h", 1<<20)
	tail := strings.Repeat("\x01", 1<<20)
	const total = 100_000_000
	stream := head + fmt.Sprintf("\n…[%d bytes omitted]…\n", total-len(head)-len(tail)) + tail
	encoded := automation.BoundProcessResult(automation.ProcessResult{
		Stdout: stream, StdoutBytes: total, StdoutTruncated: true,
	})
	journalled(t, encoded)
	got := decodeProcessResult(t, encoded)
	found := marker.FindAllStringSubmatchIndex(got.Stdout, -1)
	if len(found) != 2 {
		t.Fatalf("%d markers, want the one that the program printed and one more", len(found))
	}
	at := found[1]
	kept := at[0] + len(got.Stdout) - at[1]
	if n := got.Stdout[at[2]:at[3]]; n != strconv.Itoa(total-kept) {
		t.Errorf("the marker says %s bytes, and %d are missing", n, total-kept)
	}
	if got.StdoutBytes != total {
		t.Errorf("stdoutBytes is %d", got.StdoutBytes)
	}
}

func TestBoundProcessResultCountsReplacedBytes(t *testing.T) {
	t.Parallel()
	// The program wrote 2 MiB of 0x00 and 0xff: each is shown as a character of three bytes.
	const total = 2 << 20
	got := decodeProcessResult(t, automation.BoundProcessResult(automation.ProcessResult{
		Stdout: strings.Repeat("\u2400\uFFFD", total/2), StdoutBytes: total,
	}))
	at := marker.FindStringSubmatchIndex(got.Stdout)
	if at == nil {
		t.Fatal("no marker")
	}
	kept := utf8.RuneCountInString(got.Stdout[:at[0]] + got.Stdout[at[1]:])
	if n := got.Stdout[at[2]:at[3]]; n != strconv.Itoa(total-kept) {
		t.Errorf("the marker says %s bytes, and %d are missing", n, total-kept)
	}
}

// TestBoundProcessResultProperties bounds random process results: never over, valid, scalars kept, true counts.
func TestBoundProcessResultProperties(t *testing.T) {
	t.Parallel()
	rng := rand.New(rand.NewPCG(5, 6))
	for range 10 {
		r := randomProcessResult(rng)
		encoded := automation.BoundProcessResult(r)
		journalled(t, encoded)
		got := decodeProcessResult(t, encoded)
		scalars := got
		scalars.Stdout, scalars.Stderr = r.Stdout, r.Stderr
		scalars.StdoutTruncated, scalars.StderrTruncated = r.StdoutTruncated, r.StderrTruncated
		if diff := cmp.Diff(r, scalars); diff != "" {
			t.Errorf("scalars (-want +got):\n%.500s", diff)
		}
		checkStream(t, r.Stdout, got.Stdout, got.StdoutTruncated)
		checkStream(t, r.Stderr, got.Stderr, got.StderrTruncated)
		plain, err := strictjson.Marshal(r)
		if err != nil {
			t.Fatal(err)
		}
		if cut := got.StdoutTruncated || got.StderrTruncated; cut != (len(plain) > automation.MaxResultBytes) {
			t.Errorf("a result of %d bytes is cut: %t", len(plain), cut)
		}
		if viaKind := automation.BoundResult(automation.KindScript, plain); string(viaKind) != string(encoded) {
			t.Error("BoundResult does not treat it as a process result")
		}
		if again := automation.BoundResult(automation.KindCommand, encoded); string(again) != string(encoded) {
			t.Error("a bounded result is bounded again")
		}
	}
}

func randomProcessResult(rng *rand.Rand) automation.ProcessResult {
	r := automation.ProcessResult{
		Stdout: randomStream(rng), Stderr: randomStream(rng), DurationMs: rng.Int64(), Leftovers: rng.IntN(10),
	}
	r.StdoutBytes, r.StderrBytes = int64(len(r.Stdout)), int64(len(r.Stderr))
	if rng.IntN(2) == 0 {
		code := rng.IntN(256)
		r.ExitCode = &code
	} else {
		signal := "SIGKILL"
		r.Signal = &signal
	}
	return r
}

// randomStream returns nothing, something short, or up to about 1 MiB of a few characters that escape differently.
func randomStream(rng *rand.Rand) string {
	switch rng.IntN(4) {
	case 0:
		return ""
	case 1:
		return plainText(rng, rng.IntN(100))
	}
	return strings.Repeat(plainText(rng, 1+rng.IntN(50)), rng.IntN(12_000))
}

// plainText is randomText without what stands for other bytes.
func plainText(rng *rand.Rand, n int) string {
	return strings.NewReplacer("\uFFFD", "x", "\u2400", "y").Replace(randomText(rng, n))
}

func TestBoundResultOfAProcessThatIsNone(t *testing.T) {
	t.Parallel()
	name := strings.Repeat("K", 2<<20)
	odd := encode(t, automation.ProcessResult{Signal: &name})
	for _, result := range []json.RawMessage{odd, encode(t, map[string]string{"other": name})} {
		got := automation.BoundResult(automation.KindCommand, result)
		journalled(t, got)
		var form truncated
		if violations := strictjson.Unmarshal(got, &form); violations != nil || !form.Truncated {
			t.Errorf("result is %.100s: %v", got, violations)
		}
	}
}

func TestStepErrorBounded(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct{ name, message, want string }{
		{"short", "a\nb é", "a\nb é"},
		{"NUL and invalid bytes", "a\x00b\xff\xfec", "a\u2400b\uFFFD\uFFFDc"},
		{"long", strings.Repeat("é", 8<<10), strings.Repeat("é", 4084) + "…[8216 bytes omitted]"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			e := &automation.StepError{Code: automation.StepErrActionFailed, Message: tt.message}
			got := e.Bounded()
			if got.Code != e.Code || got.Message != tt.want || len(got.Message) > automation.MaxMessageBytes {
				t.Errorf("bounded to %d bytes: %.60q…%q", len(got.Message), got.Message, got.Message[max(0, len(got.Message)-30):])
			}
			if e.Message != tt.message {
				t.Error("the original was changed")
			}
		})
	}
	if (*automation.StepError)(nil).Bounded() != nil {
		t.Error("no error became one")
	}
}
