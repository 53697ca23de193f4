//go:build unix

package apptest

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/errandhq/errand/automation"
)

// CommandResult is what a command line left behind.
type CommandResult struct {
	Stdout, Stderr string
	Exit           int
}

// CLI runs errand with arguments, and stdin as its standard input.
func (s *Server) CLI(stdin string, args ...string) CommandResult {
	s.tb.Helper()
	command := exec.CommandContext(s.tb.Context(), filepath.Join(s.bin, "errand"), args...)
	command.Dir, command.Env = s.Options.Dir, s.Environment()
	command.Stdin = strings.NewReader(stdin)
	var stdout, stderr bytes.Buffer
	command.Stdout, command.Stderr = &stdout, &stderr
	err := command.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		s.tb.Fatalf("running errand %s: %v", strings.Join(args, " "), err)
	}
	return CommandResult{Stdout: stdout.String(), Stderr: stderr.String(), Exit: command.ProcessState.ExitCode()}
}

// Token returns the token of server.json.
func (s *Server) Token() string {
	s.tb.Helper()
	file, err := s.runtimeFile()
	if err != nil {
		s.tb.Fatal(err)
	}
	return file.Token
}

// Get sends a GET with the token of server.json. The path is that of the URL, with its query.
func (s *Server) Get(path string) (status int, body []byte) {
	s.tb.Helper()
	return s.Do(s.Request(http.MethodGet, path, nil))
}

// Post sends a POST with the token of server.json and a body: a value to encode, or bytes as they are.
func (s *Server) Post(path string, body any) (status int, answer []byte) {
	s.tb.Helper()
	content, ok := body.([]byte)
	if !ok {
		var err error
		if content, err = json.Marshal(body); err != nil {
			s.tb.Fatal(err)
		}
	}
	return s.Do(s.Request(http.MethodPost, path, content))
}

// Request prepares a request with the token of server.json, for [Server.Do].
func (s *Server) Request(method, path string, body []byte) *http.Request {
	s.tb.Helper()
	request, err := http.NewRequestWithContext(s.tb.Context(), method, s.URL()+path, bytes.NewReader(body))
	if err != nil {
		s.tb.Fatal(err)
	}
	if len(body) > 0 {
		request.Header.Set("Content-Type", "application/json")
	}
	request.Header.Set("Authorization", "Bearer "+s.Token())
	return request
}

// Do sends a request and returns the answer.
func (s *Server) Do(request *http.Request) (status int, body []byte) {
	s.tb.Helper()
	response, err := http.DefaultClient.Do(request)
	if err != nil {
		s.checkRunning()
		s.tb.Fatal(err)
	}
	body, err = io.ReadAll(response.Body)
	if err := errors.Join(err, response.Body.Close()); err != nil {
		s.tb.Fatalf("reading the answer of %s: %v", request.URL, err)
	}
	return response.StatusCode, body
}

// Create creates an automation and returns its id. The definition is a value to encode, or JSON bytes.
func (s *Server) Create(definition any) string {
	s.tb.Helper()
	var created struct{ ID string }
	s.decode(http.StatusCreated, &created)(s.Post("/v1/automations", definition))
	return created.ID
}

// RunNow admits a run and returns it as the answer shows it. The request holds the other members of the
// command's input; nil is none.
func (s *Server) RunNow(automationID string, request map[string]any) automation.Run {
	s.tb.Helper()
	if request == nil {
		request = map[string]any{}
	}
	var run automation.Run
	s.decode(http.StatusCreated, &run)(s.Post("/v1/automations/"+automationID+"/runs", request))
	return run
}

// Run reads a run.
func (s *Server) Run(id string) automation.Run {
	s.tb.Helper()
	var run automation.Run
	s.decode(http.StatusOK, &run)(s.Get("/v1/runs/" + id))
	return run
}

func (s *Server) decode(want int, target any) func(status int, body []byte) {
	s.tb.Helper()
	return func(status int, body []byte) {
		s.tb.Helper()
		if status != want {
			s.tb.Fatalf("the answer is %d, not %d: %s", status, want, body)
		}
		if err := json.Unmarshal(body, target); err != nil {
			s.tb.Fatalf("decoding %s: %v", body, err)
		}
	}
}

// WaitRun waits until a run has a status and returns it. A run that ends with another one fails the test.
func (s *Server) WaitRun(id string, want automation.RunStatus) automation.Run {
	s.tb.Helper()
	return s.AwaitRun(id, "the run is "+string(want), func(run automation.Run) bool { return run.Status == want })
}

// AwaitRun waits until a run satisfies a condition and returns it. A run that ends without it fails the test.
func (s *Server) AwaitRun(id, what string, condition func(automation.Run) bool) automation.Run {
	s.tb.Helper()
	var run automation.Run
	s.Await(patience, what, func() (string, bool) {
		run = s.Run(id)
		if condition(run) {
			return "", true
		}
		text := describe(run)
		if run.Status.Finished() {
			s.tb.Fatalf("the run has ended before %s: %s", what, text)
		}
		return text, false
	})
	return run
}

func describe(run automation.Run) string {
	run.Plan = nil
	text, err := json.Marshal(run)
	if err != nil {
		return fmt.Sprint(err)
	}
	return string(text)
}
