package io.github.rollserve;

import java.util.Arrays;

/**
 * The segments of N lives of agents, with T steps in all, in which a policy acted. A life goes from an agent's first
 * observation in an episode to its end.
 *
 * @param policy the name of the policy
 * @param batch the segments, whose headers are those of the agents' lives, and count the agents' own steps;
 *     {@link EpisodeBatch#policyVersions()} has the versions of this policy
 * @param agentPositions (N), the agent of each segment: its position among the environment's agents
 * @param envSteps (T), the environment step of the episode in which each step was made, from 0; of fragments, it may be
 *     one of an earlier fragment, where what followed was not known
 * @param rewardsBefore (N), the sum of the rewards that the agent got in its life before its first action; 0 for
 *     segments that begin within a life. {@link EpisodeBatch#episodeReturns()} has them, {@link EpisodeBatch#returns()}
 *     has not
 */
public record PolicyBatch(
    String policy, EpisodeBatch batch, int[] agentPositions, long[] envSteps, double[] rewardsBefore) {

    @Override
    public boolean equals(Object other) {
        return Records.equal(this, other);
    }

    @Override
    public int hashCode() {
        return Records.hash(this);
    }

    /** Returns consecutive segments, which share the memory of columns. */
    PolicyBatch segments(int begin, int end) {
        return new PolicyBatch(
            policy,
            batch.segments(begin, end),
            Arrays.copyOfRange(agentPositions, begin, end),
            Arrays.copyOfRange(envSteps, batch.firstRow(begin), batch.firstRow(end)),
            Arrays.copyOfRange(rewardsBefore, begin, end));
    }

    /**
     * Returns a segment without its first steps.
     *
     * @param segment the position of the segment
     * @param numSteps their number, less than the segment has
     */
    PolicyBatch withoutFirstSteps(int segment, int numSteps) {
        PolicyBatch whole = segments(segment, segment + 1);
        if (numSteps == 0) {
            return whole;
        }
        long[] steps = Arrays.copyOfRange(whole.envSteps, numSteps, whole.envSteps.length);
        EpisodeBatch rest = whole.batch.withoutFirstSteps(numSteps);
        return new PolicyBatch(policy, rest, whole.agentPositions, steps, new double[1]);
    }
}
