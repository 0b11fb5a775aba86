package io.github.rollserve;

import java.time.Duration;
import java.util.List;
import java.util.Map;

/**
 * What was simulated for a call, and what became of it. Carried and simulated steps together equal the delivered, kept,
 * superseded, cancelled, lost, idle and discarded steps. After an interruption of a stream, steps, carried steps,
 * episodes and failed episodes are those of the whole stream; other numbers are those since then.
 *
 * @param numSteps delivered steps
 * @param numEpisodes delivered episodes; for fragments, the episodes that ended in this call
 * @param numSimulatedSteps steps simulated while the call ran, for it and beyond its end
 * @param numCarriedSteps steps simulated earlier that are settled here, such as steps that earlier calls have kept
 * @param numKeptSteps steps of episodes beyond the last delivered one, kept for the next call
 * @param numSupersededSteps discarded steps that earlier calls had kept and that no call can use any more
 * @param numCancelledSteps discarded steps of calls that were cancelled or failed
 * @param numLostSteps discarded steps whose worker is gone, whose environment raised an error, or which another worker
 *     finished first
 * @param numIdleSteps discarded steps of rows that had to continue with others
 * @param numPrefetchedSteps carried steps that were simulated between calls
 * @param numDiscardedSteps steps discarded because of a blackhole, or by an evaluation that returns no episodes
 * @param numDiscardedEpisodes episodes that ended in these steps
 * @param numRetriedEpisodes retries of episodes after something had failed
 * @param retryReasons the number of retries by reason
 * @param numStragglerEpisodes episodes that were started a second time on another worker because the first run took
 *     long
 * @param numFailedEpisodes episodes that the call skipped because their environments raised errors in every attempt
 * @param episodeFailures the first 64 episodes whose environments raised errors
 * @param numBrokenOffEpisodes for fragments, episodes that broke off because their rows could not be restored
 * @param numMissingSteps for fragments with a fraction of workers, requested steps that were not made
 * @param numReassignedEpisodes for exact episodes, episodes that another worker simulated than the one they belong to
 * @param numNonFiniteSteps delivered steps with a NaN or an infinity in their reward or an observation; after an
 *     interruption, those since then
 * @param rowStepCount for fragments, the steps that each row had made in the row sequence before the call
 * @param numResumptions interruptions of the stream, each followed by a call that continued it
 * @param seed the root seed of the sequence of episodes
 * @param firstEpisodeIndex the index of the first delivered episode; 0 for fragments
 * @param policyVersion the version that acted
 * @param envVersion the version of the environment
 * @param droppedInfos the number of values that the batch lacks because they are no numbers or not of one shape, by
 *     name
 * @param workers the share of each worker
 * @param queued the time in the queue
 * @param waiting the time spent waiting for workers, after admission
 * @param sending the time spent waiting for the client to read messages
 * @param elapsed the time since admission
 */
public record Account(
    long numSteps,
    long numEpisodes,
    long numSimulatedSteps,
    long numCarriedSteps,
    long numKeptSteps,
    long numSupersededSteps,
    long numCancelledSteps,
    long numLostSteps,
    long numIdleSteps,
    long numPrefetchedSteps,
    long numDiscardedSteps,
    long numDiscardedEpisodes,
    long numRetriedEpisodes,
    Map<String, Long> retryReasons,
    long numStragglerEpisodes,
    long numFailedEpisodes,
    List<EpisodeFailure> episodeFailures,
    long numBrokenOffEpisodes,
    long numMissingSteps,
    long numReassignedEpisodes,
    long numNonFiniteSteps,
    long rowStepCount,
    int numResumptions,
    long seed,
    long firstEpisodeIndex,
    long policyVersion,
    long envVersion,
    Map<String, Long> droppedInfos,
    List<WorkerAccount> workers,
    Duration queued,
    Duration waiting,
    Duration sending,
    Duration elapsed) {

    /**
     * One worker's share in a call.
     *
     * @param workerIndex the index of the worker
     * @param numSimulatedSteps steps that the worker simulated while the call ran
     * @param numSteps delivered steps that the worker simulated
     * @param numEpisodes delivered episodes that the worker simulated
     * @param sampling the time spent on stepping environments and evaluating the policy
     * @param encoding the time spent on writing messages
     * @param numMissingSteps for fragments, requested steps that the worker did not make
     */
    public record WorkerAccount(
        int workerIndex,
        long numSimulatedSteps,
        long numSteps,
        long numEpisodes,
        Duration sampling,
        Duration encoding,
        long numMissingSteps) {}

    /**
     * An episode whose environment raised an error.
     *
     * @param episodeIndex the index of the episode
     * @param workerIndex the worker that ran it last
     * @param numAttempts failed attempts on that worker
     * @param skipped whether the call went on without the episode
     * @param text where the environment raised its last error, and the error
     */
    public record EpisodeFailure(
        long episodeIndex, int workerIndex, int numAttempts, boolean skipped, String text) {}

    static Account from(io.github.rollserve.v1.Account message, int numResumptions) {
        return new Account(
            message.getStepCount(),
            message.getEpisodeCount(),
            message.getSimulatedStepCount(),
            message.getCarriedStepCount(),
            message.getKeptStepCount(),
            message.getSupersededStepCount(),
            message.getCancelledStepCount(),
            message.getLostStepCount(),
            message.getIdleStepCount(),
            message.getPrefetchedStepCount(),
            message.getDiscardedStepCount(),
            message.getDiscardedEpisodeCount(),
            message.getRetriedEpisodeCount(),
            Map.copyOf(message.getRetryReasonsMap()),
            message.getStragglerEpisodeCount(),
            message.getFailedEpisodeCount(),
            message.getEpisodeFailuresList().stream().map(Account::failure).toList(),
            message.getBrokenOffEpisodeCount(),
            message.getMissingStepCount(),
            message.getReassignedEpisodeCount(),
            message.getNonFiniteStepCount(),
            message.getRowStepCount(),
            numResumptions,
            message.getSeed(),
            message.getFirstEpisodeIndex(),
            message.getPolicyVersion(),
            message.getEnvironmentVersion(),
            Map.copyOf(message.getDroppedInfosMap()),
            message.getWorkersList().stream().map(Account::worker).toList(),
            Timeouts.from(message.getQueued()),
            Timeouts.from(message.getWaiting()),
            Timeouts.from(message.getSending()),
            Timeouts.from(message.getElapsed()));
    }

    private static WorkerAccount worker(io.github.rollserve.v1.WorkerAccount message) {
        return new WorkerAccount(
            message.getWorkerIndex(),
            message.getSimulatedStepCount(),
            message.getStepCount(),
            message.getEpisodeCount(),
            Timeouts.from(message.getSampling()),
            Timeouts.from(message.getEncoding()),
            message.getMissingStepCount());
    }

    private static EpisodeFailure failure(io.github.rollserve.v1.EpisodeFailure message) {
        return new EpisodeFailure(
            message.getEpisodeIndex(),
            message.getWorkerIndex(),
            message.getAttemptCount(),
            message.getSkipped(),
            message.getText());
    }
}
