package store_test

import (
	"context"
	"database/sql/driver"
	"errors"
	"fmt"
	"io"
	"net"
	"testing"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/store"
)

func TestTranslate(t *testing.T) {
	t.Parallel()
	own := automation.Errorf(automation.CodeNotFound, "no such thing")
	for name, tc := range map[string]struct {
		err  error
		want automation.Code
	}{
		"none":                 {nil, ""},
		"one of ours":          {fmt.Errorf("reading: %w", own), automation.CodeNotFound},
		"admin shutdown":       {&pgconn.PgError{Code: "57P01"}, automation.CodeStoreUnavailable},
		"starting up":          {&pgconn.PgError{Code: "57P03"}, automation.CodeStoreUnavailable},
		"connection exception": {&pgconn.PgError{Code: "08006"}, automation.CodeStoreUnavailable},
		"too many connections": {&pgconn.PgError{Code: "53300"}, automation.CodeStoreUnavailable},
		"disk full":            {&pgconn.PgError{Code: "53100"}, automation.CodeStoreUnavailable},
		"standby":              {&pgconn.PgError{Code: "25006"}, automation.CodeStoreUnavailable},
		"serialization":        {&pgconn.PgError{Code: "40001"}, automation.CodeStoreUnavailable},
		"no such database":     {&pgconn.PgError{Code: "3D000"}, automation.CodeStoreUnavailable},
		"wrong password":       {&pgconn.PgError{Code: "28P01"}, automation.CodeStoreUnavailable},
		"unique violation":     {&pgconn.PgError{Code: "23505"}, automation.CodeInternal},
		"syntax error":         {&pgconn.PgError{Code: "42601"}, automation.CodeInternal},
		"odd code":             {&pgconn.PgError{Code: "5"}, automation.CodeInternal},
		"dial":                 {&net.OpError{Op: "dial", Err: errors.New("refused")}, automation.CodeStoreUnavailable},
		"bad connection":       {driver.ErrBadConn, automation.CodeStoreUnavailable},
		"end of file":          {fmt.Errorf("reading: %w", io.ErrUnexpectedEOF), automation.CodeStoreUnavailable},
		"cancelled":            {context.Canceled, automation.CodeStoreUnavailable},
		"too slow":             {context.DeadlineExceeded, automation.CodeStoreUnavailable},
		"anything else":        {errors.New("surprise"), automation.CodeInternal},
	} {
		got := store.Translate(tc.err)
		if automation.CodeOf(got) != tc.want {
			t.Errorf("%s: %v, want %s", name, got, tc.want)
		}
		if tc.err != nil && !errors.Is(got, tc.err) {
			t.Errorf("%s: the cause is lost in %v", name, got)
		}
	}
}
