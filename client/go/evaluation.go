package rollserve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"time"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Evaluation is the result of an evaluation of N episodes, in the order of their indices.
type Evaluation struct {
	// Returns (N) are the sums of the rewards of each episode, without transforms; with many agents, over all of them.
	Returns []float64
	// Lengths (N) are the numbers of steps of each episode.
	Lengths []int
	// Terminated (N) says whether the last step reached a terminal state.
	Terminated []bool
	// Truncated (N) says whether a limit ended the episode. Both flags may be set.
	Truncated []bool
	// ReturnSummary are statistics of the returns.
	ReturnSummary Summary
	// LengthSummary are statistics of the lengths.
	LengthSummary Summary
	// AgentReturns says what each agent got, in an environment with many agents; nil with one agent.
	AgentReturns *AgentReturns
	// Episodes are the episodes, if EvaluationOptions.ReturnEpisodes asked for them; otherwise nil, and with many agents.
	Episodes *EpisodeBatch
	// MultiAgentEpisodes are the episodes of an environment with many agents, in the same way.
	MultiAgentEpisodes *MultiAgentBatch

	// PolicyVersion is the version of the policy that acted.
	PolicyVersion int64
	// EnvVersion is the version of the sampler's environment that the agent acted in; 0 for EvaluationOptions.Env.
	EnvVersion int64
	// Seed is the root seed of the episodes.
	Seed uint64
	// FirstEpisodeIndex is the index of the first episode.
	FirstEpisodeIndex uint64
	// Reproducibility says which unit of work the same seed gives again.
	Reproducibility Reproducibility
	// Account says what was simulated, and what became of it. Episodes that are not delivered count as discarded.
	Account *Account
}

// Summary has statistics of numbers, and the uncertainty of their mean. All but the mean are NaN for a single number.
type Summary struct {
	// Mean is the mean.
	Mean float64
	// StandardDeviation is the standard deviation of the sample.
	StandardDeviation float64
	// ConfidenceLow and ConfidenceHigh are the ends of the 95 % confidence interval of the mean, by Student's t
	// distribution.
	ConfidenceLow, ConfidenceHigh float64
}

// AgentReturns says what P agents got in N episodes of an environment with many agents, and which of K versions of
// policies acted for them. The elements for the first episode come first, in the order of the agents.
type AgentReturns struct {
	// Agents (P) are the names of the environment's possible agents.
	Agents []string
	// Policies (K) are the versions of policies that acted.
	Policies []PolicyVersion
	// Returns (N * P) are the returns of each agent in each episode; NaN for an agent that made no step.
	Returns []float64
	// PolicyPositions (N * P) are the positions among Policies of what acted; -1 for an agent that made no step.
	PolicyPositions []int
}

// PolicyVersion is a version of a policy.
type PolicyVersion struct {
	// Policy is the policy's name.
	Policy string
	// Version is the number of the update of the agent that made it.
	Version int64
}

// String returns the version as `name@version`.
func (v PolicyVersion) String() string { return fmt.Sprintf("%s@%d", v.Policy, v.Version) }

// ByAgent returns the returns of each agent in the episodes in which it made a step.
func (r *AgentReturns) ByAgent() map[string][]float64 {
	byAgent := map[string][]float64{}
	for i, value := range r.Returns {
		if r.PolicyPositions[i] >= 0 {
			agent := r.Agents[i%len(r.Agents)]
			byAgent[agent] = append(byAgent[agent], value)
		}
	}
	return byAgent
}

// ByPolicy returns the returns of each version of a policy that acted. Of an episode in which a policy acts for several
// agents, the mean of their returns counts: they depend on each other.
func (r *AgentReturns) ByPolicy() map[PolicyVersion][]float64 {
	byPolicy := map[PolicyVersion][]float64{}
	for place, version := range r.Policies {
		for begin := 0; begin < len(r.Returns); begin += len(r.Agents) {
			sum, count := 0.0, 0
			for i := begin; i < begin+len(r.Agents); i++ {
				if r.PolicyPositions[i] == place {
					sum += r.Returns[i]
					count++
				}
			}
			if count > 0 {
				byPolicy[version] = append(byPolicy[version], sum/float64(count))
			}
		}
	}
	return byPolicy
}

func decodeEvaluation(message *pb.Evaluation) (*Evaluation, error) {
	evaluation := &Evaluation{
		Returns:           message.GetReturns(),
		Lengths:           converted[int](message.GetLengths()),
		Terminated:        message.GetTerminated(),
		Truncated:         message.GetTruncated(),
		ReturnSummary:     decodeSummary(message.GetReturnSummary()),
		LengthSummary:     decodeSummary(message.GetLengthSummary()),
		PolicyVersion:     message.GetPolicyVersion(),
		EnvVersion:        message.GetEnvironmentVersion(),
		Seed:              message.GetSeed(),
		FirstEpisodeIndex: message.GetFirstEpisodeIndex(),
		Reproducibility:   nameOf(reproducibilities, message.GetReproducibility()),
		Account:           decodeAccount(message.GetAccount()),
	}
	var err error
	evaluation.AgentReturns, err = decodeAgentReturns(message.GetAgentReturns(), len(evaluation.Returns))
	return evaluation, err
}

func decodeSummary(message *pb.Summary) Summary {
	if message == nil {
		message = &pb.Summary{}
	}
	orNaN := func(value *float64) float64 {
		if value == nil {
			return math.NaN()
		}
		return *value
	}
	return Summary{
		Mean:              message.GetMean(),
		StandardDeviation: orNaN(message.StandardDeviation),
		ConfidenceLow:     orNaN(message.ConfidenceLow),
		ConfidenceHigh:    orNaN(message.ConfidenceHigh),
	}
}

// decodeAgentReturns returns an error unless returns have an element for each agent of each episode.
func decodeAgentReturns(message *pb.AgentReturns, numEpisodes int) (*AgentReturns, error) {
	if message == nil {
		return nil, nil
	}
	size := numEpisodes * len(message.GetAgents())
	for _, length := range []int{len(message.GetReturns()), len(message.GetPolicyPositions())} {
		if length != size {
			expected := fmt.Sprintf("%d values, one for each agent of each episode", size)
			return nil, malformed(mismatch("agent_returns", expected, length))
		}
	}
	returns := &AgentReturns{
		Agents:          message.GetAgents(),
		Returns:         message.GetReturns(),
		PolicyPositions: converted[int](message.GetPolicyPositions()),
	}
	for _, policy := range message.GetPolicies() {
		returns.Policies = append(returns.Policies, PolicyVersion{policy.GetPolicy(), policy.GetVersion()})
	}
	return returns, nil
}

// Evaluate evaluates the agent on a number of episodes, in environments that only evaluations use. It uses and changes
// nothing of the sampler's own, such as its sequence or its environments. Without a seed, every evaluation plays the
// same episodes.
func (s *Sampler) Evaluate(ctx context.Context, numEpisodes int, options *EvaluationOptions) (*Evaluation, error) {
	episodeCount, err := countOf("numEpisodes", numEpisodes)
	if err != nil {
		return nil, err
	}
	if options == nil {
		options = &EvaluationOptions{}
	}
	message, timeout, err := s.evaluationOptions(options)
	if err != nil {
		return nil, err
	}
	request := &pb.EvaluateRequest{Sampler: s.config.Sampler, EpisodeCount: episodeCount, Options: message}
	if options.ReturnEpisodes {
		accepted, err := compressionMessages(s.config.Compression)
		if err != nil {
			return nil, err
		}
		request.Episodes = &pb.EpisodeDelivery{
			MaxMessageBytes:   Some(uint32(s.config.MaxMessageBytes)),
			AcceptCompression: accepted,
			AcceptFrameStacks: true,
		}
	}
	result, batches, ofMany := (*pb.Evaluation)(nil), []*EpisodeBatch(nil), []*MultiAgentBatch(nil)
	err = evaluate(ctx, s, message, timeout, func(ctx context.Context) (func() (*pb.EvaluateResponse, error), error) {
		batches, ofMany = nil, nil // a repeated call delivers all episodes again
		stream, err := s.service.Evaluate(ctx, request)
		if err != nil {
			return nil, err
		}
		return stream.Recv, nil
	}, func(response *pb.EvaluateResponse) error {
		if response.GetBatch() != nil {
			batch, err := decodeBatch(response.GetBatch(), 0)
			if err != nil {
				return malformed(err)
			}
			if batch.Len() > 0 {
				batches = append(batches, batch)
			}
		}
		if response.GetMultiAgentBatch() != nil {
			batch, err := decodeMany(response.GetMultiAgentBatch())
			if err != nil {
				return malformed(err)
			}
			if batch.Len() > 0 {
				ofMany = append(ofMany, batch)
			}
		}
		if evaluation := response.GetEvaluation(); evaluation != nil {
			result = evaluation
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if result == nil {
		return nil, malformed(errors.New("the stream ended without its evaluation"))
	}
	evaluation, err := decodeEvaluation(result)
	if err != nil {
		return nil, err
	}
	switch {
	case options.ReturnEpisodes && len(ofMany) > 0:
		evaluation.MultiAgentEpisodes, err = joinManyWithAccount(ofMany, evaluation.Account, whole{})
	case options.ReturnEpisodes:
		evaluation.Episodes, err = joinWithAccount(batches, evaluation.Account, whole{})
	}
	if err != nil {
		return nil, err
	}
	return evaluation, nil
}

// PopulationEvaluation is the result of an evaluation of K members of a population on M episodes each: first of all
// episodes of member 0, then of all of member 1, and so on.
type PopulationEvaluation struct {
	// Returns (K * M) are the sums of the rewards of each episode, as in Evaluation.
	Returns []float64
	// Lengths (K * M) are the numbers of steps of each episode.
	Lengths []int
	// NumMembers is K.
	NumMembers int
	// NumEpisodes is M.
	NumEpisodes int
	// NumSteps is the number of steps of all episodes.
	NumSteps int64
	// AgentReturns says what each agent got, in an environment with many agents; nil with one agent. The policies of
	// members have version 0.
	AgentReturns *AgentReturns

	// PolicyVersion is the version of the policy that the members share.
	PolicyVersion int64
	// EnvVersion is the version of the sampler's environment that the members acted in; 0 for EvaluationOptions.Env.
	EnvVersion int64
	// Seed is the root seed of the episodes.
	Seed uint64
	// FirstEpisodeIndex is the index of the first episode of member 0.
	FirstEpisodeIndex uint64
	// Reproducibility says which unit of work the same seed gives again.
	Reproducibility Reproducibility
	// Account says what was simulated. All episodes count as discarded.
	Account *Account
}

// MeanReturns returns the mean return of each member.
func (e *PopulationEvaluation) MeanReturns() []float64 {
	means := make([]float64, e.NumMembers)
	for i, value := range e.Returns {
		means[i/e.NumEpisodes] += value / float64(e.NumEpisodes)
	}
	return means
}

// EvaluatePopulation evaluates K parameter sets of the agent on a number of episodes each. Each array of parameters has
// one more axis in front, of size K; parameters that are left out are the agent's own for all members.
func (s *Sampler) EvaluatePopulation(
	ctx context.Context, parameters Parameters, numEpisodes int, options *EvaluationOptions,
) (*PopulationEvaluation, error) {
	episodeCount, err := countOf("numEpisodes", numEpisodes)
	if err != nil {
		return nil, err
	}
	if options == nil {
		options = &EvaluationOptions{}
	}
	message, timeout, err := s.evaluationOptions(options)
	if err != nil {
		return nil, err
	}
	members, err := parameters.message()
	if err != nil {
		return nil, err
	}
	request := &pb.EvaluatePopulationRequest{
		Sampler: s.config.Sampler, Parameters: members, EpisodeCount: episodeCount, Options: message,
		DifferentEpisodes: options.DifferentEpisodes,
	}
	result := (*pb.PopulationEvaluation)(nil)
	start := func(ctx context.Context) (func() (*pb.EvaluatePopulationResponse, error), error) {
		stream, err := s.service.EvaluatePopulation(ctx, request)
		if err != nil {
			return nil, err
		}
		return stream.Recv, nil
	}
	err = evaluate(ctx, s, message, timeout, start, func(response *pb.EvaluatePopulationResponse) error {
		if evaluation := response.GetEvaluation(); evaluation != nil {
			result = evaluation
		}
		return nil
	})
	if err != nil {
		return nil, err
	}
	if result == nil || len(result.GetReturns()) != int(result.GetMemberCount())*int(result.GetEpisodeCount()) {
		return nil, malformed(errors.New("evaluation: expected a return for each episode of each member, got others"))
	}
	returns, err := decodeAgentReturns(result.GetAgentReturns(), len(result.GetReturns()))
	if err != nil {
		return nil, err
	}
	return &PopulationEvaluation{
		Returns:           result.GetReturns(),
		Lengths:           converted[int](result.GetLengths()),
		NumMembers:        int(result.GetMemberCount()),
		NumEpisodes:       int(result.GetEpisodeCount()),
		NumSteps:          int64(result.GetStepCount()),
		AgentReturns:      returns,
		PolicyVersion:     result.GetPolicyVersion(),
		EnvVersion:        result.GetEnvironmentVersion(),
		Seed:              result.GetSeed(),
		FirstEpisodeIndex: result.GetFirstEpisodeIndex(),
		Reproducibility:   nameOf(reproducibilities, result.GetReproducibility()),
		Account:           decodeAccount(result.GetAccount()),
	}, nil
}

func (s *Sampler) evaluationOptions(options *EvaluationOptions) (*pb.EvaluationOptions, time.Duration, error) {
	message, err := options.message()
	if err != nil {
		return nil, 0, err
	}
	timeout, err := s.timeout(options.Timeout)
	if err != nil {
		return nil, 0, err
	}
	s.own.expectInEvaluation(message)
	return message, timeout, nil
}

// evaluationResponse is a message of the stream of an evaluation.
type evaluationResponse interface {
	GetBeginning() *pb.Beginning
	GetProgress() *pb.Progress
}

// evaluate makes a call, and takes its responses. If the connection or the server is lost, the call is repeated up to
// its timeout after the first loss: nothing of an interrupted evaluation is kept. The options belong to the request,
// and change so that it repeats the call that has begun.
func evaluate[R evaluationResponse](
	ctx context.Context, s *Sampler, options *pb.EvaluationOptions, timeout time.Duration,
	start func(context.Context) (func() (R, error), error), take func(R) error,
) error {
	interruptions := newInterruptions(s.contact, timeout)
	hasBegun, canRepeat := false, false
	for {
		attempt := newAttempt(ctx, start)
		response, err := attempt.next(timeout)
		for ; err == nil; response, err = attempt.next(timeout) {
			s.contact.record()
			if beginning := response.GetBeginning(); beginning != nil {
				hasBegun, canRepeat = true, isRepeatable(beginning.GetReproducibility())
				repeatFrom(options, beginning)
			}
			if progress := response.GetProgress(); progress != nil {
				interruptions.waitingFor = progress.GetWaitingFor()
				if progress.GetWarning() != "" {
					s.config.Warn(progress.GetWarning())
				}
			}
			if err := take(response); err != nil {
				attempt.cancel()
				return err
			}
		}
		attempt.cancel()
		switch {
		case err == io.EOF:
			return nil
		case attempt.expired() && ctx.Err() == nil:
			return interruptions.silence()
		}
		if err := interruptions.pause(ctx, err, hasBegun, canRepeat); err != nil {
			return err
		}
	}
}

// repeatFrom makes a request repeat the call that has begun.
func repeatFrom(options *pb.EvaluationOptions, beginning *pb.Beginning) {
	options.Seed = Some(beginning.GetSeed())
	options.PolicyVersion = Some(beginning.GetPolicyVersion())
	options.ExpectedPolicyVersion = nil // these were checked when the call began
	options.ExpectedEnvironmentVersion = nil
	options.SamplerRun = Some(beginning.GetSamplerRun())
	if options.Environment == nil {
		options.EnvironmentVersion = Some(beginning.GetEnvironmentVersion())
	}
}
