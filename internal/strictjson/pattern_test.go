package strictjson_test

import (
	"testing"

	"github.com/errandhq/errand/internal/strictjson"
)

func TestPattern(t *testing.T) {
	t.Parallel()
	name := strictjson.Pattern(`^[a-z]{1,3}$`)
	for text, want := range map[string]bool{"a": true, "abc": true, "": false, "abcd": false, "A": false, "a\n": false} {
		if got := name(text); got != want {
			t.Errorf("%q matches: %v, want %v", text, got, want)
		}
	}
}
