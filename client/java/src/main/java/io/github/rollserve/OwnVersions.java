package io.github.rollserve;

import io.github.rollserve.v1.CallEnvironmentsRequest;
import io.github.rollserve.v1.UpdateAgentRequest;
import io.github.rollserve.v1.UpdateEnvRequest;
import java.util.UUID;

/**
 * The versions of the agent and the environment that a client has set itself, and expects in its calls.
 *
 * <p>The server knows the updates of a client by the client's id. So a call that waits while the same client updates
 * the sampler samples with the new version, and only updates of other clients make it fail.
 */
final class OwnVersions {
    private final String clientId; // empty for a client that samples with whatever other clients set
    private Long policy; // null before the first one, as the next two
    private Long env;
    private Long agentEnv; // the version of the environments that the last agent was checked against

    OwnVersions(boolean shared) {
        clientId = shared ? "" : UUID.randomUUID().toString();
    }

    /** Records an accepted update of the agent. */
    synchronized void setAgent(long policyVersion, long envVersion) {
        policy = policyVersion;
        agentEnv = envVersion;
    }

    /** Records an accepted update of the environments. */
    synchronized void setEnv(long envVersion) {
        env = envVersion;
    }

    /**
     * Makes a call fail if other clients have set what it would sample with. Versions that the options name, or expect
     * themselves, stay as they are.
     */
    synchronized void expectIn(io.github.rollserve.v1.SamplingOptions.Builder options) {
        boolean expectsPolicy = options.hasExpectedPolicyVersion();
        boolean expectsEnv = options.hasExpectedEnvironmentVersion();
        if (clientId.isEmpty()) {
            return;
        }
        if (!expectsPolicy && !expectsEnv) { // with an id, the numbers that the caller gave would not count
            options.setClientId(clientId);
        }
        boolean bringsAgent = options.getAgentUpdate().hasAgent();
        if (policy != null && !expectsPolicy && !options.hasPolicyVersion() && !bringsAgent) {
            options.setExpectedPolicyVersion(policy);
        }
        // A whole agent is checked against whatever environment is there.
        Long expected = env == null && !bringsAgent ? agentEnv : env;
        if (expected != null && !expectsEnv && !options.hasEnvironmentVersion()) {
            options.setExpectedEnvironmentVersion(expected);
        }
    }

    /** Does the same for an evaluation. */
    synchronized void expectIn(io.github.rollserve.v1.EvaluationOptions.Builder options) {
        boolean expectsPolicy = options.hasExpectedPolicyVersion();
        boolean expectsEnv = options.hasExpectedEnvironmentVersion();
        if (clientId.isEmpty()) {
            return;
        }
        if (!expectsPolicy && !expectsEnv) {
            options.setClientId(clientId);
        }
        if (policy != null && !expectsPolicy && !options.hasPolicyVersion()) {
            options.setExpectedPolicyVersion(policy);
        }
        Long expected = env == null ? agentEnv : env;
        boolean namesEnv = options.hasEnvironment() || options.hasEnvironmentVersion();
        if (expected != null && !expectsEnv && !namesEnv) {
            options.setExpectedEnvironmentVersion(expected);
        }
    }

    /** Makes an update fail if its agent has to fit other clients' environments, or keeps or changes their agents. */
    synchronized void expectIn(UpdateAgentRequest.Builder request) {
        request.setClientId(clientId);
        if (!clientId.isEmpty() && env != null) {
            request.setExpectedEnvironmentVersion(env);
        }
        boolean keepsAny = request.hasAllWorkers()
            ? !request.getAllWorkers().hasAgent()
            : request.getPerWorker().getUpdatesList().stream().anyMatch(update -> !update.hasAgent());
        if (!clientId.isEmpty() && policy != null && keepsAny) {
            request.setExpectedPolicyVersion(policy);
        }
    }

    /** Makes an update fail if it would change other clients' environments. */
    synchronized void expectIn(UpdateEnvRequest.Builder request) {
        request.setClientId(clientId);
        boolean keepsAny = request.hasAllWorkers()
            ? EnvMessages.keepsAny(request.getAllWorkers())
            : request.getPerWorker().getUpdatesList().stream().anyMatch(EnvMessages::keepsAny);
        if (!clientId.isEmpty() && env != null && keepsAny) {
            request.setExpectedEnvironmentVersion(env);
        }
    }

    /** Makes a call of environments fail if other clients have set them, unless it names their version. */
    synchronized void expectIn(CallEnvironmentsRequest.Builder request) {
        request.setClientId(clientId);
        if (!clientId.isEmpty() && env != null && !request.hasEnvironmentVersion()) {
            request.setExpectedEnvironmentVersion(env);
        }
    }
}
