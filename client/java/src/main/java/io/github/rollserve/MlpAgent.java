package io.github.rollserve;

import java.util.Optional;
import java.util.OptionalDouble;
import java.util.Random;
import java.util.TreeMap;

/**
 * A multilayer perceptron with a distribution over actions at its end, evaluated in float32.
 *
 * <p>Layer i is {@code activation(norm(weight · input + bias))}; the last layer has no norm and no activation. The
 * input is the observation as {@code gymnasium.spaces.flatten} makes it. The names and shapes of the parameters say
 * which layers and parts there are, as the comment on {@code MlpAgent} in the protos describes them: {@code 0/weight}
 * (outputs, inputs), {@code 0/bias} (outputs) and so on for each layer, {@code i/norm/weight} and {@code i/norm/bias}
 * with layer norm, {@code value/weight} and {@code value/bias} for a value on the last hidden layer,
 * {@code value/0/weight} and so on for a value network of its own, {@code log_std} for Gaussian heads that do not
 * predict it, and {@code core/weight_ih} and so on for a recurrent core. With {@code observation/mean} and
 * {@code observation/variance}, float64 (inputs), observations are normalized first.
 *
 * @param parameters the parameters, float32, and float64 of the normalization
 * @param head the meaning of the output
 * @param activation the function of the hidden layers
 * @param layerNormEpsilon the number that layer norm adds to the variance; empty for 1e-5
 * @param normalizationEpsilon the number that the normalization adds to the variance; empty for 1e-8
 * @param normalizationClip the bound of normalized observations; empty for 10
 * @param actionMask the source of the action mask; empty for none
 */
@CheckReturnValue
public record MlpAgent(
    Parameters parameters,
    Head head,
    Activation activation,
    OptionalDouble layerNormEpsilon,
    OptionalDouble normalizationEpsilon,
    OptionalDouble normalizationClip,
    Optional<ActionMask> actionMask)
    implements Agent {
    /** A function of each element of a hidden layer. The number on the wire is the position, from 1. */
    public enum Activation {
        /** The hyperbolic tangent. */
        TANH,
        /** max(x, 0). */
        RELU,
        /** x where x is positive, else exp(x) - 1. */
        ELU,
        /** x · Φ(x), by the error function, as in PyTorch. */
        GELU,
        /** The approximation of {@link #GELU} by tanh, as in JAX. */
        GELU_TANH,
        /** x / (1 + exp(-x)), also called swish. */
        SILU
    }

    /** The meaning of the output of an MLP. */
    public sealed interface Head {}

    /** The logits of a Discrete action. */
    public record Categorical() implements Head {}

    /**
     * The means of a Box's elements, and the logarithms of their standard deviations unless a parameter {@code log_std}
     * has them.
     *
     * @param minLogStd the lower bound that log_std is clipped to; empty for none
     * @param maxLogStd the upper bound; empty for none
     */
    public record DiagonalGaussian(OptionalDouble minLogStd, OptionalDouble maxLogStd) implements Head {
        /** Creates a head without bounds. */
        public DiagonalGaussian() {
            this(OptionalDouble.empty(), OptionalDouble.empty());
        }
    }

    /**
     * As {@link DiagonalGaussian}, before tanh, which maps samples into the bounds of a Box.
     *
     * @param minLogStd the lower bound that log_std is clipped to; empty for none
     * @param maxLogStd the upper bound; empty for none
     */
    public record SquashedGaussian(OptionalDouble minLogStd, OptionalDouble maxLogStd) implements Head {
        /** Creates a head without bounds. */
        public SquashedGaussian() {
            this(OptionalDouble.empty(), OptionalDouble.empty());
        }
    }

    /** The logits of all elements of a MultiDiscrete action, one element after the other. */
    public record MultiCategorical() implements Head {}

    /** The logits of ones of a MultiBinary action. */
    public record Bernoulli() implements Head {}

    /**
     * Q-values of a Discrete action, of which the highest is taken, or a random action.
     *
     * @param epsilon the probability of a random action, from 0 to 1
     */
    public record EpsilonGreedy(double epsilon) implements Head {}

    /**
     * Q-values of a Discrete action; divided by a temperature, they are logits.
     *
     * @param temperature the divisor, from 1e-6 to 1e6
     */
    public record Boltzmann(double temperature) implements Head {}

    /**
     * Creates an agent whose hidden layers end in tanh.
     *
     * @param parameters the parameters, float32, and float64 of the normalization
     * @param head the meaning of the output
     */
    public MlpAgent(Parameters parameters, Head head) {
        this(parameters, head, Activation.TANH, OptionalDouble.empty());
    }

    /**
     * Creates an agent without an action mask, whose normalization has the default constants.
     *
     * @param parameters the parameters, float32, and float64 of the normalization
     * @param head the meaning of the output
     * @param activation the function of the hidden layers
     * @param layerNormEpsilon the number that layer norm adds to the variance; empty for 1e-5
     */
    public MlpAgent(Parameters parameters, Head head, Activation activation, OptionalDouble layerNormEpsilon) {
        this(
            parameters, head, activation, layerNormEpsilon, OptionalDouble.empty(), OptionalDouble.empty(),
            Optional.empty());
    }

    /**
     * Returns an agent with other constants of the normalization, whose moments are among the parameters.
     *
     * @param epsilon the number that is added to the variance
     * @param clip the bound of normalized observations
     * @return the agent
     */
    public MlpAgent withNormalization(double epsilon, double clip) {
        return new MlpAgent(
            parameters, head, activation, layerNormEpsilon, OptionalDouble.of(epsilon), OptionalDouble.of(clip),
            actionMask);
    }

    /**
     * Returns an agent with an action mask.
     *
     * @param mask the source of the mask
     * @return the agent
     */
    public MlpAgent withActionMask(ActionMask mask) {
        return new MlpAgent(
            parameters, head, activation, layerNormEpsilon, normalizationEpsilon, normalizationClip,
            Optional.of(mask));
    }

    /**
     * Returns an untrained agent, a start for training or for a first try.
     *
     * <p>Its head is the one that fits the action space: {@link Categorical}, {@link DiagonalGaussian},
     * {@link MultiCategorical} or {@link Bernoulli}. Weights are normal with variance 1 / inputs; the last layer's
     * standard deviation is a hundredth of that, so that the first policy is close to uniform. Biases and log_std are
     * 0.
     *
     * @param observationSpace the space of observations
     * @param actionSpace the space of actions
     * @param hiddenSizes the sizes of the hidden layers
     * @param seed the seed of the weights
     * @return the agent
     * @throws InvalidArgumentException if no head fits the action space, or a size is below 1
     */
    public static MlpAgent initial(Space observationSpace, Space actionSpace, int[] hiddenSizes, long seed) {
        Random random = new Random(seed);
        Head head = headFor(actionSpace);
        TreeMap<String, Tensor> tensors = new TreeMap<>();
        int inputs = observationSpace.flatSize();
        for (int layer = 0; layer <= hiddenSizes.length; layer++) {
            boolean isLast = layer == hiddenSizes.length;
            int outputs = isLast ? actionSpace.flatSize() : hiddenSizes[layer];
            if (outputs < 1) {
                throw Errors.invalid("hiddenSizes[" + layer + "]", "at least 1", outputs);
            }
            double scale = (isLast ? 0.01 : 1) / Math.sqrt(inputs);
            float[] weight = new float[Math.multiplyExact(outputs, inputs)];
            for (int i = 0; i < weight.length; i++) {
                weight[i] = (float) (scale * random.nextGaussian());
            }
            tensors.put(layer + "/weight", Tensor.of(weight, outputs, inputs));
            tensors.put(layer + "/bias", Tensor.of(new float[outputs]));
            inputs = outputs;
        }
        if (head instanceof DiagonalGaussian) {
            tensors.put("log_std", Tensor.of(new float[inputs]));
        }
        return new MlpAgent(new Parameters(tensors), head);
    }

    private static Head headFor(Space actions) {
        if (actions instanceof Space.Discrete) {
            return new Categorical();
        } else if (actions instanceof Space.MultiDiscrete) {
            return new MultiCategorical();
        } else if (actions instanceof Space.MultiBinary) {
            return new Bernoulli();
        } else if (actions instanceof Space.Box box && box.dataType().isFloating()) {
            return new DiagonalGaussian();
        }
        String expected = "a Discrete, MultiDiscrete or MultiBinary space, or a Box of floats";
        throw Errors.invalid("actionSpace", expected, actions);
    }
}
