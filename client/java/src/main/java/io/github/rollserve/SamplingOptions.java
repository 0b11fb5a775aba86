package io.github.rollserve;

import io.grpc.Deadline;
import java.time.Duration;
import java.util.List;
import java.util.Objects;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;

/**
 * Options of calls that sample. Each method returns options with one more set; what is not set has its default.
 *
 * <pre>{@code
 * SamplingOptions options = new SamplingOptions().withSeed(7).withMaxEpisodeLength(200);
 * }</pre>
 */
@CheckReturnValue
public final class SamplingOptions {
    /** The largest size of an agent in a call that samples: what servers accept, less room for the rest. */
    private static final int MAX_AGENT_BYTES = (4 << 20) - (4 << 10);

    private final io.github.rollserve.v1.SamplingOptions wire;
    private final AgentUpdate agent; // the same for the next three: null where it is not set
    private final List<Compression> compression;
    private final Duration timeout;
    private final Duration deadline;

    /** Creates options that all have their defaults. */
    public SamplingOptions() {
        this(
            io.github.rollserve.v1.SamplingOptions.newBuilder()
                .setAcceptFrameStacks(true)
                .setAcceptJoined(true)
                .setReturnReturnsBefore(true) // 8 bytes for each segment that begins within its episode, else none
                .build(),
            null, null, null, null);
    }

    private SamplingOptions(
        io.github.rollserve.v1.SamplingOptions wire, AgentUpdate agent, List<Compression> compression,
        Duration timeout, Duration deadline) {
        this.wire = wire;
        this.agent = agent;
        this.compression = compression;
        this.timeout = timeout;
        this.deadline = deadline;
    }

    private SamplingOptions with(UnaryOperator<io.github.rollserve.v1.SamplingOptions.Builder> change) {
        return new SamplingOptions(change.apply(wire.toBuilder()).build(), agent, compression, timeout, deadline);
    }

    /**
     * Makes an update of the agent for all workers before the call samples with the new version. If the update fails,
     * the call fails with the same error, and nothing has changed. At most 4 MiB; larger ones need
     * {@link Sampler#updateAgent(AgentUpdate)}. Not together with a version of the policy.
     *
     * @param update the update
     * @return the options
     */
    public SamplingOptions withAgent(AgentUpdate update) {
        return new SamplingOptions(wire, Objects.requireNonNull(update, "update"), compression, timeout, deadline);
    }

    /**
     * Sets the root seed of the episodes. By default, the sampler continues its own sequence, where no episode comes
     * twice.
     *
     * @param root the seed, of which all 64 bits count
     * @return the options
     */
    public SamplingOptions withSeed(long root) {
        return with(builder -> builder.setSeed(root));
    }

    /**
     * Sets the index of the first episode in the sequence of the seed. Not for fragments.
     *
     * @param index the index; 0 by default
     * @return the options
     */
    public SamplingOptions withFirstEpisodeIndex(long index) {
        return with(builder -> builder.setFirstEpisodeIndex(index));
    }

    /**
     * Sets the number of steps after which an episode is truncated, over all of its fragments.
     *
     * @param numSteps the number; the server's setting by default
     * @return the options
     */
    public SamplingOptions withMaxEpisodeLength(long numSteps) {
        return with(builder -> builder.setMaxEpisodeLength(numSteps));
    }

    /**
     * Sets the version that the current policy must have. By default the version that this client has set last, or is
     * setting, if {@link #withPolicyVersion(long)} is not set; see {@link ConnectionOptions#withShared(boolean)}.
     *
     * @param version the version
     * @return the options
     */
    public SamplingOptions withExpectedPolicyVersion(long version) {
        return with(builder -> builder.setExpectedPolicyVersion(version));
    }

    /**
     * Sets the version that the current environment must have, in the same way as the one of the policy.
     *
     * @param version the version
     * @return the options
     */
    public SamplingOptions withExpectedEnvVersion(long version) {
        return with(builder -> builder.setExpectedEnvironmentVersion(version));
    }

    /**
     * Sets the oldest version that may act.
     *
     * @param version the version
     * @return the options
     */
    public SamplingOptions withMinPolicyVersion(long version) {
        return with(builder -> builder.setMinPolicyVersion(version));
    }

    /**
     * Sets the version that acts, one of the last few that the server keeps.
     *
     * @param version the version; the current one by default
     * @return the options
     */
    public SamplingOptions withPolicyVersion(long version) {
        return with(builder -> builder.setPolicyVersion(version));
    }

    /**
     * Sets the version of the environment, one of the last few that the server keeps.
     *
     * @param version the version; the current one by default
     * @return the options
     */
    public SamplingOptions withEnvVersion(long version) {
        return with(builder -> builder.setEnvironmentVersion(version));
    }

    /**
     * Sets the number of workers that the sampler must have.
     *
     * @param number the number
     * @return the options
     */
    public SamplingOptions withExpectedNumWorkers(int number) {
        return with(builder -> builder.setWorkerCount(number));
    }

    /**
     * Sets the time without progress after which the call ends with a {@link DeadlineException}.
     *
     * @param time a positive time; the timeout of the connection by default
     * @return the options
     */
    public SamplingOptions withTimeout(Duration time) {
        return new SamplingOptions(wire, agent, compression, Timeouts.positive("timeout", time), deadline);
    }

    /**
     * Sets the time in total after which the call ends with a {@link DeadlineException}.
     *
     * @param time a positive time; no limit by default
     * @return the options
     */
    public SamplingOptions withDeadline(Duration time) {
        return new SamplingOptions(wire, agent, compression, timeout, Timeouts.positive("deadline", time));
    }

    /**
     * Sets the codecs that columns may come in.
     *
     * @param codecs the codecs, the preferred one first; those of the connection by default
     * @return the options
     */
    public SamplingOptions withCompression(Compression... codecs) {
        List<Compression> accepted = Compression.available(codecs);
        return new SamplingOptions(wire, agent, accepted, timeout, deadline);
    }

    /**
     * Sets how freely the agent acts.
     *
     * @param exploration the exploration; the agent's own by default
     * @return the options
     */
    public SamplingOptions withExploration(Exploration exploration) {
        return with(builder -> builder.setExploration(Objects.requireNonNull(exploration, "exploration").toWire()));
    }

    /**
     * Sets whether each frame of observations that are stacks of frames is sent once. The result is the same.
     *
     * @param once whether it is; true by default
     * @return the options
     */
    public SamplingOptions withFramesOnce(boolean once) {
        return with(builder -> builder.setAcceptFrameStacks(once));
    }

    /**
     * Sets whether workers continue after this call with what the same call would ask for next.
     *
     * @param isPrefetched whether they do; false by default
     * @return the options
     */
    public SamplingOptions withPrefetch(boolean isPrefetched) {
        return with(builder -> builder.setPrefetch(isPrefetched));
    }

    /**
     * Sets whether the agent's infos have the recurrent state before each step, as {@code state/NAME}.
     *
     * @param areReturned whether they have; false by default
     * @return the options
     */
    public SamplingOptions withReturnStates(boolean areReturned) {
        return with(builder -> builder.setReturnStates(areReturned));
    }

    /**
     * Sets whether the batch has {@link EpisodeBatch#lastValues()}. The agent needs an info {@code value}.
     *
     * @param areReturned whether it has; false by default
     * @return the options
     */
    public SamplingOptions withReturnLastValues(boolean areReturned) {
        return with(builder -> builder.setReturnLastValues(areReturned));
    }

    /**
     * Sets whether the batch has {@link EpisodeBatch#lastStates()}.
     *
     * @param areReturned whether it has; false by default
     * @return the options
     */
    public SamplingOptions withReturnLastStates(boolean areReturned) {
        return with(builder -> builder.setReturnLastStates(areReturned));
    }

    /**
     * Sets whether to discard what is sampled, to measure sampling alone. Only for streams.
     *
     * @param isDiscarded whether to discard it; false by default
     * @return the options
     */
    public SamplingOptions withBlackhole(boolean isDiscarded) {
        return with(builder -> builder.setBlackhole(isDiscarded));
    }

    /**
     * Sets whether to leave out episodes whose environments raise errors in every attempt, instead of failing the
     * call. Not for fragments.
     *
     * @param areSkipped whether to leave them out; false by default
     * @return the options
     */
    public SamplingOptions withSkipFailedEpisodes(boolean areSkipped) {
        return with(builder -> builder.setSkipFailedEpisodes(areSkipped));
    }

    /**
     * Sets the policies whose segments a {@link MultiAgentBatch} has. The others act alike, and their steps count.
     *
     * @param policies the names of the policies; none for all, the default
     * @return the options
     */
    public SamplingOptions withDeliver(String... policies) {
        List<String> names = Arguments.list("policies", policies);
        return with(builder -> builder.clearDeliverPolicies().addAllDeliverPolicies(names));
    }

    /**
     * Sets whether the steps that a call asks for are those of all agents, also of agents whose policies are not
     * delivered, instead of the environment's. For whole episodes with a number of steps.
     *
     * @param areCounted whether they are; false by default
     * @return the options
     */
    public SamplingOptions withCountAgentSteps(boolean areCounted) {
        return with(builder -> builder.setCountAgentSteps(areCounted));
    }

    io.github.rollserve.v1.SamplingOptions.Builder toWire(ConnectionOptions connection) {
        io.github.rollserve.v1.SamplingOptions.Builder message = wire.toBuilder()
            .setMaxMessageBytes(connection.maxMessageBytes())
            .addAllAcceptCompression(toWire(compression == null ? connection.compression() : compression));
        if (agent != null) {
            boolean namesPolicy =
                wire.hasPolicyVersion() || wire.hasMinPolicyVersion() || wire.hasExpectedPolicyVersion();
            if (namesPolicy || wire.hasExpectedEnvironmentVersion()) {
                throw Errors.invalid("agent", "no version of the policy and no expected version beside it", "some");
            }
            io.github.rollserve.v1.AgentUpdate update = AgentMessages.of(agent);
            if (update.getSerializedSize() > MAX_AGENT_BYTES) {
                String expected = "at most " + MAX_AGENT_BYTES + " bytes (call updateAgent first)";
                throw Errors.invalid("agent", expected, update.getSerializedSize());
            }
            message.setAgentUpdate(update);
        }
        return message;
    }

    static List<io.github.rollserve.v1.Compression> toWire(List<Compression> codecs) {
        return codecs.stream().map(Compression::toWire).toList();
    }

    Duration timeoutOr(Duration other) {
        return timeout == null ? other : timeout;
    }

    /** Returns the deadline of a call that starts now; null for none. */
    Deadline startDeadline() {
        return deadline == null ? null : Deadline.after(deadline.toNanos(), TimeUnit.NANOSECONDS);
    }
}
