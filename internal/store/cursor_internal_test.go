package store

import "testing"

// FuzzCursor checks that a cursor is accepted only in the one form in which this listing writes it.
func FuzzCursor(f *testing.F) {
	f.Add("")
	f.Add("x")
	f.Add(position{createdAt: instant{micros: -1, valid: true}, id: "0193f5a0-0000-7000-8000-000000000000"}.cursor('r'))
	f.Add(position{createdAt: instant{micros: 1 << 62, valid: true}, id: "00000000-0000-0000-0000-000000000000"}.cursor('a'))
	f.Fuzz(func(t *testing.T, cursor string) {
		var wrong violations
		got := wrong.cursor('r', cursor)
		switch {
		case got != nil && got.cursor('r') != cursor:
			t.Errorf("%q was read as %+v, whose cursor is %q", cursor, *got, got.cursor('r'))
		case (got == nil) != (cursor == "" || wrong.err() != nil):
			t.Errorf("%q: %+v, %v", cursor, got, wrong.err())
		}
	})
}
