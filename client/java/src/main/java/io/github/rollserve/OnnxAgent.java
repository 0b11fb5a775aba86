package io.github.rollserve;

import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * A model in the ONNX format. The comment on {@code OnnxAgent} in the protos describes its inputs and outputs.
 *
 * @param model the serialized ModelProto, which is not copied
 * @param head the meaning of the outputs
 * @param inputs the names of inputs by role, where they differ from the role
 * @param outputs the names of outputs by role, where they differ from the role
 * @param infos the names of further outputs, which become infos of the agent
 * @param actionMask the source of the action mask; empty for none
 */
@CheckReturnValue
public record OnnxAgent(
    byte[] model,
    Head head,
    Map<String, String> inputs,
    Map<String, String> outputs,
    List<String> infos,
    Optional<ActionMask> actionMask)
    implements Agent {
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
     * @param model the serialized ModelProto
     * @param head the meaning of the outputs
     */
    public OnnxAgent(byte[] model, Head head) {
        this(model, head, Map.of(), Map.of(), List.of(), Optional.empty());
    }

    /**
     * Returns an agent with an action mask.
     *
     * @param mask the source of the mask
     * @return the agent
     */
    public OnnxAgent withActionMask(ActionMask mask) {
        return new OnnxAgent(model, head, inputs, outputs, infos, Optional.of(mask));
    }
}
