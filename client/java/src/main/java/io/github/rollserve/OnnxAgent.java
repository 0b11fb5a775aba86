package io.github.rollserve;

import java.util.List;
import java.util.Map;

/**
 * A model in the ONNX format. The comment on {@code OnnxAgent} in the protos describes its inputs and outputs.
 *
 * @param model the serialized ModelProto, which is not copied
 * @param head the meaning of the outputs
 * @param inputs the names of inputs by role, where they differ from the role
 * @param outputs the names of outputs by role, where they differ from the role
 * @param infos the names of further outputs, which become infos of the agent
 */
public record OnnxAgent(
    byte[] model, Head head, Map<String, String> inputs, Map<String, String> outputs, List<String> infos)
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
        this(model, head, Map.of(), Map.of(), List.of());
    }
}
