package io.github.rollserve;

import java.util.Collections;
import java.util.Map;
import java.util.TreeMap;

/**
 * Parameters of an agent by name. As an update, they go into the present agent: all of an MLP, any of an ONNX or Python
 * agent, whose other parameters stay as they are.
 *
 * @param tensors the parameters by name, which nobody can change
 */
public record Parameters(Map<String, Tensor> tensors) implements PolicyUpdate {
    /** No parameters. */
    public static final Parameters NONE = new Parameters(Map.of());

    /**
     * Takes over parameters.
     *
     * @param tensors the parameters by name; they are sent in ascending order of their names
     */
    public Parameters {
        tensors = Collections.unmodifiableMap(new TreeMap<>(Arguments.<Tensor>map("tensors", tensors)));
    }
}
