package identity_test

import (
	"context"
	"encoding/base32"
	"encoding/json"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/google/go-cmp/cmp"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/identity"
)

const owner = "0192d3a0-0000-7000-8000-0000000000aa"

// enrolled is a ledger of codes and machines.
type enrolled struct {
	mu    sync.Mutex
	codes map[string]automation.EnrollmentCode
	used  map[string]string // by hash, the key that has the code
	byKey map[string]automation.Machine
	fail  error
	clock *clock
	owner string
	got   automation.NewMachine
}

func (e *enrolled) SaveEnrollmentCode(_ context.Context, c automation.EnrollmentCode) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fail != nil {
		return e.fail
	}
	e.codes[c.Hash] = c
	return nil
}

func (e *enrolled) RedeemEnrollmentCode(_ context.Context, hash string, m automation.NewMachine) (automation.Machine, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.fail != nil {
		return automation.Machine{}, e.fail
	}
	code, known := e.codes[hash]
	if user := e.used[hash]; !known || !e.clock.Now().Before(code.ExpiresAt) || user != "" && user != m.PublicKey {
		return automation.Machine{}, automation.Errorf(automation.CodeNotFound, "there is no such open code")
	}
	e.used[hash], e.got, e.owner = m.PublicKey, m, code.OwnerID
	if known, ok := e.byKey[m.PublicKey]; ok {
		return known, nil
	}
	machine := automation.Machine{
		ID: "machine of " + m.PublicKey, OwnerID: code.OwnerID, Name: m.Name, PublicKey: m.PublicKey, State: automation.MachineActive,
	}
	if code.MachineID != "" {
		machine.ID = code.MachineID
	}
	e.byKey[m.PublicKey] = machine
	return machine, nil
}

func (e *enrolled) count() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return len(e.byKey)
}

// office is an enroller with its stores and clock.
type office struct {
	clock    *clock
	machines *enrolled
	enroller *identity.Enroller
}

func newOffice() *office {
	o := &office{clock: &clock{now: start}}
	o.machines = &enrolled{
		codes: map[string]automation.EnrollmentCode{}, used: map[string]string{}, byKey: map[string]automation.Machine{}, clock: o.clock,
	}
	o.enroller = identity.NewEnroller(identity.EnrollerOptions{Ledger: o.machines, Now: o.clock.Now})
	return o
}

func (o *office) code(t *testing.T) string {
	t.Helper()
	code, expires, err := o.enroller.NewCode(t.Context(), owner, "")
	if err != nil {
		t.Fatal(err)
	}
	if want := o.clock.Now().Add(automation.EnrollmentCodeValidFor); !expires.Equal(want) {
		t.Errorf("the code expires at %v, want %v", expires, want)
	}
	return code
}

func (o *office) request(t *testing.T, key *identity.DeviceKey, code string) identity.Enrolment {
	t.Helper()
	proof, err := identity.EnrolmentProof(key, code, o.clock.Now())
	if err != nil {
		t.Fatal(err)
	}
	return identity.Enrolment{
		Code: code, PublicKey: key.Public(), Proof: proof,
		Name: "laptop", Platform: "linux/amd64", Version: "1.2.3", Labels: map[string]string{"role": "dev"},
	}
}

func TestEnroll(t *testing.T) {
	t.Parallel()
	o, key := newOffice(), mustKey(t, t.TempDir())
	m, err := o.enroller.Enroll(t.Context(), o.request(t, key, o.code(t)))
	if err != nil {
		t.Fatal(err)
	}
	want := automation.NewMachine{
		Name: "laptop", Platform: "linux/amd64", Version: "1.2.3",
		Labels: map[string]string{"role": "dev"}, PublicKey: string(key.Public()),
	}
	if diff := cmp.Diff(want, o.machines.got); diff != "" {
		t.Errorf("stored machine (-want +got):\n%s", diff)
	}
	if m.PublicKey != string(key.Public()) || m.OwnerID != owner {
		t.Errorf("enrolled %v", m)
	}
}

func TestEnrolledKeyIsStoredInOneForm(t *testing.T) {
	t.Parallel()
	o, key := newOffice(), mustKey(t, t.TempDir())
	r := o.request(t, key, o.code(t))
	var members map[string]any
	if err := json.Unmarshal(r.PublicKey, &members); err != nil {
		t.Fatal(err)
	}
	members["kid"], members["use"], members["alg"] = "mine", "sig", "EdDSA"
	decorated, err := json.MarshalIndent(members, "", "  ")
	if err != nil {
		t.Fatal(err)
	}
	r.PublicKey = decorated
	if _, err := o.enroller.Enroll(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if o.machines.got.PublicKey != string(key.Public()) {
		t.Errorf("stored %s, want %s", o.machines.got.PublicKey, key.Public())
	}
}

func TestEnrolmentCodesAreRandomAndTypable(t *testing.T) {
	t.Parallel()
	o := newOffice()
	seen := map[string]bool{}
	for range 200 {
		code := o.code(t)
		plain := strings.ReplaceAll(code, "-", "")
		random, err := base32.StdEncoding.DecodeString(plain)
		if err != nil || len(random)*8 < 80 || len(code) != 19 || seen[code] {
			t.Fatalf("code %q has %d bits, seen before: %v (%v)", code, len(random)*8, seen[code], err)
		}
		seen[code] = true
	}
	typed := map[string]func(string) string{
		"lower case":   strings.ToLower,
		"no dashes":    func(s string) string { return strings.ReplaceAll(s, "-", "") },
		"with spaces":  func(s string) string { return "  " + strings.ReplaceAll(s, "-", " ") + "\n" },
		"zero for O":   func(s string) string { return strings.ReplaceAll(s, "O", "0") },
		"one for I":    func(s string) string { return strings.ReplaceAll(s, "I", "1") },
		"eight for B":  func(s string) string { return strings.ReplaceAll(s, "B", "8") },
		"as it was":    func(s string) string { return s },
		"other groups": func(s string) string { return s[:2] + "-" + s[2:] },
	}
	for name, change := range typed {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice()
			if _, err := o.enroller.Enroll(t.Context(), o.request(t, mustKey(t, t.TempDir()), change(o.code(t)))); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestEnrollRefuses(t *testing.T) {
	t.Parallel()
	mine, other := mustKey(t, t.TempDir()), mustKey(t, t.TempDir())
	tests := map[string]struct {
		change func(t *testing.T, o *office, r *identity.Enrolment)
		code   automation.Code
		want   string
	}{
		"unknown code": {func(t *testing.T, o *office, r *identity.Enrolment) {
			*r = o.request(t, mine, "ABCD-EFGH-2345-WXYZ")
		}, automation.CodeUnauthorized, "wrong, used or expired"},
		"no code": {func(_ *testing.T, _ *office, r *identity.Enrolment) { r.Code = "" }, automation.CodeUnauthorized, "wrong, used or expired"},
		"huge code": {func(_ *testing.T, _ *office, r *identity.Enrolment) {
			r.Code = strings.Repeat("A", 1<<20)
		}, automation.CodeUnauthorized, "wrong, used or expired"},
		"expired code": {func(t *testing.T, o *office, r *identity.Enrolment) {
			code := r.Code
			o.clock.Advance(automation.EnrollmentCodeValidFor)
			*r = o.request(t, mine, code)
		}, automation.CodeUnauthorized, "wrong, used or expired"},
		"used code": {func(t *testing.T, o *office, r *identity.Enrolment) {
			if _, err := o.enroller.Enroll(t.Context(), o.request(t, other, r.Code)); err != nil {
				t.Fatal(err)
			}
		}, automation.CodeUnauthorized, "wrong, used or expired"},
		"proof of another key": {func(t *testing.T, o *office, r *identity.Enrolment) {
			r.Proof = o.request(t, other, r.Code).Proof
		}, automation.CodeUnauthorized, "another key"},
		"proof for another code": {func(t *testing.T, o *office, r *identity.Enrolment) {
			r.Proof = o.request(t, mine, o.code(t)).Proof
		}, automation.CodeUnauthorized, "another enrolment code"},
		"old proof": {func(_ *testing.T, o *office, _ *identity.Enrolment) {
			o.clock.Advance(2 * time.Minute)
		}, automation.CodeUnauthorized, "2m0s behind the server's"},
		"call proof as enrolment proof": {func(t *testing.T, o *office, r *identity.Enrolment) {
			h, err := identity.NewSigner(mine, machineA, identity.SignerOptions{Now: o.clock.Now}).Proof("POST", baseURL, "")
			if err != nil {
				t.Fatal(err)
			}
			r.Proof = h.Proof
		}, automation.CodeUnauthorized, "must have the type"},
		"no proof":   {func(_ *testing.T, _ *office, r *identity.Enrolment) { r.Proof = "" }, automation.CodeUnauthorized, "not a JWS"},
		"huge proof": {func(_ *testing.T, _ *office, r *identity.Enrolment) { r.Proof = strings.Repeat("x", 1<<20) }, automation.CodeUnauthorized, "too long"},
		"no key":     {func(_ *testing.T, _ *office, r *identity.Enrolment) { r.PublicKey = nil }, automation.CodeValidationFailed, "publicKey"},
		"private key": {func(t *testing.T, _ *office, r *identity.Enrolment) {
			_, private := newKey(t)
			data, err := json.Marshal(jose.JSONWebKey{Key: private})
			if err != nil {
				t.Fatal(err)
			}
			r.PublicKey = data
		}, automation.CodeValidationFailed, "without its private part"},
		"key of a weak type": {func(_ *testing.T, _ *office, r *identity.Enrolment) {
			r.PublicKey = json.RawMessage(`{"kty":"RSA","n":"AQAB","e":"AQAB"}`)
		}, automation.CodeValidationFailed, "must be Ed25519"},
		"blank name":  {func(_ *testing.T, _ *office, r *identity.Enrolment) { r.Name = " " }, automation.CodeValidationFailed, "name: must have 1 to 200"},
		"long name":   {func(_ *testing.T, _ *office, r *identity.Enrolment) { r.Name = strings.Repeat("ä", 201) }, automation.CodeValidationFailed, "name"},
		"NUL in name": {func(_ *testing.T, _ *office, r *identity.Enrolment) { r.Name = "a\x00b" }, automation.CodeValidationFailed, "name"},
		"all at once": {func(_ *testing.T, _ *office, r *identity.Enrolment) {
			r.Name, r.Platform, r.Version, r.Labels = "\xff", "\n", strings.Repeat("x", 201), map[string]string{"": "x"}
		}, automation.CodeValidationFailed, "version: must have at most 200 bytes and no control character (and 1 more"},
	}
	for name, test := range tests {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			o := newOffice()
			r := o.request(t, mine, o.code(t))
			test.change(t, o, &r)
			before := o.machines.count()
			_, err := o.enroller.Enroll(t.Context(), r)
			wantCode(t, err, test.code, test.want)
			if o.machines.count() != before {
				t.Error("a refused enrolment stored a machine")
			}
		})
	}
}

func TestCodeSurvivesBadRequestsAndStoreTrouble(t *testing.T) {
	t.Parallel()
	o, key, thief := newOffice(), mustKey(t, t.TempDir()), mustKey(t, t.TempDir())
	good := o.request(t, key, o.code(t))

	bad := good
	bad.PublicKey = thief.Public() // without the thief's own proof
	_, err := o.enroller.Enroll(t.Context(), bad)
	wantCode(t, err, automation.CodeUnauthorized, "another key")

	o.machines.fail = automation.Errorf(automation.CodeStoreUnavailable, "the database does not answer")
	_, err = o.enroller.Enroll(t.Context(), good)
	wantCode(t, err, automation.CodeStoreUnavailable, "does not answer")

	o.machines.fail = nil
	first, err := o.enroller.Enroll(t.Context(), good)
	if err != nil {
		t.Fatalf("after the store came back: %v", err)
	}
	again, err := o.enroller.Enroll(t.Context(), good)
	if err != nil || again.ID != first.ID || o.machines.count() != 1 {
		t.Errorf("repeating gave %q and %v, %d machines", again.ID, err, o.machines.count())
	}
}

func TestConcurrentUseOfOneCodeEnrolsOneMachine(t *testing.T) {
	t.Parallel()
	o := newOffice()
	code := o.code(t)
	const rivals = 16
	requests := make([]identity.Enrolment, rivals)
	for i := range requests {
		requests[i] = o.request(t, mustKey(t, t.TempDir()), code)
	}
	errs := make([]error, rivals)
	var group sync.WaitGroup
	for i := range requests {
		group.Go(func() { _, errs[i] = o.enroller.Enroll(t.Context(), requests[i]) })
	}
	group.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else if automation.CodeOf(err) != automation.CodeUnauthorized {
			t.Errorf("a loser was told %v", err)
		}
	}
	if won != 1 || o.machines.count() != 1 {
		t.Errorf("%d enrolments succeeded, %d machines", won, o.machines.count())
	}
}

func TestCodeIsKeptAsItsHash(t *testing.T) {
	t.Parallel()
	o := newOffice()
	code, _, err := o.enroller.NewCode(t.Context(), owner, machineA)
	if err != nil {
		t.Fatal(err)
	}
	for hash, kept := range o.machines.codes {
		if plain := strings.ReplaceAll(code, "-", ""); strings.Contains(hash, plain) || len(hash) != 64 || kept.MachineID != machineA {
			t.Errorf("of the code %s the ledger keeps %+v", code, kept)
		}
	}
	m, err := o.enroller.Enroll(t.Context(), o.request(t, mustKey(t, t.TempDir()), code))
	if err != nil || m.ID != machineA {
		t.Errorf("the code of a machine enrolled %+v, %v", m, err)
	}
	o.machines.fail = automation.Errorf(automation.CodeRateLimited, "too many codes are open")
	_, _, err = o.enroller.NewCode(t.Context(), owner, "")
	wantCode(t, err, automation.CodeRateLimited, "codes are open")
}

func TestEnrolmentProofRefusesWhatIsNoCode(t *testing.T) {
	t.Parallel()
	key := mustKey(t, t.TempDir())
	for _, code := range []string{"", "hello", "ABCD-EFGH-2345", "ABCD-EFGH-2345-WXYZ-ABCD"} {
		_, err := identity.EnrolmentProof(key, code, start)
		wantCode(t, err, automation.CodeValidationFailed, "like ABCD-EFGH-2345-WXYZ")
	}
}
