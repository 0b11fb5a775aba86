package io.github.rollserve;

/**
 * A task that an environment can be set to without being made again.
 *
 * @param method the method that sets the task, such as {@code set_task}
 * @param argument its only argument: a value that JSON can hold, or null
 */
public record Task(String method, Object argument) {}
