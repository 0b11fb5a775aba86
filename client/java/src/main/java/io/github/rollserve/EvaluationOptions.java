package io.github.rollserve;

import io.github.rollserve.v1.EpisodeDelivery;
import io.github.rollserve.v1.EvaluateRequest;
import io.grpc.Deadline;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;

/** Options of calls that evaluate. Each method returns options with one more set; what is not set has its default. */
@CheckReturnValue
public final class EvaluationOptions {
    private final io.github.rollserve.v1.EvaluationOptions wire;
    private final Duration timeout; // null where it is not set, as the next one
    private final Duration deadline;
    private final boolean returnEpisodes;
    private final boolean differentEpisodes;

    /** Creates options that all have their defaults. */
    public EvaluationOptions() {
        this(io.github.rollserve.v1.EvaluationOptions.getDefaultInstance(), null, null, false, false);
    }

    private EvaluationOptions(
        io.github.rollserve.v1.EvaluationOptions wire, Duration timeout, Duration deadline, boolean returnEpisodes,
        boolean differentEpisodes) {
        this.wire = wire;
        this.timeout = timeout;
        this.deadline = deadline;
        this.returnEpisodes = returnEpisodes;
        this.differentEpisodes = differentEpisodes;
    }

    private EvaluationOptions with(UnaryOperator<io.github.rollserve.v1.EvaluationOptions.Builder> change) {
        return new EvaluationOptions(
            change.apply(wire.toBuilder()).build(), timeout, deadline, returnEpisodes, differentEpisodes);
    }

    /**
     * Sets the version to evaluate, one of the last few that the server keeps.
     *
     * @param version the version; the current one by default
     * @return the options
     */
    public EvaluationOptions withPolicyVersion(long version) {
        return with(builder -> builder.setPolicyVersion(version));
    }

    /**
     * Sets the version that the current policy must have; see {@link SamplingOptions#withExpectedPolicyVersion(long)}.
     *
     * @param version the version
     * @return the options
     */
    public EvaluationOptions withExpectedPolicyVersion(long version) {
        return with(builder -> builder.setExpectedPolicyVersion(version));
    }

    /**
     * Sets the version that the current environment must have, in the same way as the one of the policy.
     *
     * @param version the version
     * @return the options
     */
    public EvaluationOptions withExpectedEnvVersion(long version) {
        return with(builder -> builder.setExpectedEnvironmentVersion(version));
    }

    /**
     * Sets the oldest version that may act.
     *
     * @param version the version
     * @return the options
     */
    public EvaluationOptions withMinPolicyVersion(long version) {
        return with(builder -> builder.setMinPolicyVersion(version));
    }

    /**
     * Sets another environment to act in; the sampler's own stays as it is.
     *
     * @param spec the environment
     * @return the options
     */
    public EvaluationOptions withEnv(EnvSpec spec) {
        return with(builder -> builder.setEnvironment(Objects.requireNonNull(spec, "spec").toWire()));
    }

    /**
     * Sets the version of the sampler's environment to act in. Not together with {@link #withEnv(EnvSpec)}.
     *
     * @param version the version; the current one by default
     * @return the options
     */
    public EvaluationOptions withEnvVersion(long version) {
        return with(builder -> builder.setEnvironmentVersion(version));
    }

    /**
     * Sets the root seed of the episodes.
     *
     * @param root the seed, of which all 64 bits count; the default is the same for every evaluation
     * @return the options
     */
    public EvaluationOptions withSeed(long root) {
        return with(builder -> builder.setSeed(root));
    }

    /**
     * Sets the index of the first episode in the sequence of the seed.
     *
     * @param index the index; 0 by default
     * @return the options
     */
    public EvaluationOptions withFirstEpisodeIndex(long index) {
        return with(builder -> builder.setFirstEpisodeIndex(index));
    }

    /**
     * Sets the number of steps after which an episode is truncated.
     *
     * @param numSteps the number; the server's setting by default
     * @return the options
     */
    public EvaluationOptions withMaxEpisodeLength(long numSteps) {
        return with(builder -> builder.setMaxEpisodeLength(numSteps));
    }

    /**
     * Sets the time without progress after which the call ends with a {@link DeadlineException}.
     *
     * @param time a positive time; the timeout of the connection by default
     * @return the options
     */
    public EvaluationOptions withTimeout(Duration time) {
        Duration checked = Timeouts.positive("timeout", time);
        return new EvaluationOptions(wire, checked, deadline, returnEpisodes, differentEpisodes);
    }

    /**
     * Sets the time in total after which the call ends with a {@link DeadlineException}.
     *
     * @param time a positive time; no limit by default
     * @return the options
     */
    public EvaluationOptions withDeadline(Duration time) {
        Duration checked = Timeouts.positive("deadline", time);
        return new EvaluationOptions(wire, timeout, checked, returnEpisodes, differentEpisodes);
    }

    /**
     * Sets how freely the agent acts.
     *
     * @param exploration the exploration; the agent's own by default
     * @return the options
     */
    public EvaluationOptions withExploration(Exploration exploration) {
        return with(builder -> builder.setExploration(Objects.requireNonNull(exploration, "exploration").toWire()));
    }

    /**
     * Sets whether to leave out episodes whose environments raise errors in every attempt. Not for populations.
     *
     * @param areSkipped whether to leave them out; false by default
     * @return the options
     */
    public EvaluationOptions withSkipFailedEpisodes(boolean areSkipped) {
        return with(builder -> builder.setSkipFailedEpisodes(areSkipped));
    }

    /**
     * Sets whether the result has the episodes themselves. Not for populations.
     *
     * @param areReturned whether it has; false by default
     * @return the options
     */
    public EvaluationOptions withReturnEpisodes(boolean areReturned) {
        return new EvaluationOptions(wire, timeout, deadline, areReturned, differentEpisodes);
    }

    /**
     * Sets whether each member of a population has episodes of its own. Only for populations.
     *
     * @param differ whether they have; false by default
     * @return the options
     */
    public EvaluationOptions withDifferentEpisodes(boolean differ) {
        return new EvaluationOptions(wire, timeout, deadline, returnEpisodes, differ);
    }

    /**
     * Sets which policies act in an environment with many agents, instead of the sampler's own map. The episode of
     * index i has the map at position i modulo their number. Not for populations.
     *
     * @param maps the maps, which may name all policies and versions that the sampler holds; none for its own map
     * @return the options
     */
    public EvaluationOptions withPolicyMaps(PolicyMap... maps) {
        List<io.github.rollserve.v1.PolicyMap> messages =
            Arguments.list("maps", maps).stream().map(PolicyMap::toWire).toList();
        return with(builder -> builder.clearPolicyMaps().addAllPolicyMaps(messages));
    }

    io.github.rollserve.v1.EvaluationOptions.Builder toWire() {
        return wire.toBuilder();
    }

    /** Adds to a request how episodes are delivered, if they are asked for. */
    void setDelivery(EvaluateRequest.Builder request, ConnectionOptions connection) {
        if (returnEpisodes) {
            request.setEpisodes(EpisodeDelivery.newBuilder()
                .setMaxMessageBytes(connection.maxMessageBytes())
                .addAllAcceptCompression(SamplingOptions.toWire(connection.compression()))
                .setAcceptFrameStacks(true));
        }
    }

    boolean hasDifferentEpisodes() {
        return differentEpisodes;
    }

    Duration timeoutOr(Duration other) {
        return timeout == null ? other : timeout;
    }

    /** Returns the deadline of a call that starts now; null for none. */
    Deadline startDeadline() {
        return deadline == null ? null : Deadline.after(deadline.toNanos(), TimeUnit.NANOSECONDS);
    }
}
