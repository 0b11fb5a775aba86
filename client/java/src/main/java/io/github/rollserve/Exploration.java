package io.github.rollserve;

import java.util.Objects;
import java.util.stream.DoubleStream;

/**
 * How freely an agent acts in a call, instead of its own exploration. The methods that take numbers take one for all
 * episodes, or up to 1024: the episode of index i has number i modulo their count.
 */
public final class Exploration {
    private final io.github.rollserve.v1.Exploration message;

    private Exploration(io.github.rollserve.v1.Exploration.Builder message) {
        this.message = message.build();
    }

    /** {@return the exploration of an agent that acts without randomness: the most likely action, or the mean} */
    public static Exploration deterministic() {
        return new Exploration(io.github.rollserve.v1.Exploration.newBuilder().setDeterministic(true));
    }

    /**
     * Divides the logits of actions.
     *
     * @param divisors numbers from 1e-6 to 1e6
     * @return the exploration
     */
    public static Exploration temperatures(double... divisors) {
        return new Exploration(io.github.rollserve.v1.Exploration.newBuilder()
            .addAllTemperatures(DoubleStream.of(Objects.requireNonNull(divisors, "divisors")).boxed().toList()));
    }

    /**
     * Multiplies the standard deviations of actions.
     *
     * @param factors numbers from 1e-6 to 1e6
     * @return the exploration
     */
    public static Exploration noiseScales(double... factors) {
        return new Exploration(io.github.rollserve.v1.Exploration.newBuilder()
            .addAllNoiseScales(DoubleStream.of(Objects.requireNonNull(factors, "factors")).boxed().toList()));
    }

    /**
     * Replaces the probability of random actions of an epsilon-greedy agent.
     *
     * @param probabilities numbers from 0 to 1
     * @return the exploration
     */
    public static Exploration epsilons(double... probabilities) {
        return new Exploration(io.github.rollserve.v1.Exploration.newBuilder()
            .addAllEpsilons(DoubleStream.of(Objects.requireNonNull(probabilities, "probabilities")).boxed().toList()));
    }

    io.github.rollserve.v1.Exploration toWire() {
        return message;
    }
}
