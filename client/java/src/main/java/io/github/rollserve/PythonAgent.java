package io.github.rollserve;

import java.util.Map;

/**
 * An agent in Python that is installed with the server.
 *
 * @param name the name of an entry point of the group {@code rollserve.agents}
 * @param kwargs the keyword arguments of its factory: values that JSON can hold
 * @param parameters its parameters
 */
public record PythonAgent(String name, Map<String, ?> kwargs, Parameters parameters) implements Agent {
    /**
     * Creates an agent without arguments and parameters.
     *
     * @param name the name of an entry point of the group {@code rollserve.agents}
     */
    public PythonAgent(String name) {
        this(name, Map.of(), Parameters.NONE);
    }
}
