package io.github.rollserve;

/**
 * An agent's part in the T environment steps of a batch. Where the agent did not act, all but {@code acted} is 0.
 *
 * @param acted (T), whether the agent acted in the step
 * @param observations (T, *O), its observations before the step
 * @param actions (T, *A), its actions
 * @param rewards (T) float64, the rewards of its actions: the sums of what it got until it acted again
 * @param terminated (T), whether its life was terminated after the action
 * @param truncated (T), whether its life was truncated after the action
 * @param policyVersions (T), the versions of the policies that acted
 */
public record AgentSteps(
    boolean[] acted,
    Columns observations,
    Columns actions,
    Tensor rewards,
    boolean[] terminated,
    boolean[] truncated,
    long[] policyVersions) {
    @Override
    public boolean equals(Object other) {
        return Records.equal(this, other);
    }

    @Override
    public int hashCode() {
        return Records.hash(this);
    }
}
