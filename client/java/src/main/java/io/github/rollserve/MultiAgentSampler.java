package io.github.rollserve;

/**
 * The sampling calls of a {@link Sampler} whose environment has many agents: those of the sampler, with a
 * {@link MultiAgentBatch} as their result. Steps are the environment's. In an environment with one agent, they throw an
 * {@link InvalidArgumentException}.
 */
public final class MultiAgentSampler {
    private final SampleStreams<MultiAgentBatch> streams;

    MultiAgentSampler(SampleStreams<MultiAgentBatch> streams) {
        this.streams = streams;
    }

    /**
     * Samples whole episodes with at least a number of steps in all; see {@link Sampler#obtainSamples(long)}.
     *
     * @param numSteps the least number of steps
     * @return the episodes, with the account
     */
    public MultiAgentBatch obtainSamples(long numSteps) {
        return obtainSamples(numSteps, new SamplingOptions());
    }

    /**
     * Samples whole episodes with at least a number of steps in all; see {@link Sampler#obtainSamples(long)}.
     *
     * @param numSteps the least number of steps: the environment's, or with
     *     {@link SamplingOptions#withCountAgentSteps(boolean)} those of all agents
     * @param options options of the call
     * @return the episodes, with the account
     */
    public MultiAgentBatch obtainSamples(long numSteps, SamplingOptions options) {
        return streams.join(streams.samples(numSteps, options));
    }

    /**
     * Samples an exact number of episodes on each worker; see {@link Sampler#obtainExactEpisodes(long)}.
     *
     * @param numEpisodesPerWorker the number of episodes of each worker
     * @return the episodes, with the account
     */
    public MultiAgentBatch obtainExactEpisodes(long numEpisodesPerWorker) {
        return obtainExactEpisodes(numEpisodesPerWorker, new SamplingOptions());
    }

    /**
     * Samples an exact number of episodes on each worker; see {@link Sampler#obtainExactEpisodes(long)}.
     *
     * @param numEpisodesPerWorker the number of episodes of each worker
     * @param options options of the call
     * @return the episodes, with the account
     */
    public MultiAgentBatch obtainExactEpisodes(long numEpisodesPerWorker, SamplingOptions options) {
        return streams.join(streams.exactEpisodes(numEpisodesPerWorker, options));
    }

    /**
     * Samples an exact number of environment steps; see {@link Sampler#obtainFragments(long)}. An agent's step whose
     * reward comes later is in the fragment in which it comes.
     *
     * @param numSteps the number of steps, a multiple of the number of rows of all workers
     * @return the fragments, with the account
     */
    public MultiAgentBatch obtainFragments(long numSteps) {
        return obtainFragments(numSteps, new FragmentOptions());
    }

    /**
     * Samples an exact number of environment steps; see {@link #obtainFragments(long)}.
     *
     * @param numSteps the number of steps, a multiple of the number of rows of all workers
     * @param options options of the call
     * @return the fragments, with the account
     */
    public MultiAgentBatch obtainFragments(long numSteps, FragmentOptions options) {
        return streams.join(streams.fragments(numSteps, options));
    }

    /**
     * Streams what {@link #obtainSamples(long, SamplingOptions)} returns, message by message. An episode may continue
     * in the next message.
     *
     * @param numSteps the least number of steps
     * @param options options of the call
     * @return the stream of the call, which begins at once
     */
    public SampleStream<MultiAgentBatch> streamSamples(long numSteps, SamplingOptions options) {
        return streams.samples(numSteps, options).begin();
    }

    /**
     * Streams what {@link #obtainExactEpisodes(long, SamplingOptions)} returns, message by message.
     *
     * @param numEpisodesPerWorker the number of episodes of each worker
     * @param options options of the call
     * @return the stream of the call, which begins at once
     */
    public SampleStream<MultiAgentBatch> streamExactEpisodes(long numEpisodesPerWorker, SamplingOptions options) {
        return streams.exactEpisodes(numEpisodesPerWorker, options).begin();
    }

    /**
     * Streams what {@link #obtainFragments(long, FragmentOptions)} returns, message by message.
     *
     * @param numSteps the number of steps, a multiple of the number of rows of all workers
     * @param options options of the call
     * @return the stream of the call, which begins at once
     */
    public SampleStream<MultiAgentBatch> streamFragments(long numSteps, FragmentOptions options) {
        return streams.fragments(numSteps, options).begin();
    }
}
