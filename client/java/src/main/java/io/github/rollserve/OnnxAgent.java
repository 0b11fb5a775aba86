package io.github.rollserve;

import com.google.protobuf.ByteString;
import io.github.rollserve.v1.ActionsHead;
import io.github.rollserve.v1.CategoricalHead;
import io.github.rollserve.v1.DiagonalGaussianHead;
import io.github.rollserve.v1.SquashedGaussianHead;
import java.util.Map;
import java.util.Objects;
import java.util.function.UnaryOperator;

/**
 * A model in the ONNX format. The comment on {@code OnnxAgent} in the protos describes its inputs and outputs. Each
 * method returns an agent with one more setting.
 */
@CheckReturnValue
public final class OnnxAgent implements Agent {
    private final io.github.rollserve.v1.OnnxAgent wire;

    /** The meaning of the outputs of a model. */
    public enum Head {
        /** The output {@code logits} has the logits of a Discrete action. */
        CATEGORICAL,
        /** The outputs {@code mean} and {@code log_std} are those of a normal distribution. */
        DIAGONAL_GAUSSIAN,
        /** As for {@link #DIAGONAL_GAUSSIAN}; samples are mapped into the bounds of the space by tanh. */
        SQUASHED_GAUSSIAN,
        /** The outputs are actions: {@code action}, or {@code action/NAME} for each leaf. */
        ACTIONS
    }

    /**
     * Creates an agent whose inputs and outputs have their roles as names.
     *
     * @param model the serialized ModelProto, which is copied
     * @param head the meaning of the outputs
     */
    public OnnxAgent(byte[] model, Head head) {
        this(start(model, head));
    }

    private OnnxAgent(io.github.rollserve.v1.OnnxAgent wire) {
        this.wire = wire;
    }

    private static io.github.rollserve.v1.OnnxAgent start(byte[] model, Head head) {
        io.github.rollserve.v1.OnnxAgent.Builder message = io.github.rollserve.v1.OnnxAgent.newBuilder()
            .setModel(ByteString.copyFrom(Objects.requireNonNull(model, "model")));
        switch (Objects.requireNonNull(head, "head")) {
            case CATEGORICAL -> message.setCategorical(CategoricalHead.getDefaultInstance());
            case DIAGONAL_GAUSSIAN -> message.setDiagonalGaussian(DiagonalGaussianHead.getDefaultInstance());
            case SQUASHED_GAUSSIAN -> message.setSquashedGaussian(SquashedGaussianHead.getDefaultInstance());
            case ACTIONS -> message.setActions(ActionsHead.getDefaultInstance());
        }
        return message.build();
    }

    private OnnxAgent with(UnaryOperator<io.github.rollserve.v1.OnnxAgent.Builder> change) {
        return new OnnxAgent(change.apply(wire.toBuilder()).build());
    }

    /**
     * Sets the names of inputs, where they differ from their roles.
     *
     * @param inputs the names by role
     * @return the agent
     */
    public OnnxAgent withInputs(Map<String, String> inputs) {
        return with(builder -> builder.clearInputs().putAllInputs(Arguments.map("inputs", inputs)));
    }

    /**
     * Sets the names of outputs, where they differ from their roles.
     *
     * @param outputs the names by role
     * @return the agent
     */
    public OnnxAgent withOutputs(Map<String, String> outputs) {
        return with(builder -> builder.clearOutputs().putAllOutputs(Arguments.map("outputs", outputs)));
    }

    /**
     * Sets the names of further outputs, which become infos of the agent.
     *
     * @param infos the names
     * @return the agent
     */
    public OnnxAgent withInfos(String... infos) {
        return with(builder -> builder.clearInfos().addAllInfos(Arguments.list("infos", infos)));
    }

    /**
     * Sets an action mask.
     *
     * @param mask the source of the mask; none by default
     * @return the agent
     */
    public OnnxAgent withActionMask(ActionMask mask) {
        return with(builder -> builder.setActionMask(AgentMessages.of(mask)));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof OnnxAgent agent && wire.equals(agent.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    io.github.rollserve.v1.OnnxAgent toWire() {
        return wire;
    }
}
