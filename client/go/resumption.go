package rollserve

import (
	"context"
	"fmt"

	"google.golang.org/protobuf/proto"

	pb "github.com/rollserve/rollserve/client/go/rollservev1"
)

// sampling is a call that streams batches.
type sampling interface {
	// options returns the options of the request.
	options() *pb.SamplingOptions
	// start makes the call, and returns a function that receives its responses.
	start(context.Context, pb.SamplerServiceClient) (func() (*pb.ObtainSamplesResponse, error), error)
	// rest returns the call that delivers what has not been received, and how the receiver continues.
	rest(*resumption) (sampling, whole)
}

// whole counts the whole episodes that earlier calls of a stream delivered, their steps, and the episodes between them
// that were skipped because they had failed.
type whole struct{ episodes, steps, failed uint64 }

// resumption is the position of a stream, over all calls that deliver it, so that no step is delivered twice or left
// out. The comment on Beginning in the protos says which call delivers the rest.
type resumption struct {
	call           sampling // the call that delivers the rest
	first          sampling
	beginning      *pb.Beginning
	numResumptions int

	// Whole episodes that were received: their number, their steps, and the index and steps of the last one.
	numEpisodes, numSteps, lastIndex, lastSteps uint64
	// The episode that was received in part: its index and steps. For fragments, the steps of all episodes that were
	// received after the last whole one.
	partialIndex, partialSteps uint64
	// The present call: the steps that were received before, their episode, and what was delivered before the call.
	stepsToSkip, indexToSkip uint64
	before                   whole

	// Steps of all agents: in whole episodes, in the last one, in the one that was received in part; and those that
	// arrived once more in the present call.
	agentSteps, lastAgentSteps, partialAgentSteps, agentStepsAgain uint64
}

// delivered is a batch of a stream, of one agent or of many.
type delivered interface {
	Len() int
	NumSteps() int
	Ended(part int) bool
	// episode returns the index of the episode of a part.
	episode(part int) uint64
	// steps returns the numbers of steps of a part: those of the environment, and those of all agents.
	steps(part int) (env, agents uint64)
	// after returns the batch without its first steps, of which agents have made a number, before and again.
	after(numSteps int, again, before uint64) delivered
}

func newResumption(call sampling) *resumption { return &resumption{call: call, first: call} }

func (r *resumption) hasBegun() bool { return r.beginning != nil }

// possible reports whether the stream's beginning is known and its episodes can be requested again.
func (r *resumption) possible() bool {
	return r.beginning != nil && isRepeatable(r.beginning.GetReproducibility())
}

func isRepeatable(class pb.Reproducibility) bool {
	return class == pb.Reproducibility_REPRODUCIBILITY_EPISODE || class == pb.Reproducibility_REPRODUCIBILITY_BLOCK
}

// begin records the first message of a call.
func (r *resumption) begin(beginning *pb.Beginning) {
	if r.beginning == nil {
		r.beginning = beginning
	}
}

// take records a batch, and returns the part of it that was not received before; nil if there is none.
func (r *resumption) take(batch delivered) (delivered, error) {
	if r.stepsToSkip > 0 && batch.episode(0) != r.indexToSkip {
		expected := fmt.Sprintf("the rest of episode %d, whose first part was received before", r.indexToSkip)
		return nil, malformed(mismatch("episode_indices", expected, batch.episode(0)))
	}
	if skipped := r.stepsToSkip; skipped > 0 {
		if skipped >= uint64(batch.NumSteps()) {
			r.stepsToSkip -= uint64(batch.NumSteps())
			for part := 0; part < batch.Len(); part++ {
				_, agents := batch.steps(part)
				r.agentStepsAgain += agents
			}
			return nil, nil
		}
		r.stepsToSkip = 0
		batch = batch.after(int(skipped), r.agentStepsAgain, r.partialAgentSteps)
	}
	for part := 0; part < batch.Len(); part++ {
		env, agents := batch.steps(part)
		r.partialSteps += env
		r.partialAgentSteps += agents
		if batch.Ended(part) {
			r.lastIndex, r.lastSteps, r.lastAgentSteps = batch.episode(part), r.partialSteps, r.partialAgentSteps
			r.numEpisodes++
			r.numSteps += r.partialSteps
			r.agentSteps += r.partialAgentSteps
			r.partialSteps, r.partialAgentSteps = 0, 0
		}
	}
	r.partialIndex = batch.episode(batch.Len() - 1)
	return batch, nil
}

// received counts the episodes that ended in what was received, and all steps.
func (r *resumption) received() whole {
	return whole{episodes: r.numEpisodes, steps: r.numSteps + r.partialSteps}
}

// prepare makes the next call the one that delivers what has not been received: all of it, if the stream has not begun.
func (r *resumption) prepare() {
	if r.beginning == nil {
		return
	}
	r.numResumptions++
	r.stepsToSkip, r.agentStepsAgain = 0, 0
	r.call, r.before = r.first.rest(r)
}

// whole returns the account of the whole stream, for the account of its last call.
func (r *resumption) whole(account *Account) *Account {
	if r.numResumptions == 0 {
		return account
	}
	counted := *account
	counted.NumEpisodes += int64(r.before.episodes)
	counted.NumSteps += int64(r.before.steps)
	counted.NumCarriedSteps += int64(r.before.steps)
	counted.NumFailedEpisodes += int64(r.before.failed)
	counted.FirstEpisodeIndex = r.beginning.GetFirstEpisodeIndex()
	counted.NumResumptions = r.numResumptions
	return &counted
}

// samplesCall is a call of ObtainSamples, for whole episodes or fragments.
type samplesCall struct{ request *pb.ObtainSamplesRequest }

func (c *samplesCall) options() *pb.SamplingOptions { return c.request.GetOptions() }

func (c *samplesCall) start(
	ctx context.Context, service pb.SamplerServiceClient,
) (func() (*pb.ObtainSamplesResponse, error), error) {
	stream, err := service.ObtainSamples(ctx, c.request)
	if err != nil {
		return nil, err
	}
	return stream.Recv, nil
}

func (c *samplesCall) rest(r *resumption) (sampling, whole) {
	rest := proto.Clone(c.request).(*pb.ObtainSamplesRequest)
	r.continueIn(rest.Options)
	if rest.Fragments != nil {
		received := r.received()
		r.expectWorkersIn(rest.Options)
		rest.Fragments.RowStepCount = Some(r.beginning.GetRowStepCount())
		rest.Fragments.SkipStepCount += received.steps
		return &samplesCall{rest}, received
	}
	next, counted, before := r.position(uint64(c.request.GetStepCount()))
	rest.Options.FirstEpisodeIndex = Some(next)
	rest.StepCount -= int64(counted)
	return &samplesCall{rest}, before
}

// exactEpisodesCall is a call of ObtainExactEpisodes.
type exactEpisodesCall struct {
	request *pb.ObtainExactEpisodesRequest
}

func (c *exactEpisodesCall) options() *pb.SamplingOptions { return c.request.GetOptions() }

func (c *exactEpisodesCall) start(
	ctx context.Context, service pb.SamplerServiceClient,
) (func() (*pb.ObtainSamplesResponse, error), error) {
	stream, err := service.ObtainExactEpisodes(ctx, c.request)
	if err != nil {
		return nil, err
	}
	return func() (*pb.ObtainSamplesResponse, error) {
		response, err := stream.Recv()
		if err != nil {
			return nil, err
		}
		return asSamplesResponse(response), nil
	}, nil
}

func (c *exactEpisodesCall) rest(r *resumption) (sampling, whole) {
	rest := proto.Clone(c.request).(*pb.ObtainExactEpisodesRequest)
	r.continueIn(rest.Options)
	r.expectWorkersIn(rest.Options)
	next, _, before := r.position(0)
	first := r.beginning.GetFirstEpisodeIndex()
	rest.Options.FirstEpisodeIndex = Some(first - rest.SkipEpisodeCount)
	rest.SkipEpisodeCount += next - first
	return &exactEpisodesCall{rest}, before
}

// asSamplesResponse returns a response of ObtainExactEpisodes as one of ObtainSamples, which has the same fields.
func asSamplesResponse(response *pb.ObtainExactEpisodesResponse) *pb.ObtainSamplesResponse {
	same := &pb.ObtainSamplesResponse{}
	switch content := response.GetContent().(type) {
	case *pb.ObtainExactEpisodesResponse_Beginning:
		same.Content = &pb.ObtainSamplesResponse_Beginning{Beginning: content.Beginning}
	case *pb.ObtainExactEpisodesResponse_Batch:
		same.Content = &pb.ObtainSamplesResponse_Batch{Batch: content.Batch}
	case *pb.ObtainExactEpisodesResponse_MultiAgentBatch:
		same.Content = &pb.ObtainSamplesResponse_MultiAgentBatch{MultiAgentBatch: content.MultiAgentBatch}
	case *pb.ObtainExactEpisodesResponse_Progress:
		same.Content = &pb.ObtainSamplesResponse_Progress{Progress: content.Progress}
	case *pb.ObtainExactEpisodesResponse_Account:
		same.Content = &pb.ObtainSamplesResponse_Account{Account: content.Account}
	case *pb.ObtainExactEpisodesResponse_Joined:
		same.Content = &pb.ObtainSamplesResponse_Joined{Joined: content.Joined}
	}
	return same
}

// position returns the index of the first episode that the rest has, the steps before it that count for the call, and
// what was delivered before it. If an episode was received in part, the rest begins with it again. stepCount is the
// number of steps that the stream needs at least; 0 if it needs episodes.
func (r *resumption) position(stepCount uint64) (next, counted uint64, before whole) {
	first := r.beginning.GetFirstEpisodeIndex()
	next, before = first, whole{episodes: r.numEpisodes, steps: r.numSteps}
	counted, lastCounted := r.numSteps, r.lastSteps
	if r.first.options().GetCountAgentSteps() {
		counted, lastCounted = r.agentSteps, r.lastAgentSteps
	}
	if r.numEpisodes > 0 {
		// The index of the last episode counts, not the number of episodes: some may have been skipped.
		next = r.lastIndex + 1
	}
	switch {
	case r.partialSteps > 0:
		next, r.stepsToSkip = r.partialIndex, r.partialSteps
	case stepCount > 0 && counted >= stepCount:
		// Only the account is missing, and a call needs at least one step: request the last episode once more.
		next, r.stepsToSkip = r.lastIndex, r.lastSteps
		before.episodes--
		before.steps -= r.lastSteps
		counted -= lastCounted
	}
	r.indexToSkip = next
	before.failed = next - first - before.episodes
	return next, counted, before
}

// continueIn makes a call sample with the seed, the versions and the run that the stream began with.
func (r *resumption) continueIn(options *pb.SamplingOptions) {
	options.ExpectedPolicyVersion = nil // these were checked when the stream began
	options.ExpectedEnvironmentVersion = nil
	options.WorkerCount = nil
	options.Prefetch = false  // not allowed with a seed
	options.AgentUpdate = nil // made when the stream began
	options.Seed = Some(r.beginning.GetSeed())
	options.PolicyVersion = Some(r.beginning.GetPolicyVersion())
	options.EnvironmentVersion = Some(r.beginning.GetEnvironmentVersion())
	options.SamplerRun = Some(r.beginning.GetSamplerRun())
}

// expectWorkersIn makes a call fail unless it has as many workers as the stream began with, because its episodes depend
// on them.
func (r *resumption) expectWorkersIn(options *pb.SamplingOptions) {
	if count := r.beginning.GetWorkerCount(); count > 0 { // older servers do not report it, and cannot change it
		options.WorkerCount = &count
	}
}
