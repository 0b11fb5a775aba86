package io.github.rollserve;

import java.util.Arrays;
import java.util.HashSet;
import java.util.List;

/** Reads the batches of environments with many agents, as {@link BatchDecoder} reads the others. */
final class MultiAgentDecoder {
    private MultiAgentDecoder() {}

    /**
     * Reads a batch.
     *
     * @param message the message
     * @return the batch
     * @throws ServerException if the message violates the wire contract
     */
    static MultiAgentBatch decode(io.github.rollserve.v1.MultiAgentBatch message) {
        List<String> agents = List.copyOf(message.getAgentsList());
        if (new HashSet<>(agents).size() != agents.size()) {
            throw Errors.malformed("agents", "unique names", Columns.quoted(agents));
        }
        EpisodeParts parts = parts(message);
        List<PolicyBatch> policies =
            message.getPoliciesList().stream().map(policy -> policy(policy, agents.size())).toList();
        if (message.hasGlobalStates() != message.hasLastGlobalStates()) {
            throw Errors.malformed("last_global_states", "states beside global_states", "none of one of both");
        }
        boolean hasStates = message.hasGlobalStates();
        return new MultiAgentBatch(
            agents,
            parts,
            policies,
            hasStates ? states("global_states", message.getGlobalStates(), parts.numSteps()) : null,
            hasStates ? states("last_global_states", message.getLastGlobalStates(), parts.size()) : null,
            null);
    }

    private static EpisodeParts parts(io.github.rollserve.v1.MultiAgentBatch message) {
        int size = message.getLengthsCount();
        if (size == 0) {
            throw Errors.malformed("lengths", "at least one episode", "none");
        }
        BatchDecoder.check("episode_indices", message.getEpisodeIndicesList(), size);
        BatchDecoder.check("first_steps", message.getFirstStepsList(), size);
        BatchDecoder.check("terminated", message.getTerminatedList(), size);
        BatchDecoder.check("truncated", message.getTruncatedList(), size);
        BatchDecoder.check("agent_step_counts", message.getAgentStepCountsList(), size);
        int[] lengths = BatchDecoder.lengths(message.getLengthsList());
        long numSteps = Arrays.stream(lengths).asLongStream().sum();
        if (numSteps > Integer.MAX_VALUE) {
            throw Errors.malformed("lengths", "fewer than 2^31 steps in all", numSteps);
        }
        return new EpisodeParts(
            BatchDecoder.longs(message.getEpisodeIndicesList()),
            BatchDecoder.longs(message.getFirstStepsList()),
            lengths,
            BatchDecoder.booleans(message.getTerminatedList()),
            BatchDecoder.booleans(message.getTruncatedList()),
            unsigned(message.getAgentStepCountsList()));
    }

    private static PolicyBatch policy(io.github.rollserve.v1.PolicyBatch message, int numAgents) {
        EpisodeBatch batch = BatchDecoder.decode(message.getBatch(), 0);
        String field = "policies['" + message.getPolicy() + "']";
        BatchDecoder.check(field + ".agent_positions", message.getAgentPositionsList(), batch.numSegments());
        BatchDecoder.check(field + ".environment_steps", message.getEnvironmentStepsList(), batch.numSteps());
        double[] rewardsBefore = new double[batch.numSegments()];
        if (message.getRewardsBeforeCount() > 0) {
            BatchDecoder.check(field + ".rewards_before", message.getRewardsBeforeList(), batch.numSegments());
            Arrays.setAll(rewardsBefore, message::getRewardsBefore);
        }
        if (message.getBatch().getReturnsBeforeCount() == 0) { // otherwise they have the rewards before
            Arrays.setAll(batch.returnsBefore(), i -> batch.returnsBefore()[i] + rewardsBefore[i]);
        }
        long[] agents = unsigned(message.getAgentPositionsList());
        for (long agent : agents) {
            if (agent >= numAgents) {
                throw Errors.malformed(field + ".agent_positions", "positions among " + numAgents + " agents", agent);
            }
        }
        return new PolicyBatch(
            message.getPolicy(),
            batch,
            Arrays.stream(agents).mapToInt(agent -> (int) agent).toArray(),
            unsigned(message.getEnvironmentStepsList()),
            rewardsBefore);
    }

    private static long[] unsigned(List<Integer> values) {
        return values.stream().mapToLong(Integer::toUnsignedLong).toArray();
    }

    private static Tensor states(String field, io.github.rollserve.v1.Tensor message, int numRows) {
        Tensor states = Tensors.column(field, message);
        if (states.numAxes() == 0 || states.numRows() != numRows) {
            throw Errors.malformed(field, numRows + " states", states);
        }
        return states;
    }
}
