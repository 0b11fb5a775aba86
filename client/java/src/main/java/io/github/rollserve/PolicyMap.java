package io.github.rollserve;

import io.github.rollserve.v1.PolicyRule;
import java.util.Objects;
import java.util.function.Consumer;

/**
 * A map from the agents of an environment to policies: rules, each for an agent's name, its position, or a prefix of
 * names. Each method returns a map with one more rule.
 *
 * <p>Where several rules match an agent, its name comes before its position, and that before the longest prefix. Of
 * several choices of a rule, one is drawn for each episode from the episode's own random numbers, for all agents of the
 * rule together:
 *
 * <pre>{@code
 * PolicyMap map = new PolicyMap()
 *     .withAgent("player_0", "main")
 *     .withPrefix("player_", new PolicyChoice("main", 0, 0.8), new PolicyChoice("main", -1, 0.2));
 * }</pre>
 */
@CheckReturnValue
public final class PolicyMap {
    private final io.github.rollserve.v1.PolicyMap wire;

    /** Creates a map without rules. */
    public PolicyMap() {
        this(io.github.rollserve.v1.PolicyMap.getDefaultInstance());
    }

    private PolicyMap(io.github.rollserve.v1.PolicyMap wire) {
        this.wire = wire;
    }

    private PolicyMap with(Consumer<PolicyRule.Builder> setAgents, PolicyChoice... choices) {
        PolicyRule.Builder rule = PolicyRule.newBuilder();
        setAgents.accept(rule);
        for (PolicyChoice choice : Arguments.list("choices", choices)) {
            rule.addChoicesBuilder()
                .setPolicy(choice.policy())
                .setVersion(choice.version())
                .setWeight(choice.weight());
        }
        return new PolicyMap(wire.toBuilder().addRules(rule).build());
    }

    /**
     * Adds a rule for an agent.
     *
     * @param name the agent's name
     * @param choices what may act for it
     * @return the map
     */
    public PolicyMap withAgent(String name, PolicyChoice... choices) {
        return with(rule -> rule.setName(Objects.requireNonNull(name, "name")), choices);
    }

    /**
     * Adds a rule for an agent; see {@link #withAgent(String, PolicyChoice...)}.
     *
     * @param name the agent's name
     * @param policy the name of the policy whose current version acts for it
     * @return the map
     */
    public PolicyMap withAgent(String name, String policy) {
        return withAgent(name, new PolicyChoice(policy));
    }

    /**
     * Adds a rule for the agents whose names begin alike.
     *
     * @param prefix what their names begin with; empty for all agents
     * @param choices what may act for them
     * @return the map
     */
    public PolicyMap withPrefix(String prefix, PolicyChoice... choices) {
        return with(rule -> rule.setPrefix(Objects.requireNonNull(prefix, "prefix")), choices);
    }

    /**
     * Adds a rule for the agents whose names begin alike; see {@link #withPrefix(String, PolicyChoice...)}.
     *
     * @param prefix what their names begin with; empty for all agents
     * @param policy the name of the policy whose current version acts for them
     * @return the map
     */
    public PolicyMap withPrefix(String prefix, String policy) {
        return withPrefix(prefix, new PolicyChoice(policy));
    }

    /**
     * Adds a rule for the agent at a position among the environment's possible agents.
     *
     * @param position the position, from 0
     * @param choices what may act for it
     * @return the map
     * @throws InvalidArgumentException if the position is negative
     */
    public PolicyMap withPosition(int position, PolicyChoice... choices) {
        if (position < 0) {
            throw Errors.invalid("position", "at least 0", position);
        }
        return with(rule -> rule.setPosition(position), choices);
    }

    /**
     * Adds a rule for the agent at a position; see {@link #withPosition(int, PolicyChoice...)}.
     *
     * @param position the position, from 0
     * @param policy the name of the policy whose current version acts for it
     * @return the map
     */
    public PolicyMap withPosition(int position, String policy) {
        return withPosition(position, new PolicyChoice(policy));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof PolicyMap map && wire.equals(map.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    io.github.rollserve.v1.PolicyMap toWire() {
        return wire;
    }
}
