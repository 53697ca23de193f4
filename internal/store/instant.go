package store

import (
	"database/sql/driver"
	"fmt"
	"time"
)

// instant is a point in time as both databases keep it: microseconds since 1970 UTC in a BIGINT, so that it
// sorts, pages and compares alike. The zero value is NULL.
type instant struct { //nolint:recvcheck // a Valuer is asked by value, a Scanner writes through its pointer
	micros int64
	valid  bool
}

func at(t time.Time) instant { return instant{micros: t.UnixMicro(), valid: true} }

func atOptional(t *time.Time) instant {
	if t == nil {
		return instant{}
	}
	return at(*t)
}

func (i instant) time() time.Time { return time.UnixMicro(i.micros).UTC() }

func (i instant) optional() *time.Time {
	if !i.valid {
		return nil
	}
	t := i.time()
	return &t
}

// Value implements [driver.Valuer].
func (i instant) Value() (driver.Value, error) {
	if !i.valid {
		return nil, nil //nolint:nilnil // NULL is a nil value by the contract of driver.Valuer
	}
	return i.micros, nil
}

// Scan implements [database/sql.Scanner].
func (i *instant) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*i = instant{}
	case int64:
		*i = instant{micros: v, valid: true}
	default:
		return fmt.Errorf("an instant is stored as %T, not as an integer", src)
	}
	return nil
}
