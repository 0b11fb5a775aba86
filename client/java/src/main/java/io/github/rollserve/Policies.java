package io.github.rollserve;

import java.util.Map;
import java.util.Optional;

/**
 * Policies by name, for an environment with many agents; or updates of some present policies.
 *
 * <p>Policies that are left out stay as they are, with their versions, as long as the map names them:
 *
 * <pre>{@code
 * PolicyMap map = new PolicyMap().withAgent("player_0", "main").withAgent("player_1", "other");
 * sampler.updateAgent(new Policies(Map.of("main", agent, "other", new RandomAgent()), map));
 * sampler.updateAgent(new Policies(Map.of("main", agent.parameters()))); // later, parameters alone
 * }</pre>
 *
 * @param updates a whole agent, parameters or a change of settings for each new or changed policy
 * @param policyMap which policy acts for which agent; empty for the present map. At first, a policy acts for the agent
 *     of its name and for agents whose names are its name, {@code _} and more, and a single policy for all
 */
public record Policies(Map<String, ? extends PolicyUpdate> updates, Optional<PolicyMap> policyMap)
    implements AgentUpdate {
    /**
     * Copies the updates.
     *
     * @param updates the updates by the names of the policies
     * @param policyMap which policy acts for which agent; empty for the present map
     */
    public Policies {
        updates = Map.copyOf(updates);
    }

    /**
     * Updates policies, and replaces the map.
     *
     * @param updates the updates by the names of the policies
     * @param policyMap which policy acts for which agent
     */
    public Policies(Map<String, ? extends PolicyUpdate> updates, PolicyMap policyMap) {
        this(updates, Optional.of(policyMap));
    }

    /**
     * Updates policies, and keeps the map.
     *
     * @param updates the updates by the names of the policies
     */
    public Policies(Map<String, ? extends PolicyUpdate> updates) {
        this(updates, Optional.empty());
    }
}
