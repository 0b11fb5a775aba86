package io.github.rollserve;

/** An agent that draws actions uniformly from the action space. */
@CheckReturnValue
public final class RandomAgent implements Agent {
    private final io.github.rollserve.v1.RandomAgent wire;

    /** Creates an agent. */
    public RandomAgent() {
        this(io.github.rollserve.v1.RandomAgent.getDefaultInstance());
    }

    private RandomAgent(io.github.rollserve.v1.RandomAgent wire) {
        this.wire = wire;
    }

    /**
     * Sets an action mask.
     *
     * @param mask the source of the mask; none by default
     * @return the agent
     */
    public RandomAgent withActionMask(ActionMask mask) {
        return new RandomAgent(wire.toBuilder().setActionMask(AgentMessages.of(mask)).build());
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof RandomAgent agent && wire.equals(agent.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    io.github.rollserve.v1.RandomAgent toWire() {
        return wire;
    }
}
