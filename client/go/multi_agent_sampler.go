package rollserve

import "context"

// MultiAgentSampler has the calls of a Sampler for environments with many agents. They take the same options, and
// return batches of many agents. Calls in an environment with one agent are an ErrInvalidArgument.
type MultiAgentSampler struct{ sampler *Sampler }

// MultiAgent returns the calls for environments with many agents. Updates, evaluations and the status are those of the
// Sampler: UpdateEnv with EnvSpec.MultiAgent, UpdateAgent with Policies, and Evaluate.
func (s *Sampler) MultiAgent() MultiAgentSampler { return MultiAgentSampler{s} }

// ObtainSamples samples whole episodes with at least numSteps environment steps in all, or steps of all agents with
// SamplingOptions.CountAgentSteps: the fewest, in the order of their indices.
func (m MultiAgentSampler) ObtainSamples(
	ctx context.Context, numSteps int, options *SamplingOptions,
) (*MultiAgentBatch, error) {
	return joinedMany(m.StreamSamples(ctx, numSteps, options))
}

// ObtainExactEpisodes samples an exact number of episodes on each worker: first all of worker 0, then all of worker 1,
// and so on.
func (m MultiAgentSampler) ObtainExactEpisodes(
	ctx context.Context, numEpisodesPerWorker int, options *SamplingOptions,
) (*MultiAgentBatch, error) {
	return joinedMany(m.StreamExactEpisodes(ctx, numEpisodesPerWorker, options))
}

// ObtainFragments samples exactly numSteps environment steps, equally many of each row; episodes continue from call to
// call.
//
// A batch has the steps of agents that are complete within it, with their rewards and what was observed after them. A
// step that is not is the agent's first one in the fragment in which it becomes complete, as a segment of its own.
func (m MultiAgentSampler) ObtainFragments(
	ctx context.Context, numSteps int, options *FragmentOptions,
) (*MultiAgentBatch, error) {
	return joinedMany(m.StreamFragments(ctx, numSteps, options))
}

// StreamSamples streams what ObtainSamples returns, message by message. An episode may continue in the next message.
// The error is an ErrInvalidArgument for options that cannot be sent; others come from the stream.
func (m MultiAgentSampler) StreamSamples(
	ctx context.Context, numSteps int, options *SamplingOptions,
) (*MultiAgentStream, error) {
	call, timeout, err := m.sampler.samplesCall(numSteps, options)
	if err != nil {
		return nil, err
	}
	return &MultiAgentStream{newReader(ctx, m.sampler, call, timeout, true)}, nil
}

// StreamExactEpisodes streams what ObtainExactEpisodes returns, message by message. An episode may continue in the next
// message.
func (m MultiAgentSampler) StreamExactEpisodes(
	ctx context.Context, numEpisodesPerWorker int, options *SamplingOptions,
) (*MultiAgentStream, error) {
	call, timeout, err := m.sampler.exactEpisodesCall(numEpisodesPerWorker, options)
	if err != nil {
		return nil, err
	}
	return &MultiAgentStream{newReader(ctx, m.sampler, call, timeout, true)}, nil
}

// StreamFragments streams what ObtainFragments returns, message by message. A fragment may continue in the next
// message.
func (m MultiAgentSampler) StreamFragments(
	ctx context.Context, numSteps int, options *FragmentOptions,
) (*MultiAgentStream, error) {
	call, timeout, err := m.sampler.fragmentsCall(numSteps, options)
	if err != nil {
		return nil, err
	}
	return &MultiAgentStream{newReader(ctx, m.sampler, call, timeout, true)}, nil
}

// MultiAgentStream delivers the batches of a sampling call in an environment with many agents as they arrive, as Stream
// does with one agent. ConcatenateMany and Joined make whole episodes of several batches.
type MultiAgentStream struct{ reader }

// Next returns the next batch, and io.EOF after the last one.
func (s *MultiAgentStream) Next() (*MultiAgentBatch, error) {
	batch, err := s.reader.next()
	if err != nil {
		return nil, err
	}
	return batch.(*MultiAgentBatch), nil
}

// Join returns the rest of the stream as one batch of whole episodes or fragments, with the account of the whole
// stream. If Next has read the first part of an episode, its rest is a part that begins later.
func (s *MultiAgentStream) Join() (*MultiAgentBatch, error) {
	batches, before, err := readAll(&s.reader, s.Next)
	if err != nil {
		return nil, err
	}
	return joinManyWithAccount(batches, s.account, before)
}

func joinedMany(stream *MultiAgentStream, err error) (*MultiAgentBatch, error) {
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	return stream.Join()
}

// joinManyWithAccount returns the batches of a stream as one, as joinWithAccount does.
func joinManyWithAccount(batches []*MultiAgentBatch, account *Account, before whole) (*MultiAgentBatch, error) {
	whole, err := ConcatenateMany(batches...)
	if err != nil {
		return nil, malformed(err)
	}
	joined, err := whole.Joined()
	if err != nil {
		return nil, malformed(err)
	}
	if err := checkAccount(joined, account, before); err != nil {
		return nil, err
	}
	joined.Account = account
	return joined, nil
}
