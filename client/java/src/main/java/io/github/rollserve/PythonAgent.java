package io.github.rollserve;

import java.util.Map;
import java.util.Objects;
import java.util.function.UnaryOperator;

/** An agent in Python that is installed with the server. Each method returns an agent with one more setting. */
@CheckReturnValue
public final class PythonAgent implements Agent {
    private final io.github.rollserve.v1.PythonAgent wire;

    /**
     * Creates an agent without arguments and parameters.
     *
     * @param name the name of an entry point of the group {@code rollserve.agents}
     */
    public PythonAgent(String name) {
        this(io.github.rollserve.v1.PythonAgent.newBuilder()
            .setName(Objects.requireNonNull(name, "name"))
            .setParameters(io.github.rollserve.v1.Parameters.getDefaultInstance())
            .build());
    }

    private PythonAgent(io.github.rollserve.v1.PythonAgent wire) {
        this.wire = wire;
    }

    private PythonAgent with(UnaryOperator<io.github.rollserve.v1.PythonAgent.Builder> change) {
        return new PythonAgent(change.apply(wire.toBuilder()).build());
    }

    /**
     * Sets the keyword arguments of its factory.
     *
     * @param kwargs the arguments by name: values that JSON can hold
     * @return the agent
     */
    public PythonAgent withKwargs(Map<String, ?> kwargs) {
        return with(builder -> builder.setKwargsJson(Json.object("kwargs", kwargs)));
    }

    /**
     * Sets its parameters.
     *
     * @param parameters the parameters; none by default
     * @return the agent
     */
    public PythonAgent withParameters(Parameters parameters) {
        return with(builder -> builder.setParameters(AgentMessages.of(parameters)));
    }

    /**
     * Sets an action mask, which the policy gets if it asks for it.
     *
     * @param mask the source of the mask; none by default
     * @return the agent
     */
    public PythonAgent withActionMask(ActionMask mask) {
        return with(builder -> builder.setActionMask(AgentMessages.of(mask)));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PythonAgent agent && wire.equals(agent.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    io.github.rollserve.v1.PythonAgent toWire() {
        return wire;
    }
}
