package webhook_test

import (
	"bytes"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"net/http"
	"os/exec"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	standard "github.com/standard-webhooks/standard-webhooks/libraries/go"

	"github.com/errandhq/errand/automation/webhook"
)

var now = time.Date(2026, time.November, 30, 12, 0, 0, 0, time.UTC)

// Secrets of the schemes, as an author gives them.
const (
	standardSecret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSwMfKQ9r8G"
	textSecret     = "It's a Secret to Everybody, of 24 bytes and more"
	otherSecret    = "another secret of at least 24 bytes"
)

// body is a body whose bytes no JSON library would write like this.
const body = `{"key": "value",  "num": 1.0}`

func key(t testing.TB, scheme webhook.Scheme, secret string) []byte {
	t.Helper()
	k, err := scheme.Key(secret)
	if err != nil {
		t.Fatal(err)
	}
	return k
}

// openssl signs with the program that people sign with; it returns lower-case hex.
func openssl(t testing.TB, secret, content string) string {
	t.Helper()
	command := exec.CommandContext(t.Context(), "openssl", "dgst", "-sha256", "-mac", "HMAC",
		"-macopt", "hexkey:"+hex.EncodeToString([]byte(secret)), "-r")
	command.Stdin = strings.NewReader(content)
	out, err := command.Output()
	if err != nil {
		t.Fatalf("openssl: %v", err)
	}
	signature, _, _ := strings.Cut(string(out), " ")
	return signature
}

// sign signs without a program, for tests that sign often.
func sign(secret, content string) []byte {
	mac := hmac.New(sha256.New, []byte(secret))
	mac.Write([]byte(content))
	return mac.Sum(nil)
}

func request(body string, headers ...string) webhook.Request {
	r := webhook.Request{Headers: map[string][]string{}, Body: []byte(body)}
	for i := 0; i < len(headers); i += 2 {
		r.Headers[headers[i]] = append(r.Headers[headers[i]], headers[i+1])
	}
	return r
}

// sent is a request as package net/http would deliver its headers.
func sent(h http.Header, body string) webhook.Request {
	r := webhook.Request{Headers: map[string][]string{}, Body: []byte(body)}
	for name, values := range h {
		r.Headers[strings.ToLower(name)] = values
	}
	return r
}

// standardRequest is signed by the official library of Standard Webhooks.
func standardRequest(t testing.TB, id string, at time.Time, body string, secrets ...string) webhook.Request {
	t.Helper()
	var signatures []string
	for _, secret := range secrets {
		sender, err := standard.NewWebhook(secret)
		if err != nil {
			t.Fatal(err)
		}
		signature, err := sender.Sign(id, at, []byte(body))
		if err != nil {
			t.Fatal(err)
		}
		signatures = append(signatures, signature)
	}
	h := http.Header{}
	h.Set(standard.HeaderWebhookID, id)
	h.Set(standard.HeaderWebhookTimestamp, strconv.FormatInt(at.Unix(), 10))
	h.Set(standard.HeaderWebhookSignature, strings.Join(signatures, " "))
	return sent(h, body)
}

func TestStandardDeliveryOfTheOfficialLibrary(t *testing.T) {
	t.Parallel()
	spec := webhook.Spec{Scheme: webhook.Standard}
	keys := [][]byte{key(t, webhook.Standard, standardSecret)}
	const second = "whsec_AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA"
	with := func(r webhook.Request, header, value string) webhook.Request {
		r.Headers[header] = []string{value}
		return r
	}
	good := func() webhook.Request { return standardRequest(t, "msg_1", now, body, standardSecret) }
	signature := good().Headers["webhook-signature"][0]
	for name, tc := range map[string]struct {
		request webhook.Request
		want    bool
	}{
		"good":                          {good(), true},
		"at the end of the tolerance":   {standardRequest(t, "msg_1", now.Add(-webhook.Tolerance), body, standardSecret), true},
		"ahead within the tolerance":    {standardRequest(t, "msg_1", now.Add(webhook.Tolerance), body, standardSecret), true},
		"too old":                       {standardRequest(t, "msg_1", now.Add(-webhook.Tolerance-time.Second), body, standardSecret), false},
		"too far ahead":                 {standardRequest(t, "msg_1", now.Add(webhook.Tolerance+time.Second), body, standardSecret), false},
		"another secret":                {standardRequest(t, "msg_1", now, body, second), false},
		"two signatures, first ours":    {standardRequest(t, "msg_1", now, body, standardSecret, second), true},
		"two signatures, second ours":   {standardRequest(t, "msg_1", now, body, second, standardSecret), true},
		"beside an asymmetric one":      {with(good(), "webhook-signature", "v1a,AAAA "+signature), true},
		"another version":               {with(good(), "webhook-signature", "v2"+signature[2:]), false},
		"no version":                    {with(good(), "webhook-signature", signature[3:]), false},
		"surrounded by blanks":          {with(good(), "webhook-signature", "  "+signature+" "), true},
		"cut":                           {with(good(), "webhook-signature", signature[:len(signature)-4]), false},
		"without padding":               {with(good(), "webhook-signature", strings.TrimRight(signature, "=")), false},
		"empty signature":               {with(good(), "webhook-signature", ""), false},
		"another id":                    {with(good(), "webhook-id", "msg_2"), false},
		"no id":                         {standardRequest(t, "", now, body, standardSecret), false},
		"an id with a full stop":        {standardRequest(t, "msg.1", now, body, standardSecret), false},
		"an id that is too long":        {standardRequest(t, strings.Repeat("m", 256), now, body, standardSecret), false},
		"a long id":                     {standardRequest(t, strings.Repeat("m", 255), now, body, standardSecret), true},
		"a control character in the id": {standardRequest(t, "msg\t1", now, body, standardSecret), false},
		"another time":                  {with(good(), "webhook-timestamp", strconv.FormatInt(now.Unix()+1, 10)), false},
		"a time with a sign":            {with(good(), "webhook-timestamp", "+"+strconv.FormatInt(now.Unix(), 10)), false},
		"a time that is no number":      {with(good(), "webhook-timestamp", "now"), false},
		"a time beyond all":             {with(good(), "webhook-timestamp", "9223372036854775807"), false},
		"no time":                       {with(good(), "webhook-timestamp", ""), false},
		"two ids":                       {func() webhook.Request { r := good(); r.Headers["webhook-id"] = []string{"msg_1", "msg_1"}; return r }(), false},
		"another body":                  {webhook.Request{Headers: good().Headers, Body: []byte(body + " ")}, false},
		"nothing":                       {webhook.Request{}, false},
	} {
		d, err := webhook.Verify(spec, keys, tc.request, now)
		if (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (d.ID != tc.request.Headers["webhook-id"][0] || len(d.Keys) != 1) {
			t.Errorf("%s: the delivery is %+v", name, d)
		}
		if err != nil && (d.ID != "" || d.Keys != nil) {
			t.Errorf("%s: a refused delivery says %+v", name, d)
		}
	}
}

// TestRepeatedNamesOfStandard: the signed id alone names a delivery, however often it is signed anew.
func TestRepeatedNamesOfStandard(t *testing.T) {
	t.Parallel()
	names := func(r webhook.Request) []string {
		d, err := webhook.Verify(webhook.Spec{Scheme: webhook.Standard}, [][]byte{key(t, webhook.Standard, standardSecret)}, r, now)
		if err != nil {
			t.Fatal(err)
		}
		return d.Keys
	}
	first := names(standardRequest(t, "msg_1", now, body, standardSecret))
	if again := names(standardRequest(t, "msg_1", now.Add(time.Minute), "other", standardSecret)); !slices.Equal(first, again) {
		t.Errorf("the same id has the names %v and %v", first, again)
	}
	if other := names(standardRequest(t, "msg_2", now, body, standardSecret)); other[0] == first[0] {
		t.Error("another id has the same name")
	}
}

func TestGitHubDeliverySignedByOpenSSL(t *testing.T) {
	t.Parallel()
	signature := openssl(t, textSecret, body)
	other := openssl(t, otherSecret, body)
	for name, tc := range map[string]struct {
		signature string
		want      bool
	}{
		"good":                     {"sha256=" + signature, true},
		"upper-case digits":        {"sha256=" + strings.ToUpper(signature), true},
		"upper-case prefix":        {"SHA256=" + signature, false},
		"another secret":           {"sha256=" + other, false},
		"without prefix":           {signature, false},
		"one digit less":           {"sha256=" + signature[:63], false},
		"one digit more":           {"sha256=" + signature + "0", false},
		"a byte more":              {"sha256=" + signature + "00", false},
		"surrounded by blanks":     {"sha256= " + signature + " ", false},
		"a blank instead":          {"sha256=" + signature[:63] + " ", false},
		"not hex":                  {"sha256=" + strings.Repeat("zz", 32), false},
		"not ASCII":                {"sha256=" + strings.Repeat("é", 32), false},
		"the prefix alone":         {"sha256=", false},
		"SHA-1 under its own name": {"sha1=" + signature[:40], false},
		"empty":                    {"", false},
	} {
		r := request(body, "x-hub-signature-256", tc.signature, "x-github-event", "push", "x-github-delivery", "d-1")
		d, err := webhook.Verify(webhook.Spec{Scheme: webhook.GitHub}, [][]byte{key(t, webhook.GitHub, textSecret)}, r, now)
		if (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
		if err == nil && (d.ID != "d-1" || d.Event != "push" || len(d.Keys) != 2) {
			t.Errorf("%s: the delivery is %+v", name, d)
		}
	}
}

// TestRepeatsAreRecognised is the table of replays: two requests of one sender, and whether the second is a repeat,
// that is whether they have a name in common.
func TestRepeatsAreRecognised(t *testing.T) {
	t.Parallel()
	gitHub := webhook.Spec{Scheme: webhook.GitHub}
	hub := func(body, id string) webhook.Request {
		return request(body, "x-hub-signature-256", "sha256="+hex.EncodeToString(sign(textSecret, body)), "x-github-delivery", id)
	}
	unnamed := hub(body, "")
	delete(unnamed.Headers, "x-github-delivery")
	upper := hub(body, "d-2")
	upper.Headers["x-hub-signature-256"] = []string{"sha256=" + strings.ToUpper(hex.EncodeToString(sign(textSecret, body)))}

	plain := webhook.Spec{Scheme: webhook.HMAC, Options: &webhook.Options{SignatureHeader: "x-sig", Encoding: webhook.Hex}}
	named := webhook.Spec{Scheme: webhook.HMAC, Options: &webhook.Options{SignatureHeader: "x-sig", Encoding: webhook.Hex, DeliveryHeader: "x-id"}}
	timed := webhook.Spec{Scheme: webhook.HMAC, Options: &webhook.Options{SignatureHeader: "x-sig", Encoding: webhook.Hex, TimestampHeader: "x-time"}}
	byID := func(body, id string) webhook.Request {
		return request(body, "x-sig", hex.EncodeToString(sign(textSecret, body)), "x-id", id)
	}
	byTime := func(body string, at time.Time) webhook.Request {
		seconds := strconv.FormatInt(at.Unix(), 10)
		return request(body, "x-sig", hex.EncodeToString(sign(textSecret, seconds+"."+body)), "x-time", seconds)
	}
	for name, tc := range map[string]struct {
		spec          webhook.Spec
		first, second webhook.Request
		repeat        bool
	}{
		"github, the same":                {gitHub, hub(body, "d-1"), hub(body, "d-1"), true},
		"github, replayed under new id":   {gitHub, hub(body, "d-1"), hub(body, "d-2"), true},
		"github, replayed without id":     {gitHub, hub(body, "d-1"), unnamed, true},
		"github, written in upper case":   {gitHub, hub(body, "d-1"), upper, true},
		"github, redelivered":             {gitHub, hub(body, "d-1"), hub("{}", "d-1"), true},
		"github, another":                 {gitHub, hub(body, "d-1"), hub("{}", "d-2"), false},
		"hmac, nothing tells":             {plain, byID(body, ""), byID(body, ""), false},
		"hmac, same id":                   {named, byID(body, "1"), byID("{}", "1"), true},
		"hmac, replayed under a new id":   {named, byID(body, "1"), byID(body, "2"), true},
		"hmac, another":                   {named, byID(body, "1"), byID("{}", "2"), false},
		"hmac, same time and body":        {timed, byTime(body, now), byTime(body, now), true},
		"hmac, same body at another time": {timed, byTime(body, now), byTime(body, now.Add(time.Second)), false},
	} {
		var names [2][]string
		for i, r := range []webhook.Request{tc.first, tc.second} {
			d, err := webhook.Verify(tc.spec, [][]byte{[]byte(textSecret)}, r, now)
			if err != nil {
				t.Fatalf("%s: request %d: %v", name, i, err)
			}
			names[i] = d.Keys
		}
		repeat := slices.ContainsFunc(names[0], func(n string) bool { return slices.Contains(names[1], n) })
		if repeat != tc.repeat {
			t.Errorf("%s: the names are %v and %v", name, names[0], names[1])
		}
	}
}

func TestHMACDelivery(t *testing.T) {
	t.Parallel()
	seconds := strconv.FormatInt(now.Unix(), 10)
	bare := hex.EncodeToString(sign(textSecret, body))
	timed := base64.StdEncoding.EncodeToString(sign(textSecret, seconds+"."+body))
	plain := &webhook.Options{SignatureHeader: "x-sig", Encoding: webhook.Hex}
	full := &webhook.Options{
		SignatureHeader: "x-sig", SignaturePrefix: "v1=", Encoding: webhook.Base64, TimestampHeader: "x-time", DeliveryHeader: "x-id",
	}
	for name, tc := range map[string]struct {
		options *webhook.Options
		request webhook.Request
		want    bool
	}{
		"plain":                        {plain, request(body, "x-sig", bare), true},
		"plain, by openssl":            {plain, request(body, "x-sig", openssl(t, textSecret, body)), true},
		"plain, with the wrong prefix": {plain, request(body, "x-sig", "sha256="+bare), false},
		"plain, base64":                {plain, request(body, "x-sig", base64.StdEncoding.EncodeToString(sign(textSecret, body))), false},
		"plain, twice":                 {plain, request(body, "x-sig", bare, "x-sig", bare), false},
		"full":                         {full, request(body, "x-sig", "v1="+timed, "x-time", seconds, "x-id", "7"), true},
		"full, hex":                    {full, request(body, "x-sig", "v1="+hex.EncodeToString(sign(textSecret, seconds+"."+body)), "x-time", seconds, "x-id", "7"), false},
		"full, the time not signed":    {full, request(body, "x-sig", "v1="+base64.StdEncoding.EncodeToString(sign(textSecret, body)), "x-time", seconds, "x-id", "7"), false},
		"full, no time":                {full, request(body, "x-sig", "v1="+timed, "x-id", "7"), false},
		"full, an old time":            {full, request(body, "x-sig", "v1="+base64.StdEncoding.EncodeToString(sign(textSecret, "1000000000."+body)), "x-time", "1000000000", "x-id", "7"), false},
		"full, no id":                  {full, request(body, "x-sig", "v1="+timed, "x-time", seconds), false},
		"no options":                   {nil, request(body, "x-sig", bare), false},
	} {
		_, err := webhook.Verify(webhook.Spec{Scheme: webhook.HMAC, Options: tc.options}, [][]byte{[]byte(textSecret)}, tc.request, now)
		if (err == nil) != tc.want {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSecretsOfARotation(t *testing.T) {
	t.Parallel()
	r := func(secret string) webhook.Request {
		return request(body, "x-hub-signature-256", "sha256="+hex.EncodeToString(sign(secret, body)))
	}
	for name, tc := range map[string]struct {
		keys []string
		want map[string]bool
	}{
		"one":  {[]string{"new"}, map[string]bool{"new": true, "old": false, "": false}},
		"two":  {[]string{"new", "old"}, map[string]bool{"new": true, "old": true, "older": false, "": false}},
		"none": {nil, map[string]bool{"new": false, "": false}},
	} {
		var keys [][]byte
		for _, k := range tc.keys {
			keys = append(keys, []byte(k))
		}
		for secret, want := range tc.want {
			if _, err := webhook.Verify(webhook.Spec{Scheme: webhook.GitHub}, keys, r(secret), now); (err == nil) != want {
				t.Errorf("%s: signed with %q: %v", name, secret, err)
			}
		}
	}
}

func TestSecretsToUse(t *testing.T) {
	t.Parallel()
	for name, tc := range map[string]struct {
		scheme webhook.Scheme
		secret string
		want   int // bytes of the key; 0 for a refusal
	}{
		"github, 24 bytes":           {webhook.GitHub, strings.Repeat("x", 24), 24},
		"github, 23 bytes":           {webhook.GitHub, strings.Repeat("x", 23), 0},
		"github, bytes not letters":  {webhook.GitHub, strings.Repeat("é", 12), 24},
		"github, 512 bytes":          {webhook.GitHub, strings.Repeat("x", 512), 512},
		"github, 513 bytes":          {webhook.GitHub, strings.Repeat("x", 513), 0},
		"hmac, empty":                {webhook.HMAC, "", 0},
		"standard":                   {webhook.Standard, standardSecret, 30},
		"standard without prefix":    {webhook.Standard, strings.TrimPrefix(standardSecret, "whsec_"), 30},
		"standard, 24 bytes":         {webhook.Standard, "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 24)), 24},
		"standard, 23 bytes":         {webhook.Standard, "whsec_" + base64.StdEncoding.EncodeToString(make([]byte, 23)), 0},
		"standard, not base64":       {webhook.Standard, "whsec_" + strings.Repeat("?", 40), 0},
		"standard, with a line end":  {webhook.Standard, standardSecret + "\n", 0},
		"standard, the wrong prefix": {webhook.Standard, "whpk_" + strings.TrimPrefix(standardSecret, "whsec_"), 0},
	} {
		k, err := tc.scheme.Key(tc.secret)
		if len(k) != tc.want || (err == nil) != (tc.want > 0) {
			t.Errorf("%s: a key of %d bytes, %v", name, len(k), err)
		}
		if err != nil && len(tc.secret) > 8 && strings.Contains(err.Error(), tc.secret[6:]) {
			t.Errorf("%s: the error quotes the secret: %v", name, err)
		}
	}
}

// BenchmarkRefusals shows that a refusal costs the same whatever its reason is.
func BenchmarkRefusals(b *testing.B) {
	large := strings.Repeat("x", 64<<10)
	keys := [][]byte{[]byte(textSecret)}
	for _, tc := range []struct {
		name string
		spec webhook.Spec
		keys [][]byte
		r    webhook.Request
	}{
		{"wrong signature", webhook.Spec{Scheme: webhook.GitHub}, keys, request(large, "x-hub-signature-256", "sha256="+strings.Repeat("00", 32))},
		{"no header", webhook.Spec{Scheme: webhook.GitHub}, keys, request(large)},
		{"two secrets", webhook.Spec{Scheme: webhook.GitHub}, [][]byte{[]byte(textSecret), []byte(otherSecret)}, request(large)},
		{"no secret", webhook.Spec{Scheme: webhook.GitHub}, nil, request(large)},
		{"standard", webhook.Spec{Scheme: webhook.Standard}, keys, request(large)},
		{"accepted", webhook.Spec{Scheme: webhook.GitHub}, keys, request(large, "x-hub-signature-256", "sha256="+hex.EncodeToString(sign(textSecret, large)))},
	} {
		b.Run(tc.name, func(b *testing.B) {
			for b.Loop() {
				_, _ = webhook.Verify(tc.spec, tc.keys, tc.r, now)
			}
		})
	}
}

// FuzzVerify sends any headers and bodies to every scheme. Nothing is accepted that was not signed, nothing panics,
// and what is accepted has names of one form.
func FuzzVerify(f *testing.F) {
	f.Add("x-hub-signature-256", "sha256="+hex.EncodeToString(sign(textSecret, body)), "x-github-delivery", "d", "a", "b", []byte(body))
	good := standardRequest(f, "m", now, body, standardSecret)
	f.Add("webhook-id", "m", "webhook-timestamp", good.Headers["webhook-timestamp"][0], "webhook-signature", good.Headers["webhook-signature"][0], []byte(body))
	f.Add("x-sig", strings.Repeat("v1, ", 2000), "x-time", "-1", "x-id", "\xff", []byte{})
	specs := []webhook.Spec{
		{Scheme: webhook.Standard},
		{Scheme: webhook.GitHub},
		{Scheme: webhook.HMAC},
		{Scheme: "other"},
		{Scheme: webhook.HMAC, Options: &webhook.Options{SignatureHeader: "x-sig", Encoding: webhook.Base64, TimestampHeader: "x-time", DeliveryHeader: "x-id"}},
	}
	f.Fuzz(func(t *testing.T, n1, v1, n2, v2, n3, v3 string, content []byte) {
		r := request(string(content), n1, v1, n2, v2, n3, v3)
		for _, spec := range specs {
			secret := []byte(textSecret)
			if spec.Scheme == webhook.Standard {
				secret = key(t, spec.Scheme, standardSecret)
			}
			d, err := webhook.Verify(spec, [][]byte{secret}, r, now)
			if err != nil {
				continue
			}
			expected := signatures(spec, secret, r)
			all := fmt.Sprint(r.Headers)
			if !slices.ContainsFunc(expected, func(s string) bool { return strings.Contains(strings.ToLower(all), strings.ToLower(s)) }) {
				t.Errorf("%s accepted %q with the headers %q", spec.Scheme, content, all)
			}
			for _, name := range d.Keys {
				if len(name) != 2*sha256.Size {
					t.Errorf("a name is %q", name)
				}
			}
			if input, err := webhook.Input(spec, d, r); err == nil && !bytes.HasPrefix(input, []byte(`{"body":`)) {
				t.Errorf("the input is %s", input)
			}
		}
	})
}

// signatures are the signatures of a request in the forms that the fuzz target may accept.
func signatures(spec webhook.Spec, secret []byte, r webhook.Request) []string {
	one := func(name string) string { return strings.Join(r.Headers[name], "") }
	content := string(r.Body)
	switch {
	case spec.Scheme == webhook.Standard:
		content = one("webhook-id") + "." + one("webhook-timestamp") + "." + content
	case spec.Options != nil:
		content = one("x-time") + "." + content
	}
	sum := sign(string(secret), content)
	return []string{hex.EncodeToString(sum), base64.StdEncoding.EncodeToString(sum)}
}
