package io.github.rollserve;

import java.util.Map;
import java.util.Objects;

/**
 * A change of settings of the present agent, a {@link PythonAgent}, which keeps its code and its other settings.
 *
 * @param kwargs keyword arguments that are added to the present ones, or replace them by name
 * @param parameters parameters that are added to the present ones, or replace them by name
 */
public record AgentChange(Map<String, ?> kwargs, Parameters parameters) implements PolicyUpdate {
    /**
     * Creates a change.
     *
     * @param kwargs keyword arguments that are added to the present ones, or replace them by name
     * @param parameters parameters that are added to the present ones, or replace them by name
     */
    public AgentChange {
        Objects.requireNonNull(kwargs, "kwargs");
        Objects.requireNonNull(parameters, "parameters");
    }

    /**
     * Creates a change of keyword arguments.
     *
     * @param kwargs keyword arguments that are added to the present ones, or replace them by name
     */
    public AgentChange(Map<String, ?> kwargs) {
        this(kwargs, Parameters.NONE);
    }
}
