package gateway_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"net/http"
	"testing"

	"go.temporal.io/api/workflowservice/v1"
	"google.golang.org/protobuf/proto"

	"github.com/errandhq/errand/internal/gateway"
)

const (
	pollMethod     = "/temporal.api.workflowservice.v1.WorkflowService/PollActivityTaskQueue"
	completeMethod = "/temporal.api.workflowservice.v1.WorkflowService/RespondActivityTaskCompleted"
	exhausted      = "8"
	refusedUnknown = "16"
)

// stream is a call whose body the test sends as it likes.
type stream struct {
	body   *io.PipeWriter
	status chan string
}

// open begins a call of a machine, or of nobody for "".
func (s *stage) open(t *testing.T, method, machine string) stream {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	transport := &http.Transport{Protocols: protocols}
	t.Cleanup(transport.CloseIdleConnections)
	reader, writer := io.Pipe()
	t.Cleanup(func() { _ = writer.Close() })
	request, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+s.address+method, reader)
	if err != nil {
		t.Fatal(err)
	}
	request.Header.Set("Content-Type", "application/grpc")
	request.Header.Set("TE", "trailers")
	if machine != "" {
		request.Header.Set("Authorization", "Machine "+machine)
		request.Header.Set("DPoP", "proof")
	}
	out := stream{writer, make(chan string, 1)}
	go func() {
		response, err := transport.RoundTrip(request)
		if err != nil {
			out.status <- err.Error()
			return
		}
		defer response.Body.Close()
		_, _ = io.Copy(io.Discard, response.Body) // the trailers come after it
		out.status <- response.Trailer.Get("Grpc-Status") + response.Header.Get("Grpc-Status")
	}()
	return out
}

// frame returns a message as gRPC sends it.
func frame(t *testing.T, message proto.Message) []byte {
	t.Helper()
	encoded, err := proto.Marshal(message)
	if err != nil {
		t.Fatal(err)
	}
	return append(binary.BigEndian.AppendUint32([]byte{0}, uint32(len(encoded))), encoded...)
}

// TestNobodyIsRefusedBeforeTheBody begins a message that never comes.
func TestNobodyIsRefusedBeforeTheBody(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	call := s.open(t, pollMethod, "")
	_, _ = call.body.Write([]byte{0, 0, 0x3f, 0, 0}) // it may be refused before
	if got := receive(t, call.status, "the refusal"); got != refusedUnknown {
		t.Errorf("a call without an identity ended with status %s", got)
	}
}

// TestHealthTakesSmallRequestsOnly sends what no request for the state of the server is.
func TestHealthTakesSmallRequestsOnly(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	call := s.open(t, "/grpc.health.v1.Health/Check", "")
	go func() { _, _ = call.body.Write(make([]byte, 64<<10)) }()
	if got := receive(t, call.status, "the refusal"); got != exhausted {
		t.Errorf("a large request for the state ended with status %s", got)
	}
}

// TestWhatFollowsTheMessageIsNotKept sends on after the message of a poll, which would be kept as long as the poll
// lasts.
func TestWhatFollowsTheMessageIsNotKept(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	call := s.open(t, pollMethod, machineA)
	go func() {
		_, _ = call.body.Write(frame(t, pollOf(machineA)))
		_, _ = call.body.Write(make([]byte, gateway.MaxMessageBytes))
	}()
	if got := receive(t, call.status, "the refusal"); got != exhausted {
		t.Errorf("the poll ended with status %s", got)
	}
	if len(s.upstream.recorded("PollActivityTaskQueue")) > 0 {
		t.Error("the poll reached the upstream")
	}
}

// TestMachineHoldsSoMuch begins more messages than one machine may have in memory. Another machine is served.
func TestMachineHoldsSoMuch(t *testing.T) {
	t.Parallel()
	s := newStage(t, nil)
	almost := bytes.Repeat([]byte{0}, gateway.MaxMessageBytes-10)
	refused := make(chan string, 100)
	for range 9 {
		call := s.open(t, completeMethod, machineA)
		go func() { _, _ = call.body.Write(almost) }()
		go func() { refused <- <-call.status }()
	}
	if got := receive(t, refused, "the refusal"); got != exhausted {
		t.Errorf("the call without room ended with status %s", got)
	}
	if _, err := s.machine(t, machineB).GetSystemInfo(t.Context(), &workflowservice.GetSystemInfoRequest{}); err != nil {
		t.Errorf("another machine: %v", err)
	}
}
