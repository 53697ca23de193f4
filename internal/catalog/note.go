package catalog

import (
	"context"
	"encoding/json"
	"reflect"
	"strings"
	"sync"
	"time"

	"github.com/errandhq/errand/automation"
)

const (
	// noteWithin bounds the time for writing an entry of the audit.
	noteWithin = 5 * time.Second
	// refusalsNoted is how many refusals of one actor are noted in a minute: a caller that is refused again and
	// again must not fill the database.
	refusalsNoted = 60
)

// Changes reports whether a command changes something, so that the audit has an entry for each call.
func (c Command) Changes() bool { return c.Effect != EffectRead }

// note is the entry of the audit for one call. It is written once: when what was asked for is done, or refused.
type note struct {
	service   *Service
	principal Principal
	command   Command
	input     []byte
	once      sync.Once
}

type noteKey struct{}

// settled writes the note of a call whose change is made, for a command that goes on waiting for something else:
// the entry must not be lost with the wait.
func settled(ctx context.Context, result any) error {
	if n, ok := ctx.Value(noteKey{}).(*note); ok {
		return n.write(ctx, result, nil)
	}
	return nil
}

// write writes the entry. A change whose entry cannot be written is not acknowledged.
func (n *note) write(ctx context.Context, result any, refusal error) (err error) {
	n.once.Do(func() {
		object, made := objectOf(n.command, n.input), idOf(result)
		if object == "" {
			object, made = made, ""
		}
		if made == object {
			made = ""
		}
		err = n.service.Note(ctx, n.principal, n.command.Name, object, made, refusal)
	})
	return err
}

// Note writes an entry of the audit: what the principal did to an object, what came of it, and the refusal, or nil
// for none. Refusals of one actor beyond [refusalsNoted] in a minute are left out. The entry is written although
// the caller is gone.
func (s *Service) Note(ctx context.Context, p Principal, action, object, made string, refusal error) error {
	outcome := automation.OutcomeOK
	if refusal != nil {
		outcome = string(automation.CodeOf(refusal))
		if !s.refusals.allow(p.Actor.ID, s.Now()) {
			return nil
		}
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), noteWithin)
	defer cancel()
	return s.Ledger.AppendAudit(ctx, automation.AuditEntry{
		At: s.Now(), OwnerID: p.OwnerID, Actor: p.Actor, Action: action, ObjectID: object, ResultID: made,
		Outcome: outcome, Address: p.Origin.Address, RequestID: p.Origin.RequestID,
	})
}

// refusals counts those of each actor in the current minute.
type refusals struct {
	mu     sync.Mutex
	minute time.Time
	counts map[string]int
}

func (r *refusals) allow(actor string, now time.Time) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if minute := now.Truncate(time.Minute); !minute.Equal(r.minute) || r.counts == nil {
		r.minute, r.counts = minute, map[string]int{}
	}
	r.counts[actor]++
	return r.counts[actor] <= refusalsNoted
}

// objectOf returns the id that a call is about: the one in its path, else the first one that its input names. What is
// no id is left out: it may be anything, such as a key that somebody has pasted into the wrong place.
func objectOf(c Command, input []byte) string {
	var object map[string]json.RawMessage
	if json.Unmarshal(input, &object) != nil {
		return ""
	}
	first := ""
	for _, member := range Members(c.Input) {
		var id string
		if !strings.HasSuffix(member.Name, "_id") || json.Unmarshal(object[member.Name], &id) != nil || !uuidPattern(id) {
			continue
		}
		if strings.Contains(c.Route.Path, "{"+member.Name+"}") {
			return id
		}
		if first == "" && member.Name != "owner_id" {
			first = id
		}
	}
	return first
}

// idOf returns the id of a result that has one.
func idOf(result any) string {
	v := reflect.ValueOf(result)
	if v.Kind() != reflect.Struct {
		return ""
	}
	if id := v.FieldByName("ID"); id.IsValid() && id.Kind() == reflect.String {
		return id.String()
	}
	return ""
}
