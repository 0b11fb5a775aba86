import io.github.rollserve.Account;
import io.github.rollserve.AgentReturns;
import io.github.rollserve.AgentSteps;
import io.github.rollserve.Columns;
import io.github.rollserve.EpisodeBatch;
import io.github.rollserve.Evaluation;
import io.github.rollserve.MultiAgentBatch;
import io.github.rollserve.PolicyBatch;
import io.github.rollserve.Tensor;
import java.nio.ByteBuffer;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.HexFormat;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The descriptions of batches: headers, and digests of columns. */
final class Description {
    private Description() {}

    static Map<String, Object> of(EpisodeBatch batch) {
        Map<String, Object> description = new LinkedHashMap<>();
        description.put("episode_indices", batch.episodeIndices());
        description.put("first_steps", batch.firstSteps());
        description.put("lengths", batch.lengths());
        description.put("terminated", batch.terminated());
        description.put("truncated", batch.truncated());
        description.put("policy_versions", batch.policyVersions());
        description.put("env_seeds", Arrays.stream(batch.envSeeds()).mapToLong(Integer::toUnsignedLong).toArray());
        description.put("returns", batch.returns());
        description.put("observations", leaves(batch.observations()));
        description.put("last_observations", leaves(batch.lastObservations()));
        description.put("actions", leaves(batch.actions()));
        description.put("rewards", leaves(Columns.plain(batch.rewards())));
        description.put("agent_infos", infos(batch.agentInfos()));
        description.put("env_infos", infos(batch.envInfos()));
        description.put("episode_infos", infos(batch.episodeInfos()));
        description.put("initial_states", infos(batch.initialStates()));
        description.put("last_states", infos(batch.lastStates()));
        description.put("environment_actions", leaves(batch.envActions()));
        batch.rawRewards().ifPresent(raw -> description.put("raw_rewards", leaves(Columns.plain(raw))));
        batch.lastValues().ifPresent(values -> description.put("last_values", leaves(Columns.plain(values))));
        description.put("returns_before", sums(batch.returnsBefore()));
        batch.account().ifPresent(account -> description.put("account", of(account)));
        return description;
    }

    static Map<String, ?> of(MultiAgentBatch batch) {
        Map<String, Object> description = new LinkedHashMap<>();
        description.put("agents", batch.agents());
        description.put("episode_indices", batch.episodeIndices());
        description.put("first_steps", batch.firstSteps());
        description.put("lengths", batch.lengths());
        description.put("terminated", batch.terminated());
        description.put("truncated", batch.truncated());
        description.put("agent_step_counts", batch.agentStepCounts());
        batch.globalStates().ifPresent(states -> description.put("global_states", of(states)));
        batch.lastGlobalStates().ifPresent(states -> description.put("last_global_states", of(states)));
        Map<String, Map<String, Object>> policies = new LinkedHashMap<>();
        for (PolicyBatch policy : batch.policies()) {
            Map<String, Object> described = of(policy.batch());
            described.put("agents", Arrays.stream(policy.agentPositions()).mapToObj(batch.agents()::get).toList());
            described.put("env_steps", policy.envSteps());
            described.put("rewards_before", policy.rewardsBefore());
            policies.put(policy.policy(), described);
        }
        description.put("policies", policies);
        batch.account().ifPresent(account -> description.put("account", of(account)));
        return description;
    }

    /** Returns the views of a batch that are asked for. */
    static Map<String, ?> views(MultiAgentBatch batch, List<String> views) {
        Map<String, Object> described = new LinkedHashMap<>();
        if (views.contains("by_agent")) {
            Map<String, Object> batches = new LinkedHashMap<>();
            batch.byAgent().forEach((agent, lives) -> batches.put(agent, of(lives)));
            described.put("by_agent", batches);
        }
        if (views.contains("joint")) {
            Map<String, Object> steps = new LinkedHashMap<>();
            batch.joint().forEach((agent, each) -> steps.put(agent, of(each)));
            described.put("joint", steps);
        }
        return described;
    }

    private static Map<String, ?> of(AgentSteps steps) {
        return Map.of(
            "acted", leaves(Columns.plain(Tensor.of(steps.acted()))),
            "observations", leaves(steps.observations()),
            "actions", leaves(steps.actions()),
            "rewards", leaves(Columns.plain(steps.rewards())),
            "terminated", leaves(Columns.plain(Tensor.of(steps.terminated()))),
            "truncated", leaves(Columns.plain(Tensor.of(steps.truncated()))),
            "policy_versions", leaves(Columns.plain(Tensor.of(steps.policyVersions()))));
    }

    static Map<String, ?> of(AgentReturns returns) {
        return Map.of(
            "agents", returns.agents(),
            "policies", returns.policies().stream().map(Object::toString).toList(),
            "returns", sums(Arrays.stream(returns.returns()).flatMapToDouble(Arrays::stream).toArray()),
            "policy_positions", Arrays.stream(returns.policyPositions()).flatMapToInt(Arrays::stream).toArray(),
            "by_agent", means(returns.byAgent()),
            "by_policy", means(returns.byPolicy()));
    }

    private static Map<String, Double> means(Map<?, Evaluation.Summary> summaries) {
        Map<String, Double> means = new LinkedHashMap<>();
        summaries.forEach((key, summary) -> means.put(key.toString(), summary.mean()));
        return means;
    }

    /** Returns numbers, with null for NaN, which JSON does not have. */
    private static List<Double> sums(double[] sums) {
        List<Double> described = new ArrayList<>();
        for (double sum : sums) {
            described.add(Double.isNaN(sum) ? null : sum);
        }
        return described;
    }

    static Map<String, ?> of(Account account) {
        return Map.of(
            "num_steps", account.numSteps(),
            "num_episodes", account.numEpisodes(),
            "num_resumptions", account.numResumptions(),
            "num_non_finite_steps", account.numNonFiniteSteps(),
            "dropped_infos", account.droppedInfos(),
            "seed", Long.toUnsignedString(account.seed()));
    }

    static Map<String, Map<String, Object>> leaves(Columns columns) {
        Map<String, Map<String, Object>> described = new LinkedHashMap<>();
        columns.tensors().forEach((name, tensor) -> described.put(name, of(tensor)));
        return described;
    }

    /** Describes columns that can have gaps: a mask belongs to the description of its column. */
    static Map<String, Map<String, Object>> infos(Columns columns) {
        Map<String, Map<String, Object>> described = leaves(columns);
        columns.tensors().keySet().forEach(name -> columns.mask(name).ifPresent(mask -> {
            described.get(name).put("mask", digest(Tensor.of(mask).bytes()));
            described.remove("_" + name);
        }));
        return described;
    }

    private static Map<String, Object> of(Tensor tensor) {
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("dtype", tensor.dataType().toString());
        described.put("shape", tensor.shape());
        described.put("sha256", digest(tensor.bytes()));
        return described;
    }

    private static String digest(ByteBuffer bytes) {
        try {
            MessageDigest digest = MessageDigest.getInstance("SHA-256");
            digest.update(bytes);
            return HexFormat.of().formatHex(digest.digest());
        } catch (NoSuchAlgorithmException missing) {
            throw new IllegalStateException(missing); // every Java has SHA-256
        }
    }
}
