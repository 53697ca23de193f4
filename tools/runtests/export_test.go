package main

import (
	"io"
	"strings"
)

// Summarize reads outputs of go test, one after the other, into one report and
// closes it.
func Summarize(w io.Writer, outputs ...string) (ok bool, err error) {
	r := newReport(w)
	for _, output := range outputs {
		if err := r.Read(strings.NewReader(output)); err != nil {
			return false, err
		}
	}

	return r.Close(), nil
}

// ForRace decodes the output of go list and chooses the packages.
func ForRace(list string) ([]string, error) {
	binaries, err := decodePackages(strings.NewReader(list))

	return forRace(binaries), err
}
