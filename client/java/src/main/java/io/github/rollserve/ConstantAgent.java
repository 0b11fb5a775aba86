package io.github.rollserve;

import java.util.Objects;

/** An agent that always takes the same action. */
@CheckReturnValue
public final class ConstantAgent implements Agent {
    private final io.github.rollserve.v1.ConstantAgent wire;

    /**
     * Creates an agent.
     *
     * @param action the action, with a tensor for each leaf of the action space, such as
     *     {@code Columns.plain(Tensor.scalar(1))}
     */
    public ConstantAgent(Columns action) {
        this(io.github.rollserve.v1.ConstantAgent.newBuilder()
            .addAllAction(Tensors.toWire(Objects.requireNonNull(action, "action").tensors()))
            .build());
    }

    private ConstantAgent(io.github.rollserve.v1.ConstantAgent wire) {
        this.wire = wire;
    }

    /**
     * Sets an action mask. A call that takes a masked action fails.
     *
     * @param mask the source of the mask; none by default
     * @return the agent
     */
    public ConstantAgent withActionMask(ActionMask mask) {
        return new ConstantAgent(wire.toBuilder().setActionMask(AgentMessages.of(mask)).build());
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof ConstantAgent agent && wire.equals(agent.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    io.github.rollserve.v1.ConstantAgent toWire() {
        return wire;
    }
}
