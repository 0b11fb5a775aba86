package io.github.rollserve;

import java.util.Map;
import java.util.Objects;

/**
 * A class of {@code gymnasium.wrappers}.
 *
 * @param name the name of the class
 * @param kwargs its keyword arguments without the environment: values that JSON can hold
 */
public record Wrapper(String name, Map<String, ?> kwargs) {
    /**
     * Creates a wrapper.
     *
     * @param name the name of the class
     * @param kwargs its keyword arguments without the environment: values that JSON can hold
     */
    public Wrapper {
        Objects.requireNonNull(name, "name");
        Objects.requireNonNull(kwargs, "kwargs");
    }

    /**
     * Creates a wrapper without arguments.
     *
     * @param name the name of the class
     */
    public Wrapper(String name) {
        this(name, Map.of());
    }
}
