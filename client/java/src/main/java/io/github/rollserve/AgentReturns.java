package io.github.rollserve;

import io.github.rollserve.Evaluation.Summary;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.stream.IntStream;

/**
 * What P agents got in the N episodes of an evaluation, and which K policies acted for them.
 *
 * @param agents the names of the environment's possible agents
 * @param policies the versions of policies that acted
 * @param returns (N)(P), the return of each agent in each episode; NaN for an agent that made no step
 * @param policyPositions (N)(P), the position among {@code policies} of what acted for each agent; -1 for an agent that
 *     made no step
 */
public record AgentReturns(
    List<String> agents, List<PolicyVersion> policies, double[][] returns, int[][] policyPositions) {

    /** Says whether an agent's return in an episode counts. */
    private interface Selection {
        boolean has(int episode, int agent);
    }

    /** {@return the summary of the returns of each agent that made a step, over the episodes in which it made one} */
    public Map<String, Summary> byAgent() {
        Map<String, Summary> summaries = new LinkedHashMap<>();
        for (int i = 0; i < agents.size(); i++) {
            int position = i;
            summary((episode, agent) -> agent == position && policyPositions[episode][agent] >= 0)
                .ifPresent(summary -> summaries.put(agents.get(position), summary));
        }
        return summaries;
    }

    /**
     * {@return the summary of each policy's returns; where a policy acts for several agents in an episode, the mean of
     * their returns counts, because they depend on each other}
     */
    public Map<PolicyVersion, Summary> byPolicy() {
        Map<PolicyVersion, Summary> summaries = new LinkedHashMap<>();
        for (int i = 0; i < policies.size(); i++) {
            int position = i;
            summary((episode, agent) -> policyPositions[episode][agent] == position)
                .ifPresent(summary -> summaries.put(policies.get(position), summary));
        }
        return summaries;
    }

    @Override
    public boolean equals(Object other) {
        return Records.equal(this, other);
    }

    @Override
    public int hashCode() {
        return Records.hash(this);
    }

    /** Returns the summary of the episodes' means over selected agents; empty if none is selected. */
    private Optional<Summary> summary(Selection selection) {
        double[] means = IntStream.range(0, returns.length)
            .mapToObj(episode -> IntStream.range(0, agents.size())
                .filter(agent -> selection.has(episode, agent))
                .mapToDouble(agent -> returns[episode][agent])
                .average())
            .flatMapToDouble(mean -> mean.stream())
            .toArray();
        return means.length == 0 ? Optional.empty() : Optional.of(Summary.of(means));
    }

    static AgentReturns from(io.github.rollserve.v1.AgentReturns message) {
        int numAgents = message.getAgentsCount();
        int numPolicies = message.getPoliciesCount();
        int size = message.getReturnsCount();
        if (numAgents == 0 || size % numAgents != 0 || message.getPolicyPositionsCount() != size) {
            String got = size + " and " + message.getPolicyPositionsCount();
            throw Errors.malformed(
                "agent_returns", "as many returns and policies, each for " + numAgents + " agents", got);
        }
        double[][] returns = new double[size / numAgents][numAgents];
        int[][] positions = new int[size / numAgents][numAgents];
        for (int i = 0; i < size; i++) {
            int position = message.getPolicyPositions(i);
            if (position < -1 || position >= numPolicies) {
                throw Errors.malformed("policy_positions", "positions among " + numPolicies + " policies", position);
            }
            returns[i / numAgents][i % numAgents] = message.getReturns(i);
            positions[i / numAgents][i % numAgents] = position;
        }
        List<PolicyVersion> policies = message.getPoliciesList().stream()
            .map(each -> new PolicyVersion(each.getPolicy(), each.getVersion()))
            .toList();
        return new AgentReturns(List.copyOf(message.getAgentsList()), policies, returns, positions);
    }
}
