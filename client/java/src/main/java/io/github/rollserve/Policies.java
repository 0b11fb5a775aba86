package io.github.rollserve;

import io.github.rollserve.v1.PolicyUpdates;
import java.util.Map;
import java.util.Objects;

/**
 * Policies by name, for an environment with many agents; or updates of some present policies.
 *
 * <p>Policies that are left out stay as they are, with their versions, as long as the map names them:
 *
 * <pre>{@code
 * PolicyMap map = new PolicyMap().withAgent("player_0", "main").withAgent("player_1", "other");
 * sampler.updateAgent(new Policies(Map.of("main", agent, "other", new RandomAgent())).withPolicyMap(map));
 * sampler.updateAgent(new Policies(Map.of("main", agent.parameters()))); // later, parameters alone
 * }</pre>
 */
@CheckReturnValue
public final class Policies implements AgentUpdate {
    private final PolicyUpdates wire;

    /**
     * Updates policies, and keeps the map. At first, a policy acts for the agent of its name and for agents whose names
     * are its name, {@code _} and more, and a single policy for all.
     *
     * @param updates a whole agent, parameters or a change of settings for each new or changed policy, by its name
     */
    public Policies(Map<String, ? extends PolicyUpdate> updates) {
        this(start(updates));
    }

    private Policies(PolicyUpdates wire) {
        this.wire = wire;
    }

    private static PolicyUpdates start(Map<String, ? extends PolicyUpdate> updates) {
        PolicyUpdates.Builder message = PolicyUpdates.newBuilder();
        Arguments.<PolicyUpdate>map("updates", updates)
            .forEach((name, policy) -> message.putPolicies(name, AgentMessages.of(policy)));
        return message.build();
    }

    /**
     * Replaces the map.
     *
     * @param policyMap which policy acts for which agent
     * @return the policies
     */
    public Policies withPolicyMap(PolicyMap policyMap) {
        return new Policies(
            wire.toBuilder().setPolicyMap(Objects.requireNonNull(policyMap, "policyMap").toWire()).build());
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof Policies policies && wire.equals(policies.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    PolicyUpdates toWire() {
        return wire;
    }
}
