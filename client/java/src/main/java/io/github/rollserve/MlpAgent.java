package io.github.rollserve;

import io.github.rollserve.v1.LayerNorm;
import io.github.rollserve.v1.ObservationNormalization;
import java.util.Objects;
import java.util.Random;
import java.util.TreeMap;
import java.util.function.UnaryOperator;

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
 * <p>Each {@code with…} method returns an agent with one more setting. Agents are equal if their parameters and
 * settings are.
 */
@CheckReturnValue
public final class MlpAgent implements Agent {
    private final Parameters parameters;
    private final Head head;
    private final io.github.rollserve.v1.MlpAgent settings; // without what follows from the parameters

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
     * @param minLogStd the lower bound that log_std is clipped to; negative infinity for none
     * @param maxLogStd the upper bound; infinity for none
     */
    public record DiagonalGaussian(double minLogStd, double maxLogStd) implements Head {
        /** Creates a head without bounds. */
        public DiagonalGaussian() {
            this(Double.NEGATIVE_INFINITY, Double.POSITIVE_INFINITY);
        }
    }

    /**
     * As {@link DiagonalGaussian}, before tanh, which maps samples into the bounds of a Box.
     *
     * @param minLogStd the lower bound that log_std is clipped to; negative infinity for none
     * @param maxLogStd the upper bound; infinity for none
     */
    public record SquashedGaussian(double minLogStd, double maxLogStd) implements Head {
        /** Creates a head without bounds. */
        public SquashedGaussian() {
            this(Double.NEGATIVE_INFINITY, Double.POSITIVE_INFINITY);
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
        this(
            Objects.requireNonNull(parameters, "parameters"),
            Objects.requireNonNull(head, "head"),
            io.github.rollserve.v1.MlpAgent.newBuilder()
                .setActivationValue(Activation.TANH.ordinal() + 1)
                .build());
    }

    private MlpAgent(Parameters parameters, Head head, io.github.rollserve.v1.MlpAgent settings) {
        this.parameters = parameters;
        this.head = head;
        this.settings = settings;
    }

    private MlpAgent with(UnaryOperator<io.github.rollserve.v1.MlpAgent.Builder> change) {
        return new MlpAgent(parameters, head, change.apply(settings.toBuilder()).build());
    }

    /**
     * Sets the function of the hidden layers.
     *
     * @param activation the function; {@link Activation#TANH} by default
     * @return the agent
     */
    public MlpAgent withActivation(Activation activation) {
        int number = Objects.requireNonNull(activation, "activation").ordinal() + 1;
        return with(builder -> builder.setActivationValue(number));
    }

    /**
     * Sets the number that layer norm adds to the variance. It has no effect without layer norm.
     *
     * @param epsilon the number; 1e-5 by default
     * @return the agent
     */
    public MlpAgent withLayerNormEpsilon(double epsilon) {
        return with(builder -> builder.setLayerNorm(LayerNorm.newBuilder().setEpsilon(epsilon)));
    }

    /**
     * Sets the constants of the normalization, whose moments have to be among the parameters.
     *
     * @param epsilon the number that is added to the variance; 1e-8 by default
     * @param clip the bound of normalized observations; 10 by default
     * @return the agent
     */
    public MlpAgent withNormalization(double epsilon, double clip) {
        return with(builder -> builder.setNormalization(
            ObservationNormalization.newBuilder().setEpsilon(epsilon).setClip(clip)));
    }

    /**
     * Sets an action mask.
     *
     * @param mask the source of the mask; none by default
     * @return the agent
     */
    public MlpAgent withActionMask(ActionMask mask) {
        return with(builder -> builder.setActionMask(AgentMessages.of(mask)));
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
        Objects.requireNonNull(observationSpace, "observationSpace");
        Objects.requireNonNull(hiddenSizes, "hiddenSizes");
        Random random = new Random(seed);
        Head head = headFor(Objects.requireNonNull(actionSpace, "actionSpace"));
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

    /** {@return the parameters} */
    public Parameters parameters() {
        return parameters;
    }

    /** {@return the meaning of the output} */
    public Head head() {
        return head;
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof MlpAgent agent && parameters.equals(agent.parameters) && head.equals(agent.head)
            && settings.equals(agent.settings);
    }

    @Override
    public int hashCode() {
        return Objects.hash(parameters, head, settings);
    }

    /** {@return the head, and the names, types and shapes of the parameters} */
    @Override
    public String toString() {
        return "MlpAgent[" + head + ", " + parameters.tensors() + "]";
    }

    io.github.rollserve.v1.MlpAgent settings() {
        return settings;
    }
}
