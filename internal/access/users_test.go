package access_test

import (
	"bytes"
	"context"
	"crypto/rand"
	"errors"
	"log/slog"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/access"
)

// ledger keeps keys and owners in memory, and counts how often it is asked.
type ledger struct {
	mu     sync.Mutex
	keys   map[string]automation.APIKey
	owners map[automation.NewOwner]automation.Owner
	asked  int
	used   []string
	err    error
}

func (l *ledger) KeyOfHash(_ context.Context, hash string) (automation.APIKey, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.asked++
	k, found := l.keys[hash]
	if l.err != nil || !found {
		return k, errors.Join(l.err, automation.Errorf(automation.CodeNotFound, "there is no such API key"))
	}
	return k, nil
}

func (l *ledger) KeyUsed(_ context.Context, k automation.APIKey, _ time.Time) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.used = append(l.used, k.ID)
	return l.err
}

func (l *ledger) OwnerOfSubject(_ context.Context, o automation.NewOwner) (automation.Owner, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.owners == nil {
		l.owners = map[automation.NewOwner]automation.Owner{}
	}
	owner, found := l.owners[o]
	if !found {
		owner = automation.Owner{ID: "owner of " + o.Subject}
		l.owners[o] = owner
	}
	return owner, nil
}

// issuer vouches for whoever a token with two dots names first.
type issuer struct{ admin string }

func (i issuer) Verify(_ context.Context, token string) (access.Person, error) {
	name, _, _ := strings.Cut(token, ".")
	if name == "forged" {
		return access.Person{}, automation.Errorf(automation.CodeUnauthorized, "forged")
	}
	return access.Person{Issuer: "i", Subject: name, Name: name, Admin: name == i.admin}, nil
}

var (
	now    = time.Date(2026, time.January, 5, 9, 0, 0, 0, time.UTC)
	silent = slog.New(slog.DiscardHandler)
)

func newKey(t *testing.T) string {
	t.Helper()
	key, err := access.NewKey(rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	return key
}

func TestKeys(t *testing.T) {
	t.Parallel()
	form := regexp.MustCompile(`^errand_[0-9A-Za-z]{36}$`) // what docs/security.md tells scanners
	seen := map[string]bool{}
	digits := map[rune]int{}
	for range 2000 {
		key := newKey(t)
		if !form.MatchString(key) || seen[key] {
			t.Fatalf("the key %q is of another form, or there twice", key)
		}
		seen[key] = true
		for _, digit := range key[7:37] {
			digits[digit]++
		}
	}
	for digit, n := range digits { // 968 of each are expected; 6 sigma are 185
		if n < 780 || n > 1160 || len(digits) != 62 {
			t.Errorf("%c is there %d times, among %d digits", digit, n, len(digits))
		}
	}
	if _, err := access.NewKey(bytes.NewReader([]byte("too short"))); err == nil {
		t.Error("a key was made without randomness")
	}
	if hash := access.HashKey("a"); hash != "ca978112ca1bbdcafac231b39a23dc4da786eff8147c4e72b9807785afee48bb" {
		t.Errorf("the hash is %s", hash)
	}
}

// TestUsers shows whom each token stands for, and what is said about one that stands for nobody.
func TestUsers(t *testing.T) {
	t.Parallel()
	ends, past := now.Add(time.Minute), now.Add(-time.Minute)
	good, expired, revoked, unknown := newKey(t), newKey(t), newKey(t), newKey(t)
	l := &ledger{keys: map[string]automation.APIKey{
		access.HashKey(good):    {ID: "k1", OwnerID: "ada", Scope: automation.ScopeControl, ExpiresAt: &ends},
		access.HashKey(expired): {ID: "k2", OwnerID: "ada", Scope: automation.ScopeControl, ExpiresAt: &now},
		access.HashKey(revoked): {ID: "k3", OwnerID: "ada", Scope: automation.ScopeAdmin, RevokedAt: &past},
	}}
	users := access.New(access.Options{
		Store: l, Runtime: func(token string) bool { return token == "errand_rt_right" }, LocalOwnerID: "local",
		Issuer: issuer{admin: "root"}, Now: func() time.Time { return now }, Logger: silent,
	})
	mistyped := good[:20] + string('a'+(good[20]-'a'+1)%26) + good[21:]
	for name, test := range map[string]struct {
		token string
		owner string
		scope automation.Scope
		actor automation.Actor
		says  string // of a refusal
	}{
		"the runtime token":    {"errand_rt_right", "local", automation.ScopeAdmin, automation.Actor{Kind: automation.ActorRuntime, ID: "local"}, ""},
		"another runtime":      {"errand_rt_wrong", "", "", automation.Actor{}, "server.json"},
		"a key":                {good, "ada", automation.ScopeControl, automation.Actor{Kind: automation.ActorKey, ID: "k1"}, ""},
		"an expired key":       {expired, "ada", "", automation.Actor{Kind: automation.ActorKey, ID: "k2"}, "expired at 2026-01-05T09:00:00Z"},
		"a revoked key":        {revoked, "ada", "", automation.Actor{Kind: automation.ActorKey, ID: "k3"}, "revoked at 2026-01-05T08:59:00Z"},
		"an unknown key":       {unknown, "", "", automation.Actor{}, "not known"},
		"a mistyped key":       {mistyped, "", "", automation.Actor{}, "checksum"},
		"half a key":           {good[:20], "", "", automation.Actor{}, "checksum"},
		"a person":             {"ada.b.c", "owner of ada", automation.ScopePerson, automation.Actor{Kind: automation.ActorUser, ID: "owner of ada"}, ""},
		"an administrator":     {"root.b.c", "owner of root", automation.ScopeAdmin, automation.Actor{Kind: automation.ActorUser, ID: "owner of root"}, ""},
		"a forged person":      {"forged.b.c", "", "", automation.Actor{}, "forged"},
		"nothing":              {"", "", "", automation.Actor{}, "API key"},
		"something else":       {"secret", "", "", automation.Actor{}, "issuer"},
		"something with a dot": {"a.b", "", "", automation.Actor{}, "issuer"},
	} {
		p, err := users.User(t.Context(), test.token)
		if p.OwnerID != test.owner || p.Scope != test.scope || p.Actor != test.actor || p.MachineID != "" {
			t.Errorf("%s stands for %+v", name, p)
		}
		if refused := test.says != ""; refused != (automation.CodeOf(err) == automation.CodeUnauthorized) ||
			refused && (!strings.Contains(err.Error(), test.says) || len(test.token) > 5 && strings.Contains(err.Error(), test.token)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if len(l.used) != 1 || l.used[0] != "k1" {
		t.Errorf("used: %v", l.used)
	}
}

// TestNoLookupForWhatIsNoKey shows that made-up keys cost no look into the database.
func TestNoLookupForWhatIsNoKey(t *testing.T) {
	t.Parallel()
	l := &ledger{}
	users := access.New(access.Options{Store: l, Runtime: func(string) bool { return false }, Now: time.Now, Logger: silent})
	for range 1000 {
		if _, err := users.User(t.Context(), "errand_"+rand.Text()+rand.Text()[:10]); automation.CodeOf(err) != automation.CodeUnauthorized {
			t.Fatal(err)
		}
	}
	if l.asked > 1 { // one in 2^32 has the right checksum
		t.Errorf("%d lookups", l.asked)
	}
	if _, err := users.User(t.Context(), "a.b.c"); automation.CodeOf(err) != automation.CodeUnauthorized {
		t.Errorf("without an issuer: %v", err)
	}
}

// TestTheDatabaseIsAway shows that its trouble is not relabelled.
func TestTheDatabaseIsAway(t *testing.T) {
	t.Parallel()
	key := newKey(t)
	away := automation.Errorf(automation.CodeStoreUnavailable, "away")
	l := &ledger{err: away}
	users := access.New(access.Options{Store: l, Runtime: func(string) bool { return false }, Now: time.Now, Logger: silent})
	if _, err := users.User(t.Context(), key); automation.CodeOf(err) != automation.CodeStoreUnavailable {
		t.Errorf("got %v", err)
	}
}
