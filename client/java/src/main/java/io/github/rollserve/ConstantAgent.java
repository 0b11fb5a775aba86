package io.github.rollserve;

/**
 * An agent that always takes the same action.
 *
 * @param action the action, with a tensor for each leaf of the action space, such as
 *     {@code Columns.plain(Tensor.scalar(1))}
 */
public record ConstantAgent(Columns action) implements Agent {}
