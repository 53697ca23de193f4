package automation

import (
	"context"
	"time"
)

// OutcomeOK is the outcome of an action that was done; any other is the [Code] of its refusal.
const OutcomeOK = "ok"

// AuditEntry says who did what to which object, when, from where, and what came of it. It holds ids and codes
// alone: no name, no input, no secret.
type AuditEntry struct {
	ID string    `json:"id"`
	At time.Time `json:"at"`
	// OwnerID is whose things were meant.
	OwnerID string `json:"ownerId" doc:"whose things were meant"`
	Actor   Actor  `json:"actor"`
	// Action is the name of a command, or of what is not a command, such as authenticate.
	Action string `json:"action" doc:"a command, authenticate or temporal-sign-in"`
	// ObjectID is what was acted on, and ResultID what came of it when that is something else; empty for none.
	ObjectID  string `json:"objectId,omitempty" doc:"what was acted on"`
	ResultID  string `json:"resultId,omitempty" doc:"what came of it, when that is something else"`
	Outcome   string `json:"outcome" doc:"ok, or the code of the refusal"`
	Address   string `json:"address" doc:"where the call came from"`
	RequestID string `json:"requestId" doc:"as in X-Request-Id and the log"`
}

// AuditFilter selects entries, newest first. An empty member selects everything.
type AuditFilter struct {
	// Object is an id that was acted on or came of an action.
	Object  string
	Actor   string
	OwnerID string
	Action  string
	// Since and Until are of the entry; Until is exclusive.
	Since, Until *time.Time
	Limit        int
	Cursor       string
}

// AuditStore keeps the audit. Nothing changes an entry.
type AuditStore interface {
	// AppendAudit stores an entry; its id is made by the store. It survives the end of the process when it
	// returns, not a power cut in the same moment.
	AppendAudit(ctx context.Context, e AuditEntry) error
	// Audit returns a page of entries, and the cursor of the next page or "".
	Audit(ctx context.Context, f AuditFilter) ([]AuditEntry, string, error)
	// PurgeAudit removes at most limit entries from before a time, the oldest first, and returns how many.
	PurgeAudit(ctx context.Context, before time.Time, limit int) (int, error)
}
