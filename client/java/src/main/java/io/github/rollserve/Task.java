package io.github.rollserve;

import java.util.Objects;

/**
 * A task that an environment can be set to without being made again.
 *
 * @param method the method that sets the task, such as {@code set_task}
 * @param argument its only argument: a value that JSON can hold, which null is, too
 */
public record Task(String method, Object argument) {
    /**
     * Creates a task.
     *
     * @param method the method that sets the task, such as {@code set_task}
     * @param argument its only argument: a value that JSON can hold, which null is, too
     */
    public Task {
        Objects.requireNonNull(method, "method");
    }
}
