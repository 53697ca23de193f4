package engine

import (
	"errors"
	"strings"
	"testing"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/serviceerror"

	"github.com/errandhq/errand/automation"
)

func TestTranslate(t *testing.T) {
	t.Parallel()
	tests := map[string]struct {
		err  error
		want automation.Code
	}{
		"none":              {nil, ""},
		"unavailable":       {serviceerror.NewUnavailable("x"), automation.CodeEngineUnavailable},
		"deadline":          {serviceerror.NewDeadlineExceeded("x"), automation.CodeEngineUnavailable},
		"anything else":     {errors.New("x"), automation.CodeEngineUnavailable},
		"our own mistake":   {serviceerror.NewInvalidArgument("x"), automation.CodeInternal},
		"we may not":        {serviceerror.NewPermissionDenied("x", ""), automation.CodeInternal},
		"too many requests": {serviceerror.NewResourceExhausted(enumspb.RESOURCE_EXHAUSTED_CAUSE_RPS_LIMIT, "x"), automation.CodeEngineUnavailable},
	}
	for name, test := range tests {
		if got := automation.CodeOf(translate("testing", test.err)); got != test.want {
			t.Errorf("%s: %q, want %q", name, got, test.want)
		}
	}
}

// TestAdviceOnClientCertificates is by text: whether the server's reason arrives before the connection is gone is a
// matter of luck with TLS 1.3.
func TestAdviceOnClientCertificates(t *testing.T) {
	t.Parallel()
	const said = `connection error: desc = "error reading server preface: remote error: tls: certificate required"`
	if got := advice(errors.New(said)); !strings.Contains(got, "TEMPORAL_TLS_CLIENT_CERT_PATH") {
		t.Errorf("advice: %q", got)
	}
}

func TestSearchAttributeCommand(t *testing.T) {
	t.Parallel()
	got := searchAttributeCommand("prod", map[string]enumspb.IndexedValueType{
		"ErrandTrigger": enumspb.INDEXED_VALUE_TYPE_KEYWORD, "ErrandMachineId": enumspb.INDEXED_VALUE_TYPE_KEYWORD,
	})
	want := "temporal operator search-attribute create --namespace prod --name ErrandMachineId --type Keyword --name ErrandTrigger --type Keyword"
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}
