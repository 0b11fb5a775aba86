package io.github.rollserve;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * Parts of E episodes of an environment with many agents, or fragments of them, with T environment steps in all.
 *
 * <p>An episode has one segment for each life of each agent: from its first observation to its end. All segments in
 * which a policy acted are one {@link EpisodeBatch}, whose headers are those of the agents' lives, and count the
 * agents' own steps. The arrays of headers belong to the batch: copy them before you change them.
 *
 * <pre>{@code
 * MultiAgentBatch batch = sampler.multiAgent().obtainSamples(10_000);
 * double[] returns = batch.byPolicy().get("main").episodeReturns();
 * }</pre>
 */
public final class MultiAgentBatch {
    private final List<String> agents;
    private final EpisodeParts parts;
    private final List<PolicyBatch> policies;
    private final Tensor globalStates; // null where the environment's is not asked for, as the next one
    private final Tensor lastGlobalStates;
    private final Account account; // null unless this is the whole result of a call

    MultiAgentBatch(
        List<String> agents, EpisodeParts parts, List<PolicyBatch> policies, Tensor globalStates,
        Tensor lastGlobalStates, Account account) {
        this.agents = agents;
        this.parts = parts;
        this.policies = policies;
        this.globalStates = globalStates;
        this.lastGlobalStates = lastGlobalStates;
        this.account = account;
    }

    /** {@return the names of the environment's possible agents} */
    public List<String> agents() {
        return agents;
    }

    /** {@return E, the number of episodes, or of parts of them} */
    public int numEpisodes() {
        return parts.size();
    }

    /** {@return T, the number of environment steps} */
    public int numSteps() {
        return parts.numSteps();
    }

    /** {@return the number of steps of all agents, also of those whose policies are not delivered} */
    public long numAgentSteps() {
        return parts.numAgentSteps();
    }

    /** {@return (E), the indices of the episodes; rising, except for fragments} */
    public long[] episodeIndices() {
        return parts.episodeIndices();
    }

    /** {@return (E), the number of environment steps of each episode before its part here} */
    public long[] firstSteps() {
        return parts.firstSteps();
    }

    /** {@return (E), the number of environment steps of each part, at least 1} */
    public int[] lengths() {
        return parts.lengths();
    }

    /** {@return (E), whether the episode ended with its last step here, and an agent was terminated then} */
    public boolean[] terminated() {
        return parts.terminated();
    }

    /** {@return (E), whether the episode ended with its last step here, and an agent was truncated then} */
    public boolean[] truncated() {
        return parts.truncated();
    }

    /** {@return (E), the number of steps of all agents, also of those whose policies are not delivered} */
    public long[] agentStepCounts() {
        return parts.agentStepCounts();
    }

    /** {@return the policies that acted; the batches of a stream have one element for each version of a policy} */
    public List<PolicyBatch> policies() {
        return policies;
    }

    /** {@return (T, *S), the global state before each environment step, with {@link EnvSpec#globalState()}} */
    public Optional<Tensor> globalStates() {
        return Optional.ofNullable(globalStates);
    }

    /** {@return (E, *S), the global state after the last step of each part, in the same way} */
    public Optional<Tensor> lastGlobalStates() {
        return Optional.ofNullable(lastGlobalStates);
    }

    /** {@return what was simulated, in environment steps, if this is the whole result of a call} */
    public Optional<Account> account() {
        return Optional.ofNullable(account);
    }

    /** {@return the segments in which each policy acted, by its name; in the order of episodes, agents and time} */
    public Map<String, EpisodeBatch> byPolicy() {
        Map<String, EpisodeBatch> batches = new LinkedHashMap<>();
        joined().policies.forEach(part -> batches.put(part.policy(), part.batch()));
        return batches;
    }

    /**
     * Returns the segments of each agent that has some, whatever policies acted. Infos that only some of the policies
     * have are gaps of the others.
     *
     * @return the segments by the agent's name, in the order of episodes and time, in new tensors
     * @throws RollserveException if infos of one name differ in shape between policies, or a column takes 2 GiB
     */
    public Map<String, EpisodeBatch> byAgent() {
        return Segments.byAgent(agents, joined().policies);
    }

    /**
     * Returns the steps of each agent that acted, aligned to the T environment steps of all parts, as the rows of
     * {@link #globalStates()} are. Of fragments, a step is left out whose environment step an earlier batch has;
     * {@link #concatenate(List)} has both.
     *
     * @return the steps by the agent's name, in new tensors
     */
    public Map<String, AgentSteps> joint() {
        return new Alignment(parts).of(agents, policies);
    }

    /**
     * Returns the parts of all batches, in their order; {@link #joined()} makes whole episodes of them.
     *
     * @param batches at least one batch, all of one environment
     * @return the batch of all, without an account
     * @throws RollserveException if the agents differ, or only some of the batches have global states
     */
    public static MultiAgentBatch concatenate(List<MultiAgentBatch> batches) {
        if (Arguments.list("batches", batches).isEmpty()) {
            throw Errors.invalid("batches", "at least one", "none");
        }
        List<String> agents = batches.get(0).agents;
        List<PolicyBatch> policies = new ArrayList<>();
        for (MultiAgentBatch batch : batches) {
            if (!batch.agents.equals(agents)) {
                throw Errors.malformed("agents", Columns.quoted(agents), Columns.quoted(batch.agents));
            }
            policies.addAll(batch.policies);
        }
        return new MultiAgentBatch(
            agents,
            EpisodeParts.concatenate(batches.stream().map(MultiAgentBatch::parts).toList()),
            List.copyOf(policies),
            states("global_states", batches.stream().map(MultiAgentBatch::globalStates).toList()),
            states("last_global_states", batches.stream().map(MultiAgentBatch::lastGlobalStates).toList()),
            null);
    }

    /** Returns the global states of all parts, null if none of them has some. */
    private static Tensor states(String field, List<Optional<Tensor>> parts) {
        List<Tensor> states = parts.stream().flatMap(Optional::stream).toList();
        if (states.isEmpty()) {
            return null;
        }
        if (states.size() < parts.size()) {
            throw Errors.malformed(field, "states in all batches or in none", "some without");
        }
        Tensor first = states.get(0);
        for (Tensor each : states) {
            if (each.dataType() != first.dataType() || !each.hasRowsLike(first)) {
                throw Errors.malformed(field, "rows as in " + first, each);
            }
        }
        return states.size() == 1 ? first : Joining.concatenateTensors(states);
    }

    /**
     * Joins parts of one episode that follow each other, and segments of one policy.
     *
     * @return the batch with one part for each episode, and one element of {@link #policies()} for each policy; this
     *     batch if there is nothing to join
     */
    public MultiAgentBatch joined() {
        Runs runs = Runs.of(parts.size(), parts::followsTheOneBefore);
        if (runs.size() == parts.size() && Segments.areJoined(policies)) {
            return this;
        }
        return new MultiAgentBatch(
            agents,
            parts.merge(runs),
            Segments.joined(policies),
            globalStates,
            lastGlobalStates == null ? null : lastGlobalStates.gather(runs.ends()),
            account);
    }

    /** {@return a description in one line} */
    @Override
    public String toString() {
        return "MultiAgentBatch(%d episodes, %d environment steps, policies %s)".formatted(
            numEpisodes(), numSteps(), Columns.quoted(policies.stream().map(PolicyBatch::policy).distinct().toList()));
    }

    EpisodeParts parts() {
        return parts;
    }

    MultiAgentBatch withAccount(Account changed) {
        return new MultiAgentBatch(agents, parts, policies, globalStates, lastGlobalStates, changed);
    }

    /**
     * Returns the batch without the first environment steps of its first episode.
     *
     * @param numSteps the number of steps, at most as many as the episode has here
     * @param numAgentSteps the number of steps of agents among them
     */
    MultiAgentBatch withoutFirstSteps(int numSteps, long numAgentSteps) {
        if (numSteps > lengths()[0]) {
            throw Errors.malformed("lengths[0]", "at least the " + numSteps + " steps that had come", lengths()[0]);
        }
        List<PolicyBatch> rest = new ArrayList<>();
        for (PolicyBatch part : policies) {
            List<PolicyBatch> kept = new ArrayList<>();
            for (int i = 0; i < part.batch().numSegments(); i++) {
                int dropped = numStepsBefore(firstSteps()[0] + numSteps, part, i);
                if (dropped < part.batch().lengths()[i]) {
                    kept.add(part.withoutFirstSteps(i, dropped));
                }
            }
            if (!kept.isEmpty()) {
                rest.add(Segments.concatenate(part.policy(), kept));
            }
        }
        boolean hasStates = globalStates != null;
        int firstPart = numSteps == lengths()[0] ? 1 : 0;
        return new MultiAgentBatch(
            agents,
            parts.withoutFirstSteps(numSteps, numAgentSteps),
            List.copyOf(rest),
            hasStates ? globalStates.rows(numSteps, globalStates.numRows()) : null,
            hasStates ? lastGlobalStates.rows(firstPart, numEpisodes()) : null,
            account);
    }

    /** Returns the number of steps of a segment that belong to the first episode, before an environment step. */
    private int numStepsBefore(long envStep, PolicyBatch part, int segment) {
        if (part.batch().episodeIndices()[segment] != episodeIndices()[0]) {
            return 0;
        }
        int count = 0;
        for (int row = part.batch().firstRow(segment); row < part.batch().firstRow(segment + 1); row++) {
            count += part.envSteps()[row] < envStep ? 1 : 0;
        }
        return count;
    }
}
