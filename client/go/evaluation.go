package rollserve

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// Evaluation is the result of an evaluation of N episodes, in the order of their indices, with the fields of the wire.
type Evaluation struct {
	*pb.Evaluation
	// Episodes are the episodes, if EvaluationOptions.ReturnEpisodes asked for them; otherwise nil, and with many agents.
	Episodes *EpisodeBatch
	// MultiAgentEpisodes are the episodes of an environment with many agents, in the same way.
	MultiAgentEpisodes *MultiAgentBatch
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

// ReturnsByAgent returns the returns of each agent of an environment with many agents, in the episodes in which it made
// a step; nil with one agent.
func (e *Evaluation) ReturnsByAgent() map[string][]float64 {
	agents := e.GetAgentReturns().GetAgents()
	var byAgent map[string][]float64
	for i, value := range e.GetAgentReturns().GetReturns() {
		if e.AgentReturns.PolicyPositions[i] < 0 {
			continue
		}
		if byAgent == nil {
			byAgent = map[string][]float64{}
		}
		agent := agents[i%len(agents)]
		byAgent[agent] = append(byAgent[agent], value)
	}
	return byAgent
}

// ReturnsByPolicy returns the returns of each version of a policy that acted in an environment with many agents; nil
// with one agent. Of an episode in which a policy acts for several agents, the mean of their returns counts: they
// depend on each other.
func (e *Evaluation) ReturnsByPolicy() map[PolicyVersion][]float64 {
	numAgents := len(e.GetAgentReturns().GetAgents())
	var byPolicy map[PolicyVersion][]float64
	for place, policy := range e.GetAgentReturns().GetPolicies() {
		if byPolicy == nil {
			byPolicy = map[PolicyVersion][]float64{}
		}
		version := PolicyVersion{policy.GetPolicy(), policy.GetVersion()}
		for begin := 0; begin < len(e.AgentReturns.Returns); begin += numAgents {
			sum, count := 0.0, 0
			for i := begin; i < begin+numAgents; i++ {
				if e.AgentReturns.PolicyPositions[i] == int32(place) {
					sum += e.AgentReturns.Returns[i]
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

// checkAgentReturns returns an error unless returns have an element for each agent of each episode.
func checkAgentReturns(returns *pb.AgentReturns, numEpisodes int) error {
	if returns == nil {
		return nil
	}
	size := numEpisodes * len(returns.GetAgents())
	if len(returns.GetReturns()) != size || len(returns.GetPolicyPositions()) != size {
		expected := fmt.Sprintf("%d values, one for each agent of each episode", size)
		return mismatch("agent_returns", expected, len(returns.GetReturns()))
	}
	return nil
}

// Evaluate evaluates the agent on a number of episodes, in environments that only evaluations use. It uses and changes
// nothing of the sampler's own, such as its sequence or its environments.
func (s *Sampler) Evaluate(ctx context.Context, numEpisodes uint32, options *EvaluationOptions) (*Evaluation, error) {
	if options == nil {
		options = &EvaluationOptions{}
	}
	message, timeout, err := s.evaluationOptions(options)
	if err != nil {
		return nil, err
	}
	request := &pb.EvaluateRequest{Sampler: s.config.Sampler, EpisodeCount: numEpisodes, Options: message}
	if options.ReturnEpisodes {
		request.Episodes = &pb.EpisodeDelivery{
			MaxMessageBytes:   Some(uint32(s.config.MaxMessageBytes)),
			AcceptCompression: s.config.Compression,
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
	if err := checkAgentReturns(result.GetAgentReturns(), len(result.GetReturns())); err != nil {
		return nil, malformed(err)
	}
	evaluation, account := &Evaluation{Evaluation: result}, &Account{Account: result.GetAccount()}
	switch {
	case options.ReturnEpisodes && len(ofMany) > 0:
		evaluation.MultiAgentEpisodes, err = joinManyWithAccount(ofMany, account, whole{})
	case options.ReturnEpisodes:
		evaluation.Episodes, err = joinWithAccount(batches, account, whole{})
	}
	return evaluation, err
}

// PopulationEvaluation is the result of an evaluation of K members of a population on M episodes each, with the fields
// of the wire: Returns and Lengths have first all episodes of member 0, then all of member 1, and so on.
type PopulationEvaluation struct{ *pb.PopulationEvaluation }

// MeanReturns returns the mean return of each member.
func (e *PopulationEvaluation) MeanReturns() []float64 {
	means := make([]float64, e.GetMemberCount())
	for i, value := range e.GetReturns() {
		means[i/int(e.GetEpisodeCount())] += value / float64(e.GetEpisodeCount())
	}
	return means
}

// EvaluatePopulation evaluates K parameter sets of the agent on a number of episodes each. Each array of parameters has
// one more axis in front, of size K; parameters that are left out are the agent's own for all members.
func (s *Sampler) EvaluatePopulation(
	ctx context.Context, parameters Parameters, numEpisodes uint32, options *EvaluationOptions,
) (*PopulationEvaluation, error) {
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
		Sampler: s.config.Sampler, Parameters: members, EpisodeCount: numEpisodes, Options: message,
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
	return &PopulationEvaluation{result}, nil
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
