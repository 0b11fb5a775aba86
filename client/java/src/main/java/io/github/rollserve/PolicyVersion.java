package io.github.rollserve;

/**
 * A version of a policy.
 *
 * @param policy the name of the policy
 * @param version the number of the update of the agent that made it
 */
public record PolicyVersion(String policy, long version) {
    /** {@return the name and the version, such as {@code main@3}} */
    @Override
    public String toString() {
        return policy + "@" + version;
    }
}
