package io.github.rollserve;

import io.github.rollserve.v1.Fragments;
import java.util.Objects;
import java.util.function.UnaryOperator;

/** Options of calls that sample fragments. Each method returns options with one more set. */
@CheckReturnValue
public final class FragmentOptions {
    private final SamplingOptions sampling;
    private final Fragments wire;

    /** Creates options that all have their defaults. */
    public FragmentOptions() {
        this(new SamplingOptions());
    }

    /**
     * Creates options of fragments beside those that all sampling calls have.
     *
     * @param sampling the options of all sampling calls
     */
    public FragmentOptions(SamplingOptions sampling) {
        this(Objects.requireNonNull(sampling, "sampling"), Fragments.getDefaultInstance());
    }

    private FragmentOptions(SamplingOptions sampling, Fragments wire) {
        this.sampling = sampling;
        this.wire = wire;
    }

    private FragmentOptions with(UnaryOperator<Fragments.Builder> change) {
        return new FragmentOptions(sampling, change.apply(wire.toBuilder()).build());
    }

    /**
     * Sets whether an episode that reaches its maximum length ends without a reset, so that the row's next episode
     * begins where this one ends.
     *
     * @param isSoft whether it does; false by default
     * @return the options
     */
    public FragmentOptions withSoftHorizon(boolean isSoft) {
        return with(builder -> builder.setSoftHorizon(isSoft));
    }

    /**
     * Sets the number of steps that each row has made in the row sequence of the seed: its present position, or the one
     * before the last call, to repeat that call.
     *
     * @param numSteps the number; by default, a seed begins at its first step
     * @return the options
     */
    public FragmentOptions withRowStepCount(long numSteps) {
        return with(builder -> builder.setRowStepCount(numSteps));
    }

    /**
     * Sets the fraction of the workers that have to make all their steps; as soon as they have, the others stop.
     *
     * @param fraction over 0 and up to 1, the default
     * @return the options
     */
    public FragmentOptions withFractionOfWorkers(double fraction) {
        return with(builder -> builder.setFractionOfWorkers(fraction));
    }

    SamplingOptions sampling() {
        return sampling;
    }

    Fragments toWire() {
        return wire;
    }
}
