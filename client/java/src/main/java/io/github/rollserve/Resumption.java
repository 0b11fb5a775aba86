package io.github.rollserve;

import io.github.rollserve.v1.Account;
import io.github.rollserve.v1.Beginning;
import io.github.rollserve.v1.ObtainExactEpisodesRequest;
import io.github.rollserve.v1.ObtainSamplesRequest;
import io.github.rollserve.v1.SamplingOptions;

/**
 * The position of a stream, over all calls that deliver it, so that no step is delivered twice or left out. The comment
 * on {@code Beginning} in the protos says which call delivers the rest.
 *
 * @param <B> the class of the batches
 */
final class Resumption<B> {
    private final SamplingCall first;
    private final BatchKind<B> kind;
    private SamplingCall call; // the one that delivers the rest
    private Beginning beginning; // null before the stream has begun
    private int numResumptions;

    // Whole episodes that were received: their number, their steps, and the index and steps of the last one.
    private long numEpisodes;
    private long numSteps;
    private long lastIndex;
    private long lastSteps;
    private long numAgentSteps; // steps of all agents in whole episodes, and in the last one
    private long lastAgentSteps;
    // The episode that was received in part: its index and steps. For fragments, the steps of all episodes that were
    // received after the last whole one.
    private long partialIndex;
    private long partialSteps;
    private long partialAgentSteps;
    // The present call: the steps that were received before, their episode, and what was delivered before the call.
    private long stepsToSkip;
    private long indexToSkip;
    private long agentStepsAgain; // in batches of the call that were received before as a whole
    private Whole before = new Whole(0, 0, 0, 0);

    /**
     * Whole episodes that earlier calls of a stream delivered.
     *
     * @param episodes their number
     * @param steps their steps
     * @param counted the steps that count for the number that the stream needs: theirs, or those of all agents
     * @param failed the number of episodes between them that were skipped because they had failed
     */
    private record Whole(long episodes, long steps, long counted, long failed) {}

    Resumption(SamplingCall call, BatchKind<B> kind) {
        this.first = call;
        this.kind = kind;
        this.call = call;
    }

    SamplingCall call() {
        return call;
    }

    int numResumptions() {
        return numResumptions;
    }

    /** Returns the number of episodes whose last steps were received. */
    long numEpisodes() {
        return numEpisodes;
    }

    boolean hasBegun() {
        return beginning != null;
    }

    /** Says whether the stream's beginning is known and its episodes can be requested again. */
    boolean isPossible() {
        return beginning != null && Reproducibility.from(beginning.getReproducibilityValue()).isRepeatable();
    }

    /** Records the first message of a call. */
    void begin(Beginning message) {
        if (beginning == null) {
            beginning = message;
        }
    }

    /**
     * Records a batch.
     *
     * @return the part of the batch that was not received before; null if there is none
     */
    B take(B batch) {
        EpisodeParts parts = kind.parts(batch);
        if (stepsToSkip > 0 && !isFragments() && parts.episodeIndices()[0] != indexToSkip) {
            String expected = "the rest of episode " + indexToSkip + ", whose first part was received before";
            throw Errors.malformed("episode_indices", expected, parts.episodeIndices()[0]);
        }
        int skipped = (int) Math.min(stepsToSkip, parts.numSteps());
        stepsToSkip -= skipped;
        if (skipped == parts.numSteps()) {
            agentStepsAgain += parts.numAgentSteps();
            return null;
        }
        if (skipped == 0) {
            count(parts);
            return batch;
        }
        B rest = kind.withoutFirstSteps(batch, skipped, partialAgentSteps - agentStepsAgain);
        count(kind.parts(rest));
        return rest;
    }

    /** Counts the episodes and steps of a batch that was received. */
    private void count(EpisodeParts parts) {
        for (int i = 0; i < parts.size(); i++) {
            partialSteps += parts.lengths()[i];
            partialAgentSteps += parts.agentStepCounts()[i];
            if (parts.ended(i)) {
                lastIndex = parts.episodeIndices()[i];
                lastSteps = partialSteps;
                lastAgentSteps = partialAgentSteps;
                numEpisodes++;
                numSteps += partialSteps;
                numAgentSteps += partialAgentSteps;
                partialSteps = 0;
                partialAgentSteps = 0;
            }
        }
        partialIndex = parts.episodeIndices()[parts.size() - 1];
    }

    private boolean isFragments() {
        return first instanceof SamplingCall.Samples samples && samples.request().hasFragments();
    }

    /** Makes the next call the one that delivers what has not been received: all of it, if the stream has not begun. */
    void prepare() {
        if (beginning == null) {
            return;
        }
        numResumptions++;
        stepsToSkip = 0;
        agentStepsAgain = 0;
        if (first instanceof SamplingCall.Samples samples) {
            call = isFragments() ? restOfFragments(samples.request()) : rest(samples.request());
        } else {
            call = rest(((SamplingCall.ExactEpisodes) first).request());
        }
    }

    private SamplingCall rest(ObtainSamplesRequest request) {
        long next = position(request.getStepCount());
        ObtainSamplesRequest.Builder rest = request.toBuilder().setStepCount(request.getStepCount() - before.counted());
        continueIn(rest.getOptionsBuilder()).setFirstEpisodeIndex(next);
        return new SamplingCall.Samples(rest.build());
    }

    private SamplingCall rest(ObtainExactEpisodesRequest request) {
        long passed = position(0) - beginning.getFirstEpisodeIndex();
        ObtainExactEpisodesRequest.Builder rest =
            request.toBuilder().setSkipEpisodeCount(request.getSkipEpisodeCount() + passed);
        SamplingOptions.Builder options = continueIn(rest.getOptionsBuilder());
        options.setFirstEpisodeIndex(beginning.getFirstEpisodeIndex() - request.getSkipEpisodeCount());
        expectWorkersIn(options);
        return new SamplingCall.ExactEpisodes(rest.build());
    }

    private SamplingCall restOfFragments(ObtainSamplesRequest request) {
        long received = numSteps + partialSteps;
        before = new Whole(numEpisodes, received, received, 0);
        ObtainSamplesRequest.Builder rest = request.toBuilder();
        expectWorkersIn(continueIn(rest.getOptionsBuilder()));
        rest.getFragmentsBuilder()
            .setRowStepCount(beginning.getRowStepCount())
            .setSkipStepCount(request.getFragments().getSkipStepCount() + received);
        return new SamplingCall.Samples(rest.build());
    }

    /**
     * Returns the index of the first episode that the rest has, and records what was delivered before it. If an episode
     * was received in part, the rest begins with it again.
     *
     * @param stepCount the number of steps that the stream needs at least; 0 if it needs episodes
     */
    private long position(long stepCount) {
        long start = beginning.getFirstEpisodeIndex();
        // The index of the last episode counts, not the number of episodes: some may have been skipped.
        long next = numEpisodes > 0 ? lastIndex + 1 : start;
        long episodes = numEpisodes;
        long steps = numSteps;
        boolean countsAgentSteps = first.options().getCountAgentSteps();
        long counted = countsAgentSteps ? numAgentSteps : numSteps;
        if (partialSteps > 0) {
            next = partialIndex;
            stepsToSkip = partialSteps;
        } else if (stepCount > 0 && counted >= stepCount) {
            // Only the account is missing, and a call needs at least one step: request the last episode once more.
            next = lastIndex;
            stepsToSkip = lastSteps;
            episodes--;
            steps -= lastSteps;
            counted -= countsAgentSteps ? lastAgentSteps : lastSteps;
        }
        indexToSkip = next;
        before = new Whole(episodes, steps, counted, next - start - episodes);
        return next;
    }

    /** Makes a call sample with the seed, the versions and the run that the stream began with. */
    private SamplingOptions.Builder continueIn(SamplingOptions.Builder options) {
        return options
            .clearExpectedPolicyVersion() // checked when the stream began, as the next two
            .clearExpectedEnvironmentVersion()
            .clearWorkerCount()
            .clearPrefetch() // not allowed with a seed
            .clearAgentUpdate() // made when the stream began
            .setSeed(beginning.getSeed())
            .setPolicyVersion(beginning.getPolicyVersion())
            .setEnvironmentVersion(beginning.getEnvironmentVersion())
            .setSamplerRun(beginning.getSamplerRun());
    }

    /** Makes a call fail unless it has as many workers as the stream began with, as its episodes depend on them. */
    private void expectWorkersIn(SamplingOptions.Builder options) {
        if (beginning.getWorkerCount() != 0) { // older servers do not report it, and cannot change it
            options.setWorkerCount(beginning.getWorkerCount());
        }
    }

    /** Returns the account of the whole stream, for the account of its last call. */
    Account whole(Account account) {
        if (numResumptions == 0) {
            return account;
        }
        return account.toBuilder()
            .setEpisodeCount(account.getEpisodeCount() + before.episodes())
            .setStepCount(account.getStepCount() + before.steps())
            .setCarriedStepCount(account.getCarriedStepCount() + before.steps())
            .setFailedEpisodeCount(account.getFailedEpisodeCount() + before.failed())
            .setFirstEpisodeIndex(beginning.getFirstEpisodeIndex())
            .build();
    }
}
