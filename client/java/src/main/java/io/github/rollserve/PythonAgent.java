package io.github.rollserve;

import java.util.Map;
import java.util.Optional;

/**
 * An agent in Python that is installed with the server.
 *
 * @param name the name of an entry point of the group {@code rollserve.agents}
 * @param kwargs the keyword arguments of its factory: values that JSON can hold
 * @param parameters its parameters
 * @param actionMask the source of the action mask, which the policy gets if it asks for it; empty for none
 */
@CheckReturnValue
public record PythonAgent(String name, Map<String, ?> kwargs, Parameters parameters, Optional<ActionMask> actionMask)
    implements Agent {
    /**
     * Creates an agent without arguments and parameters.
     *
     * @param name the name of an entry point of the group {@code rollserve.agents}
     */
    public PythonAgent(String name) {
        this(name, Map.of(), Parameters.NONE);
    }

    /**
     * Creates an agent without an action mask.
     *
     * @param name the name of an entry point of the group {@code rollserve.agents}
     * @param kwargs the keyword arguments of its factory
     * @param parameters its parameters
     */
    public PythonAgent(String name, Map<String, ?> kwargs, Parameters parameters) {
        this(name, kwargs, parameters, Optional.empty());
    }

    /**
     * Returns an agent with an action mask.
     *
     * @param mask the source of the mask
     * @return the agent
     */
    public PythonAgent withActionMask(ActionMask mask) {
        return new PythonAgent(name, kwargs, parameters, Optional.of(mask));
    }
}
