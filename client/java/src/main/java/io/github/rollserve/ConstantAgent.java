package io.github.rollserve;

import java.util.Optional;

/**
 * An agent that always takes the same action.
 *
 * @param action the action, with a tensor for each leaf of the action space, such as
 *     {@code Columns.plain(Tensor.scalar(1))}
 * @param actionMask the source of the action mask; empty for none. A call that takes a masked action fails
 */
@CheckReturnValue
public record ConstantAgent(Columns action, Optional<ActionMask> actionMask) implements Agent {
    /**
     * Creates an agent without an action mask.
     *
     * @param action the action, with a tensor for each leaf of the action space
     */
    public ConstantAgent(Columns action) {
        this(action, Optional.empty());
    }

    /**
     * Returns an agent with an action mask.
     *
     * @param mask the source of the mask
     * @return the agent
     */
    public ConstantAgent withActionMask(ActionMask mask) {
        return new ConstantAgent(action, Optional.of(mask));
    }
}
