package storetest

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
)

var accessTests = []test{
	{"Owners", testOwners},
	{"FirstSignIn", testFirstSignIn},
	{"Keys", testKeys},
	{"KeyPages", testKeyPages},
	{"KeyUsed", testKeyUsed},
	{"RevokeKey", testRevokeKey},
	{"Audit", testAudit},
	{"AuditHostile", testAuditHostile},
	{"PurgeAudit", testPurgeAudit},
}

func testOwners(t *testing.T, f *fixture) {
	f.clock.Advance(time.Second)
	made, err := f.CreateOwner(t.Context(), automation.NewOwner{Name: "Ada", Issuer: "https://id.example.com", Subject: "ada"})
	if err != nil {
		t.Fatalf("CreateOwner: %v", err)
	}
	wantEqual(t, "the owner", made, automation.Owner{
		ID: made.ID, Name: "Ada", Issuer: "https://id.example.com", Subject: "ada", CreatedAt: f.clock.Now(),
	})
	read, err := f.another(t).Owner(t.Context(), made.ID)
	if err != nil {
		t.Fatalf("Owner: %v", err)
	}
	wantEqual(t, "the owner on another server", read, made)

	_, err = f.CreateOwner(t.Context(), automation.NewOwner{Name: "Again", Issuer: made.Issuer, Subject: made.Subject})
	wantCode(t, "a subject that has an owner", err, automation.CodeValidationFailed)
	wantEqual(t, "its place", paths(err), []string{"subject"})
	for range 2 { // owners without a subject may be called alike
		f.clock.Advance(time.Second)
		if _, err := f.CreateOwner(t.Context(), automation.NewOwner{Name: "robot"}); err != nil {
			t.Errorf("an owner that is known by keys alone: %v", err)
		}
	}
	for place, bad := range map[string]automation.NewOwner{
		"name":    {Name: ""},
		"subject": {Name: "x", Issuer: "https://id.example.com"},
		"issuer":  {Name: "x", Issuer: "\x00", Subject: "s"},
	} {
		_, err := f.CreateOwner(t.Context(), bad)
		wantCode(t, "a wrong "+place, err, automation.CodeValidationFailed)
		wantEqual(t, "its place", paths(err), []string{place})
	}
	for _, id := range []string{NewID(), "", "x"} {
		_, err := f.Owner(t.Context(), id)
		wantCode(t, "the owner "+id, err, automation.CodeNotFound)
	}

	var names []string
	cursor := ""
	for {
		page, next, err := f.Owners(t.Context(), 3, cursor)
		if err != nil {
			t.Fatalf("Owners: %v", err)
		}
		for _, o := range page {
			names = append(names, o.Name)
		}
		if cursor = next; next == "" {
			break
		}
	}
	wantEqual(t, "the owners, oldest first", names, []string{"local", "Ada", "robot", "robot"})
	_, _, err = f.Owners(t.Context(), 3, "x")
	wantCode(t, "a wrong cursor", err, automation.CodeValidationFailed)
}

// testFirstSignIn lets many calls of a new person arrive at two servers at once.
func testFirstSignIn(t *testing.T, f *fixture) {
	ledgers := []automation.Ledger{f, f.another(t)}
	person := automation.NewOwner{Name: "Bea", Issuer: "https://id.example.com", Subject: "bea"}
	owners, errs := together(8, func(i int) (automation.Owner, error) {
		return ledgers[i%len(ledgers)].OwnerOfSubject(t.Context(), person)
	})
	for i := range owners {
		if errs[i] != nil || owners[i].ID != owners[0].ID || owners[i].ID == "" {
			t.Errorf("call %d: %+v, %v", i, owners[i], errs[i])
		}
	}
	person.Issuer = "https://other.example.com"
	other, err := f.OwnerOfSubject(t.Context(), person)
	if err != nil || other.ID == owners[0].ID {
		t.Errorf("the same subject of another issuer: %+v, %v", other, err)
	}
	_, err = f.OwnerOfSubject(t.Context(), automation.NewOwner{Name: "nobody", Issuer: person.Issuer})
	wantCode(t, "no subject", err, automation.CodeValidationFailed)
}

func (f *fixture) key(t *testing.T, owner, name string) automation.APIKey {
	t.Helper()
	k, err := f.CreateKey(t.Context(), automation.NewAPIKey{
		OwnerID: owner, Name: name, Hash: hash(name), Scope: automation.ScopeRead,
		CreatedBy: automation.Actor{Kind: automation.ActorRuntime, ID: owner},
	})
	if err != nil {
		t.Fatalf("CreateKey(%q): %v", name, err)
	}
	return k
}

// hash is as long as a real one, and different for each name.
func hash(name string) string { return fmt.Sprintf("%064x", name) }

func testKeys(t *testing.T, f *fixture) {
	ends := f.clock.Now().Add(time.Hour)
	n := automation.NewAPIKey{
		OwnerID: f.owner, Name: "ci", Hash: hash("ci"), Scope: automation.ScopeControl,
		CreatedBy: automation.Actor{Kind: automation.ActorUser, ID: f.owner}, ExpiresAt: &ends,
	}
	made, err := f.CreateKey(t.Context(), n)
	if err != nil {
		t.Fatalf("CreateKey: %v", err)
	}
	wantEqual(t, "the key", made, automation.APIKey{
		ID: made.ID, OwnerID: f.owner, Name: "ci", Scope: automation.ScopeControl, CreatedBy: n.CreatedBy,
		CreatedAt: f.clock.Now(), ExpiresAt: &ends,
	})
	found, err := f.another(t).KeyOfHash(t.Context(), n.Hash)
	if err != nil {
		t.Fatalf("KeyOfHash: %v", err)
	}
	wantEqual(t, "the key by its hash, on another server", found, made)
	for _, bad := range []string{"", "x", hash("other"), strings.Repeat("x", 5000), "\x00"} {
		if _, err := f.KeyOfHash(t.Context(), bad); err == nil {
			t.Errorf("the hash %.20q found a key", bad)
		}
	}
	for place, change := range map[string]func(*automation.NewAPIKey){
		"name":  func(k *automation.NewAPIKey) { k.Name = "" },
		"hash":  func(k *automation.NewAPIKey) { k.Hash = "" },
		"scope": func(k *automation.NewAPIKey) { k.Scope = "root" },
	} {
		bad := n
		change(&bad)
		_, err := f.CreateKey(t.Context(), bad)
		wantCode(t, "a wrong "+place, err, automation.CodeValidationFailed)
		wantEqual(t, "its place", paths(err), []string{place})
	}
	n.OwnerID, n.Hash = NewID(), hash("x")
	_, err = f.CreateKey(t.Context(), n)
	wantCode(t, "an owner that does not exist", err, automation.CodeNotFound)
	if err := made.Usable(ends.Add(-1)); err != nil {
		t.Errorf("before it expires: %v", err)
	}
	wantCode(t, "when it has expired", made.Usable(ends), automation.CodeUnauthorized)
}

func testKeyPages(t *testing.T, f *fixture) {
	other, _ := f.addOwner(t)
	f.key(t, other, "theirs")
	var want []string
	for i, name := range numbered("k", 7) {
		want = append([]string{f.key(t, f.owner, name).ID}, want...)
		if i%3 == 2 {
			f.clock.Advance(time.Second)
		}
	}
	var got []string
	cursor := ""
	for {
		page, next, err := f.Keys(t.Context(), f.owner, 3, cursor)
		if err != nil {
			t.Fatalf("Keys: %v", err)
		}
		for _, k := range page {
			got = append(got, k.ID)
		}
		if cursor = next; next == "" {
			break
		}
	}
	wantEqual(t, "the pages, newest first", got, want)
	_, _, err := f.Keys(t.Context(), f.owner, 3, "x")
	wantCode(t, "a wrong cursor", err, automation.CodeValidationFailed)
	if page, _, err := f.Keys(t.Context(), "x", 3, ""); err != nil || len(page) > 0 {
		t.Errorf("the keys of nobody: %v, %v", page, err)
	}
}

func testKeyUsed(t *testing.T, f *fixture) {
	f.key(t, f.owner, "ci")
	start := f.clock.Now()
	for _, step := range []struct {
		after time.Duration
		want  time.Duration // of the stored time
	}{{0, 0}, {59 * time.Second, 0}, {time.Minute, time.Minute}, {90 * time.Second, time.Minute}, {3 * time.Minute, 3 * time.Minute}} {
		k, err := f.KeyOfHash(t.Context(), hash("ci"))
		if err != nil {
			t.Fatalf("KeyOfHash: %v", err)
		}
		if err := f.KeyUsed(t.Context(), k, start.Add(step.after)); err != nil {
			t.Fatalf("KeyUsed: %v", err)
		}
		k, err = f.KeyOfHash(t.Context(), hash("ci"))
		if err != nil || k.LastUsedAt == nil || !k.LastUsedAt.Equal(start.Add(step.want)) {
			t.Errorf("after %v: last used %v, want %v (%v)", step.after, k.LastUsedAt, start.Add(step.want), err)
		}
	}
}

func testRevokeKey(t *testing.T, f *fixture) {
	other, _ := f.addOwner(t)
	k := f.key(t, f.owner, "ci")
	_, err := f.RevokeKey(t.Context(), other, k.ID)
	wantCode(t, "another owner's key", err, automation.CodeNotFound)
	theirs := err
	for _, id := range []string{NewID(), "", "x"} {
		_, err := f.RevokeKey(t.Context(), f.owner, id)
		wantCode(t, "the key "+id, err, automation.CodeNotFound)
		wantEqual(t, "the text", err.Error(), theirs.Error())
	}
	revoked, err := f.RevokeKey(t.Context(), f.owner, k.ID)
	if err != nil || revoked.RevokedAt == nil || !revoked.RevokedAt.Equal(f.clock.Now()) {
		t.Fatalf("RevokeKey = %+v, %v", revoked, err)
	}
	f.clock.Advance(time.Hour)
	again, err := f.another(t).RevokeKey(t.Context(), "", k.ID)
	if err != nil {
		t.Fatalf("RevokeKey again: %v", err)
	}
	wantEqual(t, "the key that was revoked before", again, revoked)
	read, err := f.KeyOfHash(t.Context(), hash("ci"))
	if err != nil {
		t.Fatalf("KeyOfHash: %v", err)
	}
	wantCode(t, "a revoked key", read.Usable(f.clock.Now()), automation.CodeUnauthorized)
}

func (f *fixture) audit(t *testing.T, e automation.AuditEntry) {
	t.Helper()
	e.At = f.clock.Now()
	if e.OwnerID == "" {
		e.OwnerID = f.owner
	}
	if err := f.AppendAudit(t.Context(), e); err != nil {
		t.Fatalf("AppendAudit: %v", err)
	}
}

func (f *fixture) readAudit(t *testing.T, q automation.AuditFilter) []automation.AuditEntry {
	t.Helper()
	var all []automation.AuditEntry
	for {
		page, next, err := f.Audit(t.Context(), q)
		if err != nil {
			t.Fatalf("Audit: %v", err)
		}
		all = append(all, page...)
		if q.Cursor = next; next == "" {
			return all
		}
	}
}

func testAudit(t *testing.T, f *fixture) {
	other, _ := f.addOwner(t)
	start := f.clock.Now()
	whole := automation.AuditEntry{
		OwnerID: f.owner, Actor: automation.Actor{Kind: automation.ActorKey, ID: "key"}, Action: "run-now", ObjectID: "automation",
		ResultID: "run", Outcome: automation.OutcomeOK, Address: "2001:db8::1", RequestID: "request",
	}
	f.audit(t, whole)
	for i, e := range []automation.AuditEntry{
		{Action: "update", ObjectID: "automation", Outcome: "version_conflict", Actor: automation.Actor{Kind: automation.ActorUser, ID: "ada"}},
		{Action: "delete", ObjectID: "automation", Outcome: automation.OutcomeOK, Actor: automation.Actor{Kind: automation.ActorKey, ID: "key"}},
		{Action: "cancel-run", ObjectID: "run", Outcome: automation.OutcomeOK, OwnerID: other, Actor: automation.Actor{Kind: automation.ActorMachine, ID: "m"}},
	} {
		if i > 0 {
			f.clock.Advance(time.Second)
		}
		f.audit(t, e)
	}
	second := start.Add(time.Second)
	for name, test := range map[string]struct {
		filter automation.AuditFilter
		want   []string
	}{
		"all":          {automation.AuditFilter{Limit: 1}, []string{"cancel-run", "delete", "update", "run-now"}},
		"an object":    {automation.AuditFilter{Object: "automation", Limit: 2}, []string{"delete", "update", "run-now"}},
		"what came":    {automation.AuditFilter{Object: "run"}, []string{"cancel-run", "run-now"}},
		"an actor":     {automation.AuditFilter{Actor: "key"}, []string{"delete", "run-now"}},
		"an action":    {automation.AuditFilter{Action: "update"}, []string{"update"}},
		"an owner":     {automation.AuditFilter{OwnerID: other}, []string{"cancel-run"}},
		"no owner":     {automation.AuditFilter{OwnerID: "x"}, nil},
		"since":        {automation.AuditFilter{Since: &second}, []string{"cancel-run", "delete"}},
		"until":        {automation.AuditFilter{Until: &second}, []string{"update", "run-now"}},
		"several":      {automation.AuditFilter{Object: "automation", Actor: "key", Since: &second}, []string{"delete"}},
		"nothing else": {automation.AuditFilter{Object: "x"}, nil},
	} {
		var got []string
		for _, e := range f.readAudit(t, test.filter) {
			got = append(got, e.Action)
		}
		wantEqual(t, name, got, test.want)
	}
	entry := f.readAudit(t, automation.AuditFilter{Action: "run-now"})[0]
	whole.ID, whole.At = entry.ID, start
	wantEqual(t, "a whole entry", entry, whole)
	_, _, err := f.Audit(t.Context(), automation.AuditFilter{Cursor: "x"})
	wantCode(t, "a wrong cursor", err, automation.CodeValidationFailed)
	wantCode(t, "an owner that is none", f.AppendAudit(t.Context(), automation.AuditEntry{OwnerID: "x"}), automation.CodeNotFound)
}

// testAuditHostile stores what a caller may have sent: an entry is cut and cleaned, never refused.
func testAuditHostile(t *testing.T, f *fixture) {
	f.audit(t, automation.AuditEntry{Action: "get", ObjectID: "a\x00b\xff" + strings.Repeat("x", 10_000), Outcome: "not_found"})
	entry := f.readAudit(t, automation.AuditFilter{Action: "get"})[0]
	if !strings.HasPrefix(entry.ObjectID, "a\u2400b\uFFFD") || len(entry.ObjectID) > 200 {
		t.Errorf("the object reads %.50q", entry.ObjectID)
	}
	_, _, err := f.Audit(t.Context(), automation.AuditFilter{Object: "a\x00"})
	wantCode(t, "NUL in a filter", err, automation.CodeValidationFailed)
}

func testPurgeAudit(t *testing.T, f *fixture) {
	for _, name := range numbered("a", 5) {
		f.audit(t, automation.AuditEntry{Action: name, Outcome: automation.OutcomeOK})
		f.clock.Advance(time.Hour)
	}
	before := f.clock.Now().Add(-2 * time.Hour) // a0, a1, a2 are older; a3 is not
	for _, want := range []int{2, 1, 0} {
		if n, err := f.PurgeAudit(t.Context(), before, 2); err != nil || n != want {
			t.Errorf("PurgeAudit = %d, %v, want %d", n, err, want)
		}
	}
	var left []string
	for _, e := range f.readAudit(t, automation.AuditFilter{}) {
		left = append(left, e.Action)
	}
	wantEqual(t, "what is left", left, []string{"a4", "a3"})
}
