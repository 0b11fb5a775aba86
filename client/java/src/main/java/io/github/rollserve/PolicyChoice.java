package io.github.rollserve;

import java.util.Objects;

/**
 * A version of a policy that may act, with its weight among the choices of a rule of a {@link PolicyMap}.
 *
 * @param policy the name of the policy
 * @param version 0 for the policy's current version, -k for the k-th version before it or the oldest one that is held,
 *     or the number of a version
 * @param weight a number from 0; the chance of the choice is its part of the sum of the rule's weights, and with 0 the
 *     choice is held for evaluations and never acts
 */
public record PolicyChoice(String policy, long version, double weight) {
    /**
     * Chooses a version of a policy.
     *
     * @param policy the name of the policy
     * @param version 0 for the policy's current version, -k for the k-th version before it or the oldest one that is
     *     held, or the number of a version
     * @param weight a number from 0
     */
    public PolicyChoice {
        Objects.requireNonNull(policy, "policy");
    }

    /**
     * Chooses a version of a policy, with weight 1.
     *
     * @param policy the name of the policy
     * @param version 0 for the policy's current version, -k for the k-th version before it or the oldest one that is
     *     held, or the number of a version
     */
    public PolicyChoice(String policy, long version) {
        this(policy, version, 1);
    }

    /**
     * Chooses the current version of a policy, with weight 1.
     *
     * @param policy the name of the policy
     */
    public PolicyChoice(String policy) {
        this(policy, 0, 1);
    }
}
