// Package engine is the control plane's side of Temporal: it connects to a cluster, starts the workflows of
// admitted runs once each, tells them of cancels, and knows whether the cluster answers. It leaves what a run
// is to the ledger: only ids, kinds, summaries and limits are handed to Temporal.
package engine

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync/atomic"
	"time"

	enumspb "go.temporal.io/api/enums/v1"
	"go.temporal.io/api/operatorservice/v1"
	"go.temporal.io/api/serviceerror"
	"go.temporal.io/api/workflowservice/v1"
	"go.temporal.io/sdk/client"
	"go.temporal.io/sdk/log"
	"go.temporal.io/sdk/temporal"

	"github.com/errandhq/errand/automation"
)

// The search attributes by which operators find runs in Temporal.
const (
	attributeAutomation = "ErrandAutomationId"
	attributeMachine    = "ErrandMachineId"
	attributeTrigger    = "ErrandTrigger"
)

// SearchAttributes returns the names of the search attributes, all of them keywords.
func SearchAttributes() []string {
	return []string{attributeAutomation, attributeMachine, attributeTrigger}
}

// Attributes returns the search attributes of what belongs to an automation and a machine, all of them keywords; nil
// when the namespace has none.
func (e *Engine) Attributes(automationID, machineID string, trigger automation.TriggerKind) map[string]string {
	if !e.attributes.Load() {
		return nil
	}
	return map[string]string{
		attributeAutomation: automationID, attributeMachine: machineID, attributeTrigger: string(trigger),
	}
}

// callTimeout bounds one call of Temporal made on behalf of the control plane.
const callTimeout = 10 * time.Second

// Options say which cluster to use and as whom.
type Options struct {
	// Client holds the address, the namespace, TLS and credentials. Identity and Logger are set here.
	Client         client.Options
	InstallationID string
	Logger         *slog.Logger
}

// Engine is a connection to one namespace of one Temporal cluster.
type Engine struct {
	client     client.Client
	namespace  string
	install    string
	logger     *slog.Logger
	id         atomic.Pointer[string]
	attributes atomic.Bool
	down       atomic.Bool
	// met is set when the cluster has answered once.
	met atomic.Bool
}

// New returns an engine that has not spoken to the cluster yet; [Engine.Connect] does. It refuses options that
// can never work.
func New(o Options) (*Engine, error) {
	o.Client.Identity = "errandd/" + o.InstallationID
	o.Client.Logger = log.NewStructuredLogger(o.Logger)
	if o.Client.Namespace == "" {
		o.Client.Namespace = client.DefaultNamespace
	}
	c, err := client.NewLazyClient(o.Client)
	if err != nil {
		return nil, fmt.Errorf("preparing the connection to Temporal: %w", err)
	}
	e := &Engine{client: c, namespace: o.Client.Namespace, install: o.InstallationID, logger: o.Logger}
	e.down.Store(true)
	return e, nil
}

// Connect reads the identity of the cluster and makes sure that the search attributes exist. Where they may not
// be created, the exact command for an operator is logged and runs are started without them. It tries once, and
// reports engine_unavailable when the cluster does not answer. No run can be started before it has succeeded.
func (e *Engine) Connect(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	namespace, err := e.identify(ctx)
	if err != nil {
		return e.observe(err)
	}
	e.ensureSearchAttributes(ctx, namespace)
	return e.observe(nil)
}

// identify reads the id of the cluster and of the namespace, which together tell one engine from another. Credentials
// that are good for one namespace may not ask for the cluster's id; the namespace's is unique by itself.
func (e *Engine) identify(ctx context.Context) (*workflowservice.DescribeNamespaceResponse, error) {
	var denied *serviceerror.PermissionDenied
	cluster, err := e.client.WorkflowService().GetClusterInfo(ctx, &workflowservice.GetClusterInfoRequest{})
	if err != nil && !errors.As(err, &denied) {
		return nil, translate("reading the id of the Temporal cluster", err)
	}
	namespace, err := e.client.WorkflowService().DescribeNamespace(ctx, &workflowservice.DescribeNamespaceRequest{
		Namespace: e.namespace,
	})
	if _, missing := errors.AsType[*serviceerror.NamespaceNotFound](err); missing {
		return nil, &automation.Error{
			Code: automation.CodeEngineUnavailable, Cause: err,
			Message: fmt.Sprintf("Temporal has no namespace %q; an operator creates it with "+
				"`temporal operator namespace create --namespace %s --retention 720h`", e.namespace, e.namespace),
		}
	}
	if err != nil {
		return nil, translate(fmt.Sprintf("reading the Temporal namespace %q", e.namespace), err)
	}
	id := cluster.GetClusterId() + "/" + namespace.GetNamespaceInfo().GetId()
	e.id.Store(&id)
	return namespace, nil
}

// ensureSearchAttributes creates the search attributes that are missing.
func (e *Engine) ensureSearchAttributes(ctx context.Context, namespace *workflowservice.DescribeNamespaceResponse) {
	wanted := map[string]enumspb.IndexedValueType{}
	for _, key := range SearchAttributes() {
		wanted[key] = enumspb.INDEXED_VALUE_TYPE_KEYWORD
	}
	operator := e.client.OperatorService()
	// Who may not list them, as in Temporal Cloud, finds their names in the namespace itself.
	for _, name := range namespace.GetConfig().GetCustomSearchAttributeAliases() {
		delete(wanted, name)
	}
	if have, err := operator.ListSearchAttributes(ctx, &operatorservice.ListSearchAttributesRequest{
		Namespace: e.namespace,
	}); err == nil {
		for name := range have.GetCustomAttributes() {
			delete(wanted, name)
		}
	}
	if len(wanted) > 0 {
		_, err := operator.AddSearchAttributes(ctx, &operatorservice.AddSearchAttributesRequest{
			Namespace: e.namespace, SearchAttributes: wanted,
		})
		if err != nil {
			e.logger.Warn("search attributes are missing in Temporal and could not be created; "+
				"runs start without them until an operator runs the command and restarts the control plane",
				"error", err, "command", searchAttributeCommand(e.namespace, wanted))
			return
		}
	}
	e.attributes.Store(true)
}

// ID names the cluster and namespace, "" before [Engine.Connect] has succeeded. A run whose workflow is in
// another one is started anew in this one.
func (e *Engine) ID() string {
	if id := e.id.Load(); id != nil {
		return *id
	}
	return ""
}

// Namespace is the namespace of the installation's workflows.
func (e *Engine) Namespace() string { return e.namespace }

// Client returns the connection, for the worker of the control queue and the gateway.
func (e *Engine) Client() client.Client { return e.client }

// Close ends the connection.
func (e *Engine) Close() { e.client.Close() }

// Up reports whether the last call of Temporal was answered.
func (e *Engine) Up() bool { return !e.down.Load() }

// Check asks Temporal whether it serves and remembers the answer for [Engine.Up].
func (e *Engine) Check(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	_, err := e.client.CheckHealth(ctx, &client.CheckHealthRequest{})
	return e.observe(translate("checking Temporal", err))
}

// StartRun starts the workflow of a run. A workflow of that id that is there already, also a closed one, is
// the one that was wanted.
func (e *Engine) StartRun(ctx context.Context, run automation.Startable) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	options := client.StartWorkflowOptions{
		ID:                    automation.WorkflowID(e.install, run.RunID, run.Generation),
		TaskQueue:             automation.ControlQueue(e.install),
		WorkflowIDReusePolicy: enumspb.WORKFLOW_ID_REUSE_POLICY_REJECT_DUPLICATE,
		EnableEagerStart:      true,
		StaticSummary:         automation.WorkflowSummary(run.AutomationName, run.Trigger),
	}
	var attributes []temporal.SearchAttributeUpdate
	for name, value := range e.Attributes(run.AutomationID, run.MachineID, run.Trigger) {
		attributes = append(attributes, temporal.NewSearchAttributeKeyKeyword(name).ValueSet(value))
	}
	options.TypedSearchAttributes = temporal.NewSearchAttributes(attributes...)
	_, err := e.client.ExecuteWorkflow(ctx, options, automation.WorkflowAutomationRun, automation.RunInput{
		RunID:        run.RunID,
		Generation:   run.Generation,
		MachineQueue: automation.MachineQueue(e.install, run.MachineID),
		Steps:        run.Steps,
	})
	if _, started := errors.AsType[*serviceerror.WorkflowExecutionAlreadyStarted](err); started {
		err = nil
	}
	return e.observe(translate("starting the workflow of run "+run.RunID, err))
}

// Call makes one call of Temporal within a bounded time. Its error is in the closed set; a later try may cure one that is
// engine_unavailable. What such an error says of Temporal as a whole is found out by [Engine.Check].
func (e *Engine) Call(
	ctx context.Context, doing string, call func(context.Context, workflowservice.WorkflowServiceClient) error,
) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	return translate(doing, call(ctx, e.client.WorkflowService()))
}

// NotifyCancel tells the workflow of a run that the ledger has recorded a cancel. A workflow that is not
// there has nothing to be told.
func (e *Engine) NotifyCancel(ctx context.Context, runID string, generation int64, notice automation.CancelNotice) error {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	id := automation.WorkflowID(e.install, runID, generation)
	err := e.client.SignalWorkflow(ctx, id, "", automation.CancelSignal.Name, notice)
	return e.observe(translate("telling the workflow of run "+runID+" of its cancel", unlessGone(err)))
}

// observe remembers whether Temporal answered, and logs when that has changed.
func (e *Engine) observe(err error) error {
	down := automation.CodeOf(err) == automation.CodeEngineUnavailable
	was := e.down.Swap(down)
	switch {
	case down && !was:
		e.logger.Warn("Temporal does not answer; runs are admitted, and start when it does", "error", err)
	case !down && e.met.Swap(true) && was:
		e.logger.Info("Temporal answers again")
	}
	return err
}

// translate turns an error of Temporal into one of the closed set. Everything that a later try may cure is
// engine_unavailable.
func translate(doing string, err error) error {
	if err == nil {
		return nil
	}
	var (
		invalid *serviceerror.InvalidArgument
		denied  *serviceerror.PermissionDenied
	)
	if errors.As(err, &invalid) || errors.As(err, &denied) {
		return fmt.Errorf("%s: %w", doing, err)
	}
	return &automation.Error{
		Code: automation.CodeEngineUnavailable, Cause: fmt.Errorf("%s: %w", doing, err),
		Message: "Temporal does not answer; what was admitted is kept and starts when it does" + advice(err),
	}
}

// advice says what to set when the two sides disagree about TLS. The connection hands on only the text of what went
// wrong.
func advice(err error) string {
	for _, known := range []struct{ sign, advice string }{
		{"first record does not look like a TLS handshake", "; it does not speak TLS: unset TEMPORAL_TLS"},
		{
			"certificate signed by unknown authority",
			"; name the authority of its certificate in TEMPORAL_TLS_SERVER_CA_CERT_PATH",
		},
		{
			"certificate required",
			"; it wants a certificate of this server: set TEMPORAL_TLS_CLIENT_CERT_PATH and TEMPORAL_TLS_CLIENT_KEY_PATH",
		},
		{"error reading server preface", "; if it wants TLS, set TEMPORAL_TLS=true"}, // after what TLS itself says
	} {
		if strings.Contains(err.Error(), known.sign) {
			return known.advice
		}
	}
	return ""
}

// searchAttributeCommand is what an operator types to create search attributes.
func searchAttributeCommand(namespace string, wanted map[string]enumspb.IndexedValueType) string {
	var command strings.Builder
	command.WriteString("temporal operator search-attribute create --namespace " + namespace)
	for _, key := range SearchAttributes() {
		if _, missing := wanted[key]; missing {
			command.WriteString(" --name " + key + " --type Keyword")
		}
	}
	return command.String()
}
