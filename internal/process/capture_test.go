package process_test

import (
	"fmt"
	"math/rand/v2"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/errandhq/errand/internal/process"
)

func capture(limit int, chunks ...string) process.Output {
	c := process.NewCapture(limit)
	for _, chunk := range chunks {
		_, _ = c.Write([]byte(chunk))
	}
	return c.Output()
}

func TestCaptureKeepsHeadAndTail(t *testing.T) {
	t.Parallel()
	a := strings.Repeat
	tests := []struct {
		name  string
		limit int
		in    []string
		want  process.Output
	}{
		{"nothing", 10, nil, process.Output{}},
		{"exactly the limit", 6, []string{"abc", "def"}, process.Output{Text: "abcdef", Bytes: 6}},
		{"one byte over", 6, []string{"abcdefg"}, process.Output{Text: "abc\n…[1 bytes omitted]…\nefg", Bytes: 7, Truncated: true}},
		{
			"204,801 bytes under a limit of 204,800", 204_800,
			[]string{a("x", 204_801)},
			process.Output{Text: a("x", 102_400) + "\n…[1 bytes omitted]…\n" + a("x", 102_400), Bytes: 204_801, Truncated: true},
		},
		{"an odd limit", 5, []string{"abcdefgh"}, process.Output{Text: "abc\n…[3 bytes omitted]…\ngh", Bytes: 8, Truncated: true}},
		{"a limit of one", 1, []string{"ab", "c"}, process.Output{Text: "a\n…[2 bytes omitted]…\n", Bytes: 3, Truncated: true}},
		{"NUL", 10, []string{"a\x00b"}, process.Output{Text: "a␀b", Bytes: 3}},
		{"invalid UTF-8", 10, []string{"a\xff\xfeb\xc3"}, process.Output{Text: "a\uFFFD\uFFFDb\uFFFD", Bytes: 5}},
		{"a character in two writes", 10, []string{"\xe2\x82", "\xac"}, process.Output{Text: "€", Bytes: 3}},
		{"a character across head and tail, nothing cut", 4, []string{"a€"}, process.Output{Text: "a€", Bytes: 4}},
		{"cut in a 2 byte character at the head", 4, []string{"aéxyz"}, process.Output{Text: "a\n…[3 bytes omitted]…\nyz", Bytes: 6, Truncated: true}},
		{"cut in a 3 byte character at the head", 6, []string{"a€xyz12"}, process.Output{Text: "a\n…[5 bytes omitted]…\nz12", Bytes: 9, Truncated: true}},
		{"cut in a 4 byte character at the head", 6, []string{"😀uvwxyz"}, process.Output{Text: "\n…[7 bytes omitted]…\nxyz", Bytes: 10, Truncated: true}},
		{"cut in a 2 byte character at the tail", 4, []string{"abxyéz"}, process.Output{Text: "ab\n…[4 bytes omitted]…\nz", Bytes: 7, Truncated: true}},
		{"cut in a 3 byte character at the tail", 6, []string{"abcxy€z"}, process.Output{Text: "abc\n…[5 bytes omitted]…\nz", Bytes: 9, Truncated: true}},
		{"cut in a 4 byte character at the tail", 6, []string{"abcxyz😀"}, process.Output{Text: "abc\n…[7 bytes omitted]…\n", Bytes: 10, Truncated: true}},
		{"an invalid byte at the cut is not a character", 4, []string{"a\xffxyz"}, process.Output{Text: "a\uFFFD\n…[1 bytes omitted]…\nyz", Bytes: 5, Truncated: true}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			if got := capture(tt.limit, tt.in...); got != tt.want {
				t.Errorf("got  %.300q %d %v\nwant %.300q %d %v", got.Text, got.Bytes, got.Truncated, tt.want.Text, tt.want.Bytes, tt.want.Truncated)
			}
		})
	}
}

// naiveOutput is what a capture must yield, computed from the whole stream.
func naiveOutput(limit int, stream []byte) process.Output {
	out := process.Output{Bytes: int64(len(stream)), Truncated: len(stream) > limit}
	if !out.Truncated {
		out.Text = naiveText(stream)
		return out
	}
	head, tail := stream[:limit-limit/2], stream[len(stream)-limit/2:]
	for cut := 1; cut < utf8.UTFMax && cut <= len(head); cut++ {
		last := head[len(head)-cut:]
		if utf8.RuneStart(last[0]) {
			if !utf8.FullRune(last) {
				head = head[:len(head)-cut]
			}
			break
		}
	}
	for i := 0; i < 3 && len(tail) > 0 && tail[0]&0xC0 == 0x80; i++ {
		tail = tail[1:]
	}
	omitted := len(stream) - len(head) - len(tail)
	out.Text = fmt.Sprintf("%s\n…[%d bytes omitted]…\n%s", naiveText(head), omitted, naiveText(tail))
	return out
}

func naiveText(b []byte) string {
	var text []rune
	for _, r := range string(b) {
		if r == 0 {
			r = '␀'
		}
		text = append(text, r)
	}
	return string(text)
}

func TestCaptureEqualsNaiveImplementation(t *testing.T) {
	t.Parallel()
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	alphabet := []string{"a", "b", "\n", "é", "€", "😀", "\x00", "\xff", "\x80", "\xe2\x82", "\xf0\x9f"}
	marker := regexp.MustCompile(`…\[(\d+) bytes omitted\]…`)
	for i := range 20_000 {
		limit := 1 + rng.IntN(40)
		c := process.NewCapture(limit)
		var stream []byte
		for range rng.IntN(12) {
			var chunk []byte
			for range rng.IntN(30) {
				chunk = append(chunk, alphabet[rng.IntN(len(alphabet))]...)
			}
			stream = append(stream, chunk...)
			if n, err := c.Write(chunk); n != len(chunk) || err != nil {
				t.Fatalf("Write = %d, %v, want %d, nil", n, err, len(chunk))
			}
		}
		got, want := c.Output(), naiveOutput(limit, stream)
		if got != want {
			t.Fatalf("seed %d, case %d, limit %d, stream %q:\ngot  %+v\nwant %+v", seed, i, limit, stream, got, want)
		}
		if !utf8.ValidString(got.Text) || strings.ContainsRune(got.Text, 0) {
			t.Fatalf("seed %d: %q is not storable text", seed, got.Text)
		}
		if m := marker.FindStringSubmatch(got.Text); m != nil {
			if n, _ := strconv.Atoi(m[1]); n < len(stream)-limit || n > len(stream)-limit+6 {
				t.Fatalf("seed %d: %d bytes omitted of %d under a limit of %d", seed, n, len(stream), limit)
			}
		}
	}
}
