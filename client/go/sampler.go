package rollserve

import (
	"context"
	"encoding/json"
	"fmt"
	"math"
	"sync/atomic"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Sampler is a client of a sampler on a server: it sends agents and environments, and receives episodes. Goroutines can
// share it.
//
// Calls fail with an Error, which errors.As finds. A call's context is its deadline and its cancellation. An update
// that fails changes nothing on the server. A sampling call that fails or is cancelled uses up the indices of the
// episodes that it may have delivered, if it continued the sampler's own sequence; a fragment call that fails or is
// cancelled leaves the rows where they were.
//
// Calls sample with the agent and the environment that this client set, or fail with ErrPrecondition
// (ReasonUnexpectedVersion) if another client has updated them since, unless Config.Shared is set. What this client has
// not set, or what a call names by its version, may be anybody's.
type Sampler struct {
	config  *Config
	conn    *grpc.ClientConn
	service pb.SamplerServiceClient
	own     *ownVersions
	contact *contact
}

// Connect returns a sampler on the server at target, such as 127.0.0.1:50051 or any name that gRPC knows. It does not
// wait for the connection; the first call does. The error is an ErrInvalidArgument for a target or a field of the
// configuration that cannot be used.
func Connect(target string, config Config) (*Sampler, error) {
	checked, err := config.withDefaults(target)
	if err != nil {
		return nil, err
	}
	own, err := newOwnVersions(checked.Shared)
	if err != nil {
		return nil, err
	}
	conn, seen, err := checked.dial(target)
	if err != nil {
		return nil, err
	}
	return &Sampler{
		config: checked, conn: conn, service: pb.NewSamplerServiceClient(conn), own: own,
		contact: &contact{seen: seen, proxy: proxyVariable(target)},
	}, nil
}

// Close closes the connection. Calls that are running, and later ones, fail with ErrCancelled.
func (s *Sampler) Close() error {
	atomic.StoreInt32(&s.contact.closed, 1)
	return s.conn.Close()
}

// Service returns the generated client of the connection, for RPCs that Sampler has no method for. Its errors are
// gRPC's statuses.
func (s *Sampler) Service() pb.SamplerServiceClient { return s.service }

// UpdateAgentOptions are options of updates of the agent; nil has all defaults.
type UpdateAgentOptions struct {
	// SkipIfIdentical says whether to do nothing if each worker's agent is already, to the last bit, what the update
	// would make of it.
	SkipIfIdentical bool
}

// UpdateAgent gives all workers a new agent, or new parameters for the present one. It returns the new policy version
// once every worker has it, or the current version if nothing was done.
func (s *Sampler) UpdateAgent(ctx context.Context, agent AgentUpdate, options *UpdateAgentOptions) (int64, error) {
	update, err := messageOf(agent)
	if err != nil {
		return 0, err
	}
	request := &pb.UpdateAgentRequest{Update: &pb.UpdateAgentRequest_AllWorkers{AllWorkers: update}}
	return s.updateAgent(ctx, request, options, update)
}

// UpdateAgentPerWorker gives each worker an update of its own, in the order of their indices; nil leaves the worker's
// agent as it is. See UpdateAgent.
func (s *Sampler) UpdateAgentPerWorker(
	ctx context.Context, agents []AgentUpdate, options *UpdateAgentOptions,
) (int64, error) {
	updates := make([]*pb.AgentUpdate, len(agents))
	for i, agent := range agents {
		if agent == nil {
			updates[i] = &pb.AgentUpdate{}
			continue
		}
		var err error
		if updates[i], err = messageOf(agent); err != nil {
			return 0, fmt.Errorf("worker %d: %w", i, err)
		}
	}
	perWorker := &pb.AgentUpdatePerWorker{Updates: updates}
	request := &pb.UpdateAgentRequest{Update: &pb.UpdateAgentRequest_PerWorker{PerWorker: perWorker}}
	return s.updateAgent(ctx, request, options, updates...)
}

func messageOf(agent AgentUpdate) (*pb.AgentUpdate, error) {
	if agent == nil {
		return nil, invalid("agent", "an agent, Parameters or an AgentChange", "nil")
	}
	return agent.agentUpdate()
}

func (s *Sampler) updateAgent(
	ctx context.Context, request *pb.UpdateAgentRequest, options *UpdateAgentOptions, updates ...*pb.AgentUpdate,
) (int64, error) {
	keepsAny := false
	for _, update := range updates {
		keepsAny = keepsAny || update.GetAgent() == nil
	}
	request.Sampler = s.config.Sampler
	request.SkipIfIdentical = options != nil && options.SkipIfIdentical
	s.own.expectInAgentUpdate(request, keepsAny)
	response, err := answer(ctx, s, 0, func(ctx context.Context) (*pb.UpdateAgentResponse, error) {
		return s.service.UpdateAgent(ctx, request)
	})
	if err != nil {
		return 0, err
	}
	s.own.setAgent(response.GetPolicyVersion(), response.GetEnvironmentVersion())
	return response.GetPolicyVersion(), nil
}

// UpdateEnv replaces or changes the environments of all workers. It returns their version and spaces once every worker
// has them.
func (s *Sampler) UpdateEnv(ctx context.Context, env EnvUpdate) (*EnvUpdated, error) {
	if env == nil {
		return nil, invalid("env", "an EnvSpec, an EnvChange or RowEnvUpdates", "nil")
	}
	update, err := env.envUpdate()
	if err != nil {
		return nil, err
	}
	request := &pb.UpdateEnvRequest{Update: &pb.UpdateEnvRequest_AllWorkers{AllWorkers: update}}
	return s.updateEnv(ctx, request, keepsAny(update))
}

// UpdateEnvPerWorker gives each worker an update of its own, in the order of their indices; nil leaves the worker's
// environments as they are. The spaces of all workers have to be equal.
func (s *Sampler) UpdateEnvPerWorker(ctx context.Context, envs []EnvUpdate) (*EnvUpdated, error) {
	perWorker, keeps := &pb.EnvironmentUpdatePerWorker{}, false
	for i, env := range envs {
		if env == nil {
			perWorker.Updates, keeps = append(perWorker.Updates, &pb.EnvironmentUpdate{}), true
			continue
		}
		update, err := env.envUpdate()
		if err != nil {
			return nil, fmt.Errorf("worker %d: %w", i, err)
		}
		perWorker.Updates = append(perWorker.Updates, update)
		keeps = keeps || keepsAny(update)
	}
	request := &pb.UpdateEnvRequest{Update: &pb.UpdateEnvRequest_PerWorker{PerWorker: perWorker}}
	return s.updateEnv(ctx, request, keeps)
}

func (s *Sampler) updateEnv(ctx context.Context, request *pb.UpdateEnvRequest, keeps bool) (*EnvUpdated, error) {
	request.Sampler = s.config.Sampler
	s.own.expectInEnvUpdate(request, keeps)
	response, err := answer(ctx, s, makingTime, func(ctx context.Context) (*pb.UpdateEnvResponse, error) {
		return s.service.UpdateEnv(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	s.own.setEnv(response.GetEnvironmentVersion())
	observationSpace, actionSpace, err := decodeSpaces(response.GetObservationSpace(), response.GetActionSpace())
	if err != nil {
		return nil, err
	}
	return &EnvUpdated{
		EnvVersion:        response.GetEnvironmentVersion(),
		ObservationSpace:  observationSpace,
		ActionSpace:       actionSpace,
		Reproducibility:   nameOf(reproducibilities, response.GetReproducibility()),
		NumRows:           int(response.GetRowCount()),
		NumEpisodesPerRow: int(response.GetEpisodesPerRow()),
		Agents:            response.GetAgents(),
	}, nil
}

// CallEnvironments calls a method of the workers' environments, which are made for the call, and returns its values:
// one for each element of the status's environments. encoding/json has to be able to write the arguments, and reads
// the values.
func (s *Sampler) CallEnvironments(
	ctx context.Context, method string, arguments []any, options *CallEnvironmentsOptions,
) ([]any, error) {
	request := &pb.CallEnvironmentsRequest{Sampler: s.config.Sampler, Method: method}
	if options != nil {
		request.EnvironmentVersion = options.EnvVersion
	}
	for i, argument := range arguments {
		text, err := json.Marshal(argument)
		if err != nil {
			return nil, invalid(fmt.Sprintf("arguments[%d]", i), "a value that JSON can hold", err)
		}
		request.ArgumentsJson = append(request.ArgumentsJson, string(text))
	}
	s.own.expectInEnvCall(request)
	response, err := answer(ctx, s, makingTime, func(ctx context.Context) (*pb.CallEnvironmentsResponse, error) {
		return s.service.CallEnvironments(ctx, request)
	})
	if err != nil {
		return nil, err
	}
	values := make([]any, len(response.GetValuesJson()))
	for i, text := range response.GetValuesJson() {
		if err := json.Unmarshal([]byte(text), &values[i]); err != nil {
			return nil, malformed(err)
		}
	}
	return values, nil
}

// CallEnvironmentsOptions are options of CallEnvironments; nil has all defaults.
type CallEnvironmentsOptions struct {
	// EnvVersion is the version of the environments; the current one by default.
	EnvVersion *int64
}

// ObtainSamples samples whole episodes with at least numSteps steps in all: the fewest, in the order of their indices.
func (s *Sampler) ObtainSamples(ctx context.Context, numSteps int, options *SamplingOptions) (*EpisodeBatch, error) {
	return joined(s.StreamSamples(ctx, numSteps, options))
}

// ObtainExactEpisodes samples an exact number of episodes on each worker: first all of worker 0, then all of worker 1,
// and so on.
func (s *Sampler) ObtainExactEpisodes(
	ctx context.Context, numEpisodesPerWorker int, options *SamplingOptions,
) (*EpisodeBatch, error) {
	return joined(s.StreamExactEpisodes(ctx, numEpisodesPerWorker, options))
}

// ObtainFragments samples exactly numSteps steps, equally many of each row; episodes continue from call to call.
//
// numSteps is a multiple of the number of rows: EnvUpdated.NumRows for each worker.
// Each segment is a fragment: the part of an episode that this call delivers. The comment on Fragments in the protos
// says in which order they are.
func (s *Sampler) ObtainFragments(
	ctx context.Context, numSteps int, options *FragmentOptions,
) (*EpisodeBatch, error) {
	return joined(s.StreamFragments(ctx, numSteps, options))
}

func joined(stream *Stream, err error) (*EpisodeBatch, error) {
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return stream.Join()
}

// StreamSamples streams what ObtainSamples returns, message by message. An episode may continue in the next message.
// The error is an ErrInvalidArgument for options that cannot be sent; others come from the stream.
func (s *Sampler) StreamSamples(ctx context.Context, numSteps int, options *SamplingOptions) (*Stream, error) {
	call, timeout, err := s.samplesCall(numSteps, options)
	if err != nil {
		return nil, err
	}
	return &Stream{newReader(ctx, s, call, timeout, false)}, nil
}

// StreamFragments streams what ObtainFragments returns, message by message. A fragment may continue in the next
// message.
func (s *Sampler) StreamFragments(ctx context.Context, numSteps int, options *FragmentOptions) (*Stream, error) {
	call, timeout, err := s.fragmentsCall(numSteps, options)
	if err != nil {
		return nil, err
	}
	return &Stream{newReader(ctx, s, call, timeout, false)}, nil
}

// StreamExactEpisodes streams what ObtainExactEpisodes returns, message by message. An episode may continue in the next
// message.
func (s *Sampler) StreamExactEpisodes(
	ctx context.Context, numEpisodesPerWorker int, options *SamplingOptions,
) (*Stream, error) {
	call, timeout, err := s.exactEpisodesCall(numEpisodesPerWorker, options)
	if err != nil {
		return nil, err
	}
	return &Stream{newReader(ctx, s, call, timeout, false)}, nil
}

func (s *Sampler) samplesCall(numSteps int, options *SamplingOptions) (sampling, time.Duration, error) {
	message, timeout, err := s.samplingOptions(options)
	if err != nil {
		return nil, 0, err
	}
	request := &pb.ObtainSamplesRequest{Sampler: s.config.Sampler, StepCount: int64(numSteps), Options: message}
	return &samplesCall{request: request}, timeout, nil
}

func (s *Sampler) fragmentsCall(numSteps int, options *FragmentOptions) (sampling, time.Duration, error) {
	if options == nil {
		options = &FragmentOptions{}
	}
	message, timeout, err := s.samplingOptions(&options.SamplingOptions)
	if err != nil {
		return nil, 0, err
	}
	fragments := &pb.Fragments{
		SoftHorizon: options.SoftHorizon, RowStepCount: options.RowStepCount,
		FractionOfWorkers: options.FractionOfWorkers,
	}
	request := &pb.ObtainSamplesRequest{
		Sampler: s.config.Sampler, StepCount: int64(numSteps), Options: message, Fragments: fragments,
	}
	return &samplesCall{request: request}, timeout, nil
}

func (s *Sampler) exactEpisodesCall(
	numEpisodesPerWorker int, options *SamplingOptions,
) (sampling, time.Duration, error) {
	message, timeout, err := s.samplingOptions(options)
	if err != nil {
		return nil, 0, err
	}
	request := &pb.ObtainExactEpisodesRequest{
		Sampler: s.config.Sampler, EpisodeCountPerWorker: int64(numEpisodesPerWorker), Options: message,
	}
	return &exactEpisodesCall{request: request}, timeout, nil
}

func (s *Sampler) samplingOptions(options *SamplingOptions) (*pb.SamplingOptions, time.Duration, error) {
	if options == nil {
		options = &SamplingOptions{}
	}
	message, err := options.message(s.config)
	if err != nil {
		return nil, 0, err
	}
	timeout, err := s.timeout(options.Timeout)
	if err != nil {
		return nil, 0, err
	}
	s.own.expectInSampling(message)
	return message, timeout, nil
}

func (s *Sampler) timeout(timeout time.Duration) (time.Duration, error) {
	switch {
	case timeout < 0:
		return 0, invalid("Timeout", "a positive time", timeout)
	case timeout == 0:
		return s.config.Timeout, nil
	default:
		return timeout, nil
	}
}

// makingTime is how long a server may make environments, while it can be reached.
const makingTime = 10 * time.Minute

// answer makes a call with a single answer, which may take the further time `work` where the context has no deadline.
// If a server that has answered before is away, or is lost before its answer, the call is made again, within the call's
// time. An update may then be made twice, with the same result and a version more.
func answer[T any](
	ctx context.Context, s *Sampler, work time.Duration, call func(context.Context) (T, error),
) (T, error) {
	timeout, limited, total := s.config.Timeout, ctx, s.config.Timeout
	if deadline, has := ctx.Deadline(); has {
		timeout, total = time.Until(deadline), time.Until(deadline)
	} else {
		if total < math.MaxInt64-work {
			total += work
		}
		var cancel context.CancelFunc
		limited, cancel = context.WithTimeout(ctx, total)
		defer cancel()
	}
	interruptions := newInterruptions(s.contact, timeout)
	for {
		response, err := call(limited)
		if err == nil {
			s.contact.record()
			return response, nil
		}
		if err := interruptions.pause(limited, err, false, false); err != nil {
			return response, answerError(err, total, interruptions.last)
		}
	}
}

// answerError returns the error for a call with a single answer, after the last attempt at it.
func answerError(err error, timeout time.Duration, last error) error {
	switch {
	case codeOf(err) != codes.DeadlineExceeded || ReasonOf(err) != "": // a server at work says so
		return err
	case last != nil: // the last attempt had only the rest of the time
		return last
	default:
		message := "timeout: no answer for " + timeout.String()
		return &Error{Message: message, Code: codes.DeadlineExceeded, Field: "timeout"}
	}
}
