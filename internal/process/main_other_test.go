//go:build !linux

package process_test

var platformHelpers map[string]func(args []string)
