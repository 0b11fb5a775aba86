package io.github.rollserve;

import io.github.rollserve.v1.DriveSpec;
import io.github.rollserve.v1.NamedTensor;
import java.time.Duration;
import java.util.Objects;
import java.util.function.UnaryOperator;

/**
 * Options of {@link Sampler#drive(DriveOptions)}. Each method returns options with one more set; what is not set has
 * its default.
 */
@CheckReturnValue
public final class DriveOptions {
    private static final int DEFAULT_FRAGMENT_LENGTH = 128;

    private final SamplingOptions sampling;
    private final DriveSpec wire;

    /** Creates options that all have their defaults. */
    public DriveOptions() {
        this(new SamplingOptions(), DriveSpec.newBuilder().setFragmentLength(DEFAULT_FRAGMENT_LENGTH).build());
    }

    private DriveOptions(SamplingOptions sampling, DriveSpec wire) {
        this.sampling = sampling;
        this.wire = wire;
    }

    private DriveOptions with(SamplingOptions changed) {
        return new DriveOptions(changed, wire);
    }

    private DriveOptions with(UnaryOperator<DriveSpec.Builder> change) {
        return new DriveOptions(sampling, change.apply(wire.toBuilder()).build());
    }

    /**
     * Sets the root seed of the episodes.
     *
     * @param root the seed, of which all 64 bits count; by default, the episodes are new ones
     * @return the options
     */
    public DriveOptions withSeed(long root) {
        return with(sampling.withSeed(root));
    }

    /**
     * Sets the number of steps of each row in a recorded fragment. After a loss, a worker makes at most so many steps
     * again.
     *
     * @param numSteps the number; 128 by default
     * @return the options
     */
    public DriveOptions withFragmentLength(long numSteps) {
        return with(builder -> builder.setFragmentLength(numSteps));
    }

    /**
     * Sets the number of steps after which an episode is truncated.
     *
     * @param numSteps the number; the server's setting by default
     * @return the options
     */
    public DriveOptions withMaxEpisodeLength(long numSteps) {
        return with(sampling.withMaxEpisodeLength(numSteps));
    }

    /**
     * Adds an info that comes with each row's actions, for {@link EpisodeBatch#agentInfos()}.
     *
     * @param name the name, such as {@code log_prob}
     * @param dataType the type of the elements
     * @param shape the size of each axis of a row; none for a number
     * @return the options
     */
    public DriveOptions withAgentInfo(String name, DataType dataType, int... shape) {
        NamedTensor.Builder info = NamedTensor.newBuilder().setName(Objects.requireNonNull(name, "name"));
        info.getTensorBuilder().setDataType(Objects.requireNonNull(dataType, "dataType").toWire()).addShape(0);
        for (int size : Objects.requireNonNull(shape, "shape")) {
            info.getTensorBuilder().addShape(size);
        }
        return with(builder -> builder.addAgentInfos(info));
    }

    /**
     * Sets whether each step has the environments' infos.
     *
     * @param areReturned whether it has; false by default
     * @return the options
     */
    public DriveOptions withReturnInfos(boolean areReturned) {
        return with(builder -> builder.setReturnInfos(areReturned));
    }

    /**
     * Sets whether to discard the steps, instead of recording them for {@link Session#batch()}.
     *
     * @param isDiscarded whether to discard them; false by default
     * @return the options
     */
    public DriveOptions withBlackhole(boolean isDiscarded) {
        return with(sampling.withBlackhole(isDiscarded));
    }

    /**
     * Sets the number of rows that are enough for a step, which {@link Session#recv()} returns.
     *
     * @param numRows the number; by default, all rows step together
     * @return the options
     */
    public DriveOptions withMinReady(int numRows) {
        if (numRows < 1) {
            throw Errors.invalid("minReady", "a positive number", numRows);
        }
        return with(builder -> builder.setMinReadyRowCount(numRows));
    }

    /**
     * Sets how long the session outlives its connection: it goes on by itself when the server is in reach again, and
     * {@link Sampler#resumeSession(String, DriveOptions)} takes it up in another process.
     *
     * @param time at most an hour; by default, the session ends with its connection
     * @return the options
     */
    public DriveOptions withLease(Duration time) {
        return with(builder -> builder.setLeaseSeconds(time.toNanos() / 1e9));
    }

    /**
     * Sets the version of the environment, one of the last few that the server keeps.
     *
     * @param version the version; the current one by default
     * @return the options
     */
    public DriveOptions withEnvVersion(long version) {
        return with(sampling.withEnvVersion(version));
    }

    /**
     * Sets how long to wait for a step before the session ends with a {@link DeadlineException}.
     *
     * @param time a positive time; the timeout of the connection by default
     * @return the options
     */
    public DriveOptions withTimeout(Duration time) {
        return with(sampling.withTimeout(time));
    }

    /**
     * Sets the time in total after which the session ends with a {@link DeadlineException}.
     *
     * @param time a positive time; no limit by default
     * @return the options
     */
    public DriveOptions withDeadline(Duration time) {
        return with(sampling.withDeadline(time));
    }

    SamplingOptions sampling() {
        return sampling;
    }

    DriveSpec toWire() {
        return wire;
    }
}
