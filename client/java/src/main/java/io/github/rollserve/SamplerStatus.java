package io.github.rollserve;

import io.github.rollserve.v1.EnvironmentProfile;
import io.github.rollserve.v1.GetSamplerResponse;
import io.github.rollserve.v1.SamplerQuota;
import io.github.rollserve.v1.Worker;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * The state of a sampler and of its workers.
 *
 * @param sampler the name of the sampler
 * @param serverVersion the version of the server's software
 * @param envs one environment for all workers; or one for each worker; or one for each row, worker by worker; without
 *     arguments that the server's operator has given
 * @param hiddenArguments the names of the arguments that are left out of {@code envs}, such as {@code kwargs.level}
 * @param envVersion the version of the environments; 1 for the first
 * @param observationSpace the space of observations
 * @param actionSpace the space of actions
 * @param agentKinds the kind of each worker's agent, or one kind for all; empty as long as there is no agent
 * @param policyVersion the version of the policy; 0 as long as there is no agent
 * @param policyAge how long ago the policy was set
 * @param reproducibility which unit of work the same seed gives again
 * @param numEpisodesPerRow the number of episodes of each row in a block; 0 unless the class is BLOCK
 * @param seed the root seed of the sampler's own sequence of episodes
 * @param nextEpisodeIndex the index in that sequence at which the next call begins
 * @param workers the workers, in the order of their indices, followed by workers that are leaving
 * @param minHealthyWorkers the number of workers that have to be healthy for a call or an update to begin
 * @param counters counters since the sampler's start
 * @param numRunningCalls sampling calls and evaluations that run, stalled ones included
 * @param numQueuedCalls sampling calls and evaluations that queue or are paused
 * @param profiles environments that the server's operator has declared
 * @param owner the principal that created the sampler; empty for the default one
 * @param lease the time without a call after which the sampler is deleted; empty for never
 * @param quota the limits of the sampler
 * @param agents the names of the possible agents of an environment with many; empty for one agent
 * @param policies the current version of each policy by its name, where the agent is policies by name
 */
public record SamplerStatus(
    String sampler,
    String serverVersion,
    List<EnvSpec> envs,
    List<String> hiddenArguments,
    long envVersion,
    Space observationSpace,
    Space actionSpace,
    List<String> agentKinds,
    long policyVersion,
    Duration policyAge,
    Reproducibility reproducibility,
    int numEpisodesPerRow,
    long seed,
    long nextEpisodeIndex,
    List<WorkerStatus> workers,
    int minHealthyWorkers,
    Counters counters,
    int numRunningCalls,
    int numQueuedCalls,
    List<EnvProfile> profiles,
    String owner,
    Optional<Duration> lease,
    Quota quota,
    List<String> agents,
    Map<String, Long> policies) {

    /** Whether a worker takes work. The number on the wire is the position. */
    public enum Health {
        /** A state that this client does not know. */
        UNKNOWN,
        /** The worker takes work. */
        HEALTHY,
        /** The worker's process is gone, and another is being started in its place. */
        LOST,
        /** The worker was lost as often as the server allows within an hour, and is given up until the hour is over. */
        FAILED,
        /** The worker was removed, and ends after the last call that started with it. */
        LEAVING;

        private static Health from(int number) {
            return number < 0 || number >= values().length ? UNKNOWN : values()[number];
        }
    }

    /**
     * The state of a worker.
     *
     * @param workerIndex the index of the worker, from 0
     * @param health whether the worker takes work
     * @param numRows the number of environments that the worker steps at once
     * @param numSimulatedSteps steps that the worker has simulated
     * @param processId the id of its process; 0 if it has never started, or for clients of other machines
     * @param host its machine; empty if it has never started, or for clients of other machines
     * @param numRestarts how often the worker was replaced, failed attempts included
     * @param lastFailure why its last process was lost or could not be started; empty if that never happened
     */
    public record WorkerStatus(
        int workerIndex,
        Health health,
        int numRows,
        long numSimulatedSteps,
        int processId,
        String host,
        long numRestarts,
        String lastFailure) {}

    /**
     * What a sampler has done since its start.
     *
     * @param numCompletedCalls sampling calls that completed
     * @param numFailedCalls sampling calls that ended with an error
     * @param numCancelledCalls sampling calls that their client, a deadline or the server's stop ended
     * @param numSteps delivered steps
     * @param numEpisodes delivered episodes
     * @param numSimulatedSteps simulated steps
     * @param messageBytes bytes of delivered messages
     * @param uptime the age of the sampler
     * @param numWorkerRestarts how often workers were replaced, failed attempts included
     * @param numEnvFailures errors that environments raised in episodes
     * @param numRetriedEpisodes episodes that ran again after something had failed
     * @param numFailedEpisodes episodes that were skipped
     * @param numStragglerEpisodes episodes that were started a second time because the first run took long
     * @param numNonFiniteSteps delivered steps with a NaN or an infinity
     */
    public record Counters(
        long numCompletedCalls,
        long numFailedCalls,
        long numCancelledCalls,
        long numSteps,
        long numEpisodes,
        long numSimulatedSteps,
        long messageBytes,
        Duration uptime,
        long numWorkerRestarts,
        long numEnvFailures,
        long numRetriedEpisodes,
        long numFailedEpisodes,
        long numStragglerEpisodes,
        long numNonFiniteSteps) {}

    /**
     * An environment that the server's operator has declared: the id {@code profile:NAME} requests it.
     *
     * @param name the name of the profile
     * @param description the operator's text about it
     * @param arguments the JSON Schema of the keyword arguments that it accepts
     */
    public record EnvProfile(String name, String description, Map<String, ?> arguments) {}

    /**
     * The limits of a sampler; 0 for no limit.
     *
     * @param numWorkers workers
     * @param numRows rows of all workers together, for a call
     * @param resultBytes bytes of results that may be on their way to clients
     * @param numCalls calls that sample at the same time
     * @param stepsPerSecond steps per second of all calls together
     */
    public record Quota(int numWorkers, int numRows, long resultBytes, int numCalls, double stepsPerSecond) {}

    /** {@return the number of workers for calls that begin now} */
    public int numWorkers() {
        return (int) workers.stream().filter(worker -> worker.health() != Health.LEAVING).count();
    }

    static SamplerStatus from(GetSamplerResponse message) {
        return new SamplerStatus(
            message.getSampler(),
            message.getServerVersion(),
            message.getEnvironmentsList().stream().map(EnvSpec::new).toList(),
            List.copyOf(message.getHiddenArgumentsList()),
            message.getEnvironmentVersion(),
            Spaces.from("observation_space", message.getObservationSpace()),
            Spaces.from("action_space", message.getActionSpace()),
            List.copyOf(message.getAgentKindsList()),
            message.getPolicyVersion(),
            Timeouts.from(message.getPolicyAge()),
            Reproducibility.from(message.getReproducibilityValue()),
            message.getEpisodesPerRow(),
            message.getSeed(),
            message.getNextEpisodeIndex(),
            message.getWorkersList().stream().map(SamplerStatus::worker).toList(),
            message.getMinHealthyWorkerCount(),
            counters(message.getCounters()),
            message.getRunningCallCount(),
            message.getQueuedCallCount(),
            message.getProfilesList().stream().map(SamplerStatus::profile).toList(),
            message.getOwner(),
            message.hasLease() ? Optional.of(Timeouts.from(message.getLease())) : Optional.empty(),
            quota(message.getQuota()),
            List.copyOf(message.getAgentsList()),
            Map.copyOf(message.getPoliciesMap()));
    }

    private static WorkerStatus worker(Worker message) {
        return new WorkerStatus(
            message.getWorkerIndex(),
            Health.from(message.getHealthValue()),
            message.getRowCount(),
            message.getSimulatedStepCount(),
            message.getProcessId(),
            message.getHost(),
            message.getRestartCount(),
            message.getLastFailure());
    }

    private static Counters counters(io.github.rollserve.v1.Counters message) {
        return new Counters(
            message.getCompletedCallCount(),
            message.getFailedCallCount(),
            message.getCancelledCallCount(),
            message.getStepCount(),
            message.getEpisodeCount(),
            message.getSimulatedStepCount(),
            message.getMessageBytes(),
            Timeouts.from(message.getUptime()),
            message.getWorkerRestartCount(),
            message.getEnvironmentFailureCount(),
            message.getRetriedEpisodeCount(),
            message.getFailedEpisodeCount(),
            message.getStragglerEpisodeCount(),
            message.getNonFiniteStepCount());
    }

    private static EnvProfile profile(EnvironmentProfile message) {
        Map<String, ?> schema = Json.read("arguments_schema_json", message.getArgumentsSchemaJson());
        return new EnvProfile(message.getName(), message.getDescription(), schema);
    }

    private static Quota quota(SamplerQuota message) {
        return new Quota(
            message.getWorkerCount(),
            message.getRowCount(),
            message.getResultBytes(),
            message.getCallCount(),
            message.getStepsPerSecond());
    }
}
