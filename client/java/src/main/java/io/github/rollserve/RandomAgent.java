package io.github.rollserve;

import java.util.Optional;

/**
 * An agent that draws actions uniformly from the action space.
 *
 * @param actionMask the source of the action mask; empty for none
 */
@CheckReturnValue
public record RandomAgent(Optional<ActionMask> actionMask) implements Agent {
    /** Creates an agent without an action mask. */
    public RandomAgent() {
        this(Optional.empty());
    }

    /**
     * Returns an agent with an action mask.
     *
     * @param mask the source of the mask
     * @return the agent
     */
    public RandomAgent withActionMask(ActionMask mask) {
        return new RandomAgent(Optional.of(mask));
    }
}
