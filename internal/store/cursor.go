package store

import (
	"encoding/base64"
	"encoding/binary"

	"github.com/google/uuid"

	"github.com/errandhq/errand/automation"
)

// Listings, one letter each, so that the cursor of one is refused by another.
const (
	listAutomations = 'a'
	listRuns        = 'r'
	listMachines    = 'm'
	listOwners      = 'o'
	listKeys        = 'k'
	listAudit       = 'l'
)

// position is the place of a row in a listing, which is ordered by creation and id.
type position struct {
	createdAt instant
	id        string
}

// cursor returns the opaque text of a position: 25 bytes in base64.
func (p position) cursor(listing byte) string {
	raw := binary.BigEndian.AppendUint64([]byte{listing}, uint64(p.createdAt.micros)) //nolint:gosec // the same bits
	id := uuid.MustParse(p.id)
	return base64.RawURLEncoding.EncodeToString(append(raw, id[:]...))
}

// cursor reads the cursor of a request; nil for an empty one, which asks for the first page.
func (v *violations) cursor(listing byte, cursor string) *position {
	if cursor == "" {
		return nil
	}
	const length = 1 + 8 + 16
	raw, err := base64.RawURLEncoding.Strict().DecodeString(cursor)
	if err != nil || len(raw) != length || raw[0] != listing {
		v.add("cursor", "is not a cursor of this listing; pass next_cursor of the page before, unchanged")
		return nil
	}
	return &position{
		createdAt: instant{micros: int64(binary.BigEndian.Uint64(raw[1:9])), valid: true}, //nolint:gosec // the same bits
		id:        uuid.UUID(raw[9:]).String(),
	}
}

// pageSize returns how many rows a page has.
func pageSize(limit int) int {
	if limit <= 0 {
		return automation.DefaultPageSize
	}
	return min(limit, automation.MaxPageSize)
}

// page cuts the row that was read beyond a page and makes the next cursor from the last one that stays.
func page[T any](rows []T, size int, listing byte, of func(T) position) ([]T, string) {
	if len(rows) <= size {
		return rows, ""
	}
	rows = rows[:size]
	return rows, of(rows[size-1]).cursor(listing)
}
