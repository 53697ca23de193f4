//go:build unix

package bench_test

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"go.temporal.io/api/enums/v1"
	"go.temporal.io/api/taskqueue/v1"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/worker"
	"golang.org/x/sync/errgroup"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/metadata"
	"google.golang.org/grpc/status"

	"github.com/errandhq/errand/automation"
	"github.com/errandhq/errand/internal/apptest"
	"github.com/errandhq/errand/internal/gateway"
	"github.com/errandhq/errand/internal/identity"
)

const (
	// fleet is how many machines are idle at once, and observed for how long their control plane's time is taken.
	fleet    = 1000
	observed = time.Minute
	// enrolAbreast is how many of them enrol at once.
	enrolAbreast = 8
	// installation names the queues of the machines beside the bare workflow.
	installation = "01a22e2d-0000-7000-8000-0000000000ff"
	trusted      = "01a22e2d-0000-7000-8000-00000000000a"
	proving      = "01a22e2d-0000-7000-8000-00000000000b"
)

// BenchmarkGateway measures what a step costs more when its worker polls through the gateway, as every machine does, and
// when each of its calls carries a token and a proof. The steps make no commit and are otherwise those of the bare
// workflow.
func BenchmarkGateway(b *testing.B) {
	t := startBare(b)
	address, signer, tokens := serveGateway(b, t)
	t.startMachine(b, address, trusted, func(ctx context.Context, method string, req, reply any, cc *grpc.ClientConn, invoke grpc.UnaryInvoker, opts ...grpc.CallOption) error {
		return invoke(metadata.AppendToOutgoingContext(ctx, "authorization", trusted), method, req, reply, cc, opts...)
	})
	prove, err := identity.UnaryClientInterceptor(signer, tokens, address)
	if err != nil {
		b.Fatal(err)
	}
	t.startMachine(b, address, proving, prove)

	contenders := []string{"direct", "gateway", "gateway with tokens and proofs"}
	queues := []string{machineQueue, automation.MachineQueue(installation, trusted), automation.MachineQueue(installation, proving)}
	samples := make([]sample, len(contenders))
	for round := range settle + rounds {
		for turn := range contenders {
			i := (round + turn) % len(contenders)
			took := t.run(b, 1, bareInput{Steps: longSteps, Queue: queues[i]})
			if round >= settle {
				samples[i] = append(samples[i], float64(took.Microseconds())/1000/longSteps)
			}
		}
	}
	record(b, &measurement{What: "a workflow of 40 steps, one after another", Unit: "ms a step"}, contenders, samples,
		target{Limit: 1.15}, target{})
}

// doorman lets one machine in by its name and the other by its proofs.
type doorman struct{ verifier *identity.Verifier }

func (d doorman) AuthenticateMachine(ctx context.Context, c automation.Credential) (automation.Machine, error) {
	if len(c.Authorization) == 1 && c.Authorization[0] == trusted {
		return automation.Machine{ID: trusted, State: automation.MachineActive}, nil
	}
	return d.verifier.AuthenticateMachine(ctx, c)
}

// oneMachine is the machine that proves its calls.
type oneMachine struct{ publicKey string }

func (m oneMachine) Machine(context.Context, string) (automation.Machine, error) {
	return automation.Machine{ID: proving, State: automation.MachineActive, PublicKey: m.publicKey}, nil
}

// serveGateway serves the gateway and the token endpoint as errandd does, on one port in clear text.
func serveGateway(b *testing.B, t *bare) (string, *identity.Signer, *identity.TokenSource) {
	b.Helper()
	key, err := identity.LoadOrCreateKey(b.TempDir())
	if err != nil {
		b.Fatal(err)
	}
	issued, err := identity.NewTokens(make([]byte, identity.KeySize), installation)
	if err != nil {
		b.Fatal(err)
	}
	server := httptest.NewUnstartedServer(nil)
	address := "http://" + server.Listener.Addr().String()
	verifier, err := identity.NewVerifier(identity.VerifierOptions{
		Machines: oneMachine{string(key.Public())}, Tokens: issued, BaseURLs: []string{address},
	})
	if err != nil {
		b.Fatal(err)
	}
	g, err := gateway.New(gateway.Options{
		Upstream: t.client.WorkflowService(), Namespace: t.server.Namespace(), InstallationID: installation,
		TokenKey: make([]byte, identity.KeySize), Authenticator: doorman{verifier},
	})
	if err != nil {
		b.Fatal(err)
	}
	server.Config.Handler = http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if gateway.IsGRPC(r) {
			g.ServeHTTP(w, r)
			return
		}
		answer, err := verifier.IssueToken(r.Context(), automation.Credential{
			Method: r.Method, Path: r.URL.Path, Authorization: r.Header["Authorization"], Proof: r.Header.Values("DPoP"),
		})
		if err != nil {
			http.Error(w, err.Error(), http.StatusUnauthorized)
			return
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	server.Config.Protocols = new(http.Protocols)
	server.Config.Protocols.SetHTTP1(true)
	server.Config.Protocols.SetUnencryptedHTTP2(true)
	server.Start()
	b.Cleanup(server.Close)
	b.Cleanup(g.Drain)
	signer := identity.NewSigner(key, proving, identity.SignerOptions{})
	source, err := identity.NewTokenSource(signer, address, nil)
	if err != nil {
		b.Fatal(err)
	}
	return address, signer, source
}

// startMachine starts a worker of the bare steps that polls through the gateway.
func (t *bare) startMachine(b *testing.B, address, machine string, identify grpc.UnaryClientInterceptor) {
	b.Helper()
	c, err := client.DialContext(b.Context(), client.Options{
		HostPort: strings.TrimPrefix(address, "http://"), Namespace: t.server.Namespace(),
		Logger: log.NewStructuredLogger(slog.New(slog.DiscardHandler)), WorkerHeartbeatInterval: -1,
		ConnectionOptions: client.ConnectionOptions{DialOptions: []grpc.DialOption{grpc.WithChainUnaryInterceptor(identify)}},
	})
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(c.Close)
	w := worker.New(c, automation.MachineQueue(installation, machine), worker.Options{
		DisableWorkflowWorker: true, MaxConcurrentActivityExecutionSize: slots, MaxConcurrentActivityTaskPollers: activityPollers,
	})
	registerStep(w, t)
	if err := w.Start(); err != nil {
		b.Fatal(err)
	}
	b.Cleanup(w.Stop)
}

// BenchmarkFleet measures what a thousand enrolled machines cost their control plane that do nothing but wait: each has
// an event stream, whose pings it answers, and two polls, as a worker has.
func BenchmarkFleet(b *testing.B) {
	s := apptest.New(b, apptest.Options{NoLocalWorker: true})
	s.Restart()
	<-time.After(calm)
	before := apptest.ResidentBytes(s.PID())
	machines := make([]*idler, fleet)
	var enrolling errgroup.Group
	enrolling.SetLimit(enrolAbreast)
	for i := range machines {
		enrolling.Go(func() (err error) {
			machines[i], err = enrolIdler(b, s)
			return err
		})
	}
	if err := enrolling.Wait(); err != nil {
		b.Fatal(err)
	}
	ctx, stop := context.WithCancel(b.Context())
	var idling errgroup.Group
	for _, m := range machines {
		idling.Go(func() error { return m.listen(ctx) })
		for range activityPollers {
			idling.Go(func() error { return m.poll(ctx) })
		}
	}
	<-time.After(calm)
	began := processorTime(b, s.PID())
	<-time.After(observed)
	used := processorTime(b, s.PID()) - began
	each := float64(apptest.ResidentBytes(s.PID())-before) / (1 << 20) / fleet
	stop()
	if err := idling.Wait(); err != nil {
		b.Errorf("a machine was cut off: %v", err)
	}
	record(b, &measurement{What: "an idle machine of 1,000, memory of errandd", Unit: "MiB", target: target{Limit: 0.7}},
		[]string{"errandd"}, []sample{{each}})
	record(b, &measurement{What: "1,000 idle machines, processor of errandd", Unit: "% of one"},
		[]string{"errandd"}, []sample{{100 * used.Seconds() / observed.Seconds()}})
}

// processorTime returns how long a process has computed, by the clock ticks of the system.
func processorTime(b *testing.B, pid int) time.Duration {
	b.Helper()
	const ticksPerSecond, userTime, systemTime = 100, 11, 12 // counted from the state, behind the name in parentheses
	content, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		b.Skipf("the time of a process is read from /proc: %v", err)
	}
	fields := strings.Fields(string(content[bytes.LastIndexByte(content, ')')+1:]))
	var ticks int
	for _, i := range []int{userTime, systemTime} {
		n, err := strconv.Atoi(fields[i])
		if err != nil {
			b.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * time.Second / ticksPerSecond
}

// idler is an enrolled machine that waits.
type idler struct {
	url, id, queue string
	http           *http.Client
	grpc           workflowservice.WorkflowServiceClient
}

func enrolIdler(b *testing.B, s *apptest.Server) (*idler, error) {
	b.Helper()
	var code struct{ Code string }
	answered, body := s.Post("/v1/machines/enrollment-codes", map[string]any{})
	if err := json.Unmarshal(body, &code); err != nil || answered != http.StatusCreated {
		return nil, fmt.Errorf("making a code: %d %s", answered, body)
	}
	key, err := identity.LoadOrCreateKey(b.TempDir())
	if err != nil {
		return nil, err
	}
	var enrolled automation.EnrollAnswer
	for {
		proof, err := identity.EnrolmentProof(key, code.Code, time.Now())
		if err != nil {
			return nil, err
		}
		answered, body = s.Post("/v1/machine/enroll", automation.EnrollRequest{
			Code: code.Code, PublicKey: key.Public(), Proof: proof, Name: "idler", Platform: "linux/amd64", Version: "bench",
		})
		if answered != http.StatusTooManyRequests {
			break
		}
		<-time.After(time.Second)
	}
	if err := json.Unmarshal(body, &enrolled); err != nil || answered != http.StatusCreated {
		return nil, fmt.Errorf("enrolling: %d %s", answered, body)
	}
	signer := identity.NewSigner(key, enrolled.MachineID, identity.SignerOptions{})
	transport := &http.Transport{}
	b.Cleanup(transport.CloseIdleConnections)
	tokens, err := identity.NewTokenSource(signer, s.URL(), transport)
	if err != nil {
		return nil, err
	}
	prove, err := identity.UnaryClientInterceptor(signer, tokens, s.URL())
	if err != nil {
		return nil, err
	}
	connection, err := grpc.NewClient(strings.TrimPrefix(s.URL(), "http://"),
		grpc.WithTransportCredentials(insecure.NewCredentials()), grpc.WithChainUnaryInterceptor(prove))
	if err != nil {
		return nil, err
	}
	b.Cleanup(func() { _ = connection.Close() })
	m := &idler{
		url: s.URL(), id: enrolled.MachineID, grpc: workflowservice.NewWorkflowServiceClient(connection),
		http: &http.Client{Transport: &identity.Transport{Base: transport, Signer: signer, Tokens: tokens}},
	}
	return m, m.hello()
}

func (m *idler) hello() error {
	answer, err := m.post("/v1/machine/hello", automation.Hello{
		Instance: automation.Instance{DirectoryID: m.id, BootID: "boot", Start: 1, Host: "bench"},
		Version:  "bench", Platform: "linux/amd64", Concurrency: slots,
	})
	var said automation.HelloAnswer
	if err == nil {
		err = json.Unmarshal(answer, &said)
	}
	m.queue = said.TaskQueue
	return err
}

func (m *idler) post(path string, body any) ([]byte, error) {
	content, err := json.Marshal(body)
	if err != nil {
		return nil, err
	}
	response, err := m.http.Post(m.url+path, "application/json", bytes.NewReader(content))
	if err != nil {
		return nil, err
	}
	defer response.Body.Close()
	answer, err := io.ReadAll(response.Body)
	if err == nil && response.StatusCode != http.StatusOK {
		err = fmt.Errorf("%s: %s %s", path, response.Status, answer)
	}
	return answer, err
}

// listen keeps an event stream open and answers its pings until ctx ends.
func (m *idler) listen(ctx context.Context) error {
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, m.url+"/v1/machine/events", nil)
	if err != nil {
		return err
	}
	response, err := m.http.Do(request)
	if err != nil {
		return err
	}
	defer response.Body.Close()
	for lines := bufio.NewScanner(response.Body); lines.Scan(); {
		if lines.Text() != "event: ping" {
			continue
		}
		if _, err := m.post("/v1/machine/alive", struct{}{}); err != nil && ctx.Err() == nil {
			return err
		}
	}
	if ctx.Err() == nil {
		return fmt.Errorf("the stream has ended")
	}
	return nil
}

// poll polls until ctx ends. On a busy computer Temporal may be late with the end of a poll; a worker polls again.
func (m *idler) poll(ctx context.Context) error {
	for ctx.Err() == nil {
		_, err := m.grpc.PollActivityTaskQueue(ctx, &workflowservice.PollActivityTaskQueueRequest{
			Namespace: "errand", TaskQueue: &taskqueue.TaskQueue{Name: m.queue, Kind: enums.TASK_QUEUE_KIND_NORMAL},
		})
		if err != nil && ctx.Err() == nil && status.Code(err) != codes.Unavailable {
			return err
		}
	}
	return nil
}
