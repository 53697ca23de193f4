// Command minimal is the least that a Go program can do to list automations: one GET, its answer copied to the
// standard output. The benchmark holds `errand list` against it.
//
//	minimal URL TOKEN
package main

import (
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
)

func main() {
	if err := run(os.Args[1:], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, "minimal:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout io.Writer) error {
	if len(args) != 2 {
		return fmt.Errorf("%d arguments instead of an URL and a token", len(args))
	}
	request, err := http.NewRequestWithContext(context.Background(), http.MethodGet, args[0], nil)
	if err != nil {
		return err
	}
	request.Header.Set("Authorization", "Bearer "+args[1])
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	if response.StatusCode != http.StatusOK {
		return fmt.Errorf("the answer is %s", response.Status)
	}
	_, err = io.Copy(stdout, response.Body)
	return err
}
