package io.github.rollserve;

import java.util.Map;
import java.util.Optional;

/**
 * A change of the present environment. What is left out stays as it is; episodes start over in any case.
 *
 * @param kwargs keyword arguments that are added to the present ones, or replace them by name
 * @param task the new task; empty to leave the present one
 * @param resetOptions the {@code options} of each reset from now on; empty to leave the present ones
 */
public record EnvChange(Map<String, ?> kwargs, Optional<Task> task, Optional<Map<String, ?>> resetOptions)
    implements EnvUpdate {
    /**
     * Creates a change of keyword arguments.
     *
     * @param kwargs keyword arguments that are added to the present ones, or replace them by name
     */
    public EnvChange(Map<String, ?> kwargs) {
        this(kwargs, Optional.empty(), Optional.empty());
    }

    /**
     * Creates a change of the task.
     *
     * @param task the new task
     */
    public EnvChange(Task task) {
        this(Map.of(), Optional.of(task), Optional.empty());
    }
}
