package webhook_test

import (
	"encoding/base64"
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/automation/webhook"
	"github.com/errandhq/errand/internal/strictjson"
)

func TestInput(t *testing.T) {
	t.Parallel()
	spec := webhook.Spec{Headers: webhook.KeptHeaders{"x-a", "x-b", "x-none"}}
	d := webhook.Delivery{ID: "d-1", Event: "push"}
	raw := func(b string) string { return base64.StdEncoding.EncodeToString([]byte(b)) }
	for name, tc := range map[string]struct {
		spec    webhook.Spec
		d       webhook.Delivery
		request webhook.Request
		want    string
	}{
		"JSON": {
			spec, d, request(`{"z": 1.0,  "a": 1e400, "n": 123456789012345678901234567890, "s": "<é>"}`, "content-type", "application/json"),
			`{"body":{"z":1.0,"a":1e400,"n":123456789012345678901234567890,"s":"<é>"},"contentType":"application/json","event":"push","deliveryId":"d-1","headers":{}}`,
		},
		"JSON with parameters":      {webhook.Spec{}, webhook.Delivery{}, request(`[1]`, "content-type", "Application/JSON; charset=utf-8; =;"), `{"body":[1],"contentType":"Application/JSON; charset=utf-8; =;","headers":{}}`},
		"a type built on JSON":      {webhook.Spec{}, webhook.Delivery{}, request(`1`, "content-type", "application/cloudevents+json"), `{"body":1,"contentType":"application/cloudevents+json","headers":{}}`},
		"empty JSON":                {webhook.Spec{}, webhook.Delivery{}, request("", "content-type", "application/json"), `{"body":null,"contentType":"application/json","headers":{}}`},
		"blank JSON":                {webhook.Spec{}, webhook.Delivery{}, request(" \n", "content-type", "application/json"), `{"body":null,"contentType":"application/json","headers":{}}`},
		"JSON null":                 {webhook.Spec{}, webhook.Delivery{}, request("null", "content-type", "application/json"), `{"body":null,"contentType":"application/json","headers":{}}`},
		"declared but not JSON":     {webhook.Spec{}, webhook.Delivery{}, request("{", "content-type", "application/json"), `{"body":null,"rawBody":"` + raw("{") + `","contentType":"application/json","headers":{}}`},
		"duplicate members":         {webhook.Spec{}, webhook.Delivery{}, request(`{"a":1,"a":2}`, "content-type", "application/json"), `{"body":null,"rawBody":"` + raw(`{"a":1,"a":2}`) + `","contentType":"application/json","headers":{}}`},
		"two values":                {webhook.Spec{}, webhook.Delivery{}, request(`1 2`, "content-type", "application/json"), `{"body":null,"rawBody":"` + raw(`1 2`) + `","contentType":"application/json","headers":{}}`},
		"JSON of another type":      {webhook.Spec{}, webhook.Delivery{}, request(`{}`, "content-type", "text/plain"), `{"body":null,"rawBody":"` + raw(`{}`) + `","contentType":"text/plain","headers":{}}`},
		"bytes":                     {webhook.Spec{}, webhook.Delivery{}, request("\x00\xff", "content-type", "application/octet-stream"), `{"body":null,"rawBody":"AP8=","contentType":"application/octet-stream","headers":{}}`},
		"no type":                   {webhook.Spec{}, webhook.Delivery{}, request("x"), `{"body":null,"rawBody":"eA==","contentType":"","headers":{}}`},
		"nothing":                   {webhook.Spec{}, webhook.Delivery{}, request(""), `{"body":null,"rawBody":"","contentType":"","headers":{}}`},
		"a hostile type":            {webhook.Spec{}, webhook.Delivery{}, request("", "content-type", "a\xff\"\\/"), `{"body":null,"rawBody":"","contentType":"a�\"\\/","headers":{}}`},
		"kept headers":              {spec, d, request("1", "content-type", "application/json", "x-b", "1", "x-b", "2", "x-c", "no", "x-a", "\xffé\""), `{"body":1,"contentType":"application/json","event":"push","deliveryId":"d-1","headers":{"x-a":"�é\"","x-b":"1, 2"}}`},
		"members of __proto__ kind": {webhook.Spec{}, webhook.Delivery{}, request(`{"__proto__":{"$runInput":true}}`, "content-type", "application/json"), `{"body":{"__proto__":{"$runInput":true}},"contentType":"application/json","headers":{}}`},
	} {
		got, err := webhook.Input(tc.spec, tc.d, tc.request)
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
		if diff := cmp.Diff(tc.want, string(got)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		if !json.Valid(got) {
			t.Errorf("%s: %s is not JSON", name, got)
		}
	}
}

// TestInputLimits: what is within its limits becomes an input that a run may have, however badly it is escaped.
func TestInputLimits(t *testing.T) {
	t.Parallel()
	quoted := func(n int) string { return `"` + strings.Repeat("x", n-2) + `"` }
	spec := webhook.Spec{Headers: webhook.KeptHeaders{"x-a"}}
	overhead := len(`{"x-a":""}`)
	name := strings.Repeat("n", 255)
	d := webhook.Delivery{ID: name, Event: name}
	for what, tc := range map[string]struct {
		request webhook.Request
		want    bool
	}{
		"the largest JSON":          {request(quoted(webhook.MaxJSONBody), "content-type", "application/json", "x-a", strings.Repeat("x", webhook.MaxKeptHeaders-overhead)), true},
		"headers too large":         {request("", "x-a", strings.Repeat("x", webhook.MaxKeptHeaders-overhead+1)), false},
		"headers that grow":         {request("", "x-a", strings.Repeat(`"`, webhook.MaxKeptHeaders/2)), false},
		"the largest other body":    {request(strings.Repeat("\xff", webhook.MaxOtherBody), "x-a", strings.Repeat("x", webhook.MaxKeptHeaders-overhead)), true},
		"broken JSON, too large":    {request(strings.Repeat("[", webhook.MaxOtherBody+1), "content-type", "application/json"), false},
		"a content type, too large": {request("", "content-type", strings.Repeat("x", 1025)), false},
	} {
		input, err := webhook.Input(spec, d, tc.request)
		var tooLarge *webhook.TooLargeError
		switch {
		case tc.want && (err != nil || len(input) > automation.MaxInputBytes):
			t.Errorf("%s: %d bytes, %v", what, len(input), err)
		case !tc.want && !errors.As(err, &tooLarge):
			t.Errorf("%s: %d bytes, %v", what, len(input), err)
		}
	}
	for contentType, want := range map[string]int64{
		"application/json": webhook.MaxJSONBody, "text/json": webhook.MaxOtherBody, "": webhook.MaxOtherBody, ";": webhook.MaxOtherBody,
	} {
		if got := webhook.MaxBody(map[string][]string{"content-type": {contentType}}); got != want {
			t.Errorf("a body of %q may have %d bytes, want %d", contentType, got, want)
		}
	}
}

func TestOptionsAndHeadersToUse(t *testing.T) {
	t.Parallel()
	type document struct {
		Options *webhook.Options    `json:"options"`
		Headers webhook.KeptHeaders `json:"headers"`
	}
	for text, want := range map[string]document{
		`{"options":{"signatureHeader":"X-Sig"}}`:                                         {Options: &webhook.Options{SignatureHeader: "x-sig", Encoding: webhook.Hex}},
		`{"options":{"signatureHeader":"s","encoding":"base64","signaturePrefix":"v1,"}}`: {Options: &webhook.Options{SignatureHeader: "s", Encoding: webhook.Base64, SignaturePrefix: "v1,"}},
		`{"headers":["X-B","x-a","X-b"]}`:                                                 {Headers: webhook.KeptHeaders{"x-a", "x-b"}},
		`{"headers":[]}`:                                                                  {Headers: webhook.KeptHeaders{}},
	} {
		var got document
		if violations := strictjson.Unmarshal([]byte(text), &got); len(violations) > 0 {
			t.Errorf("%s: %v", text, violations)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
	for text, place := range map[string]string{
		`{"options":{}}`:                                                                 "options.signatureHeader",
		`{"options":{"signatureHeader":""}}`:                                             "options.signatureHeader",
		`{"options":{"signatureHeader":"a b"}}`:                                          "options.signatureHeader",
		`{"options":{"signatureHeader":"s","signaturePrefix":"é"}}`:                      "options.signaturePrefix",
		`{"options":{"signatureHeader":"s","encoding":"HEX"}}`:                           "options.encoding",
		`{"options":{"signatureHeader":"s","timestampHeader":"S"}}`:                      "options.timestampHeader",
		`{"options":{"signatureHeader":"s","deliveryHeader":"s"}}`:                       "options.deliveryHeader",
		`{"options":{"signatureHeader":"s","timestampHeader":"t","deliveryHeader":"T"}}`: "options.deliveryHeader",
		`{"options":{"signatureHeader":"s","more":1}}`:                                   "options.more",
		`{"headers":["Authorization"]}`:                                                  "headers[0]",
		`{"headers":["x","Cookie"]}`:                                                     "headers[1]",
		`{"headers":[":path"]}`:                                                          "headers[0]",
		`{"headers":{}}`:                                                                 "headers",
	} {
		var got document
		violations := strictjson.Unmarshal([]byte(text), &got)
		if len(violations) != 1 || violations[0].Path != place {
			t.Errorf("%s: %v, want one at %s", text, violations, place)
		}
	}
}
