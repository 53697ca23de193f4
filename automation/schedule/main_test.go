package schedule_test

import (
	"os"
	"path/filepath"
	"testing"
	_ "time/tzdata" // for hosts without a zone database
)

// TestMain takes the zone database that comes with Go, where there is one: what the tests expect must not depend
// on how old the host's is.
func TestMain(m *testing.M) {
	database := filepath.Join(os.Getenv("GOROOT"), "lib", "time", "zoneinfo.zip")
	if _, err := os.Stat(database); err == nil {
		if err := os.Setenv("ZONEINFO", database); err != nil {
			panic(err)
		}
	}
	os.Exit(m.Run())
}
