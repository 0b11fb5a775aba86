import io.github.rollserve.EnvUpdated;
import io.github.rollserve.EpisodeBatch;
import io.github.rollserve.Evaluation;
import io.github.rollserve.FragmentOptions;
import io.github.rollserve.MultiAgentBatch;
import io.github.rollserve.PolicyMap;
import io.github.rollserve.SampleStream;
import io.github.rollserve.Sampler;
import io.github.rollserve.SamplerStatus;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Supplier;
import java.util.function.ToIntFunction;

/** The operations of a case, which a client performs one after the other. */
final class Operations {
    private final Sampler sampler;
    private final List<String> warnings;
    private boolean hasManyAgents; // in the environment that the last update has made

    /**
     * Starts a case.
     *
     * @param sampler the client
     * @param warnings what its listener has got
     */
    Operations(Sampler sampler, List<String> warnings) {
        this.sampler = sampler;
        this.warnings = warnings;
    }

    Map<String, ?> perform(Fields operation) {
        Fields options = operation.fields("options");
        return switch (operation.text("do")) {
            case "update_env" -> environment(sampler.updateEnv(Requests.env(operation)));
            case "change_env" -> environment(sampler.updateEnv(Requests.envChange(operation)));
            case "update_env_per_worker" ->
                environment(sampler.updateEnvPerWorker(operation.optionals("updates", Requests::envUpdate)));
            case "call_environments" -> Collections.singletonMap("values", values(operation));
            case "update_agent" -> Map.of("policy_version", operation.flag("skip_if_identical")
                ? sampler.updateAgentIfDifferent(Requests.agentUpdate(operation))
                : sampler.updateAgent(Requests.agentUpdate(operation)));
            case "change_agent" ->
                Map.of("policy_version", sampler.updateAgent(Requests.agentChange(operation)));
            case "update_policies" ->
                Map.of("policy_version", sampler.updateAgent(PolicyRequests.policies(operation)));
            case "update_agent_per_worker" -> Map.of("policy_version",
                sampler.updateAgentPerWorker(operation.optionals("updates", Requests::agentUpdate)));
            case "obtain_samples" -> batch(
                operation,
                () -> sampler.obtainSamples(operation.integer("num_steps"), Requests.sampling(options)),
                () -> sampler.multiAgent().obtainSamples(operation.integer("num_steps"), Requests.sampling(options)));
            case "obtain_exact_episodes" -> {
                long numEpisodes = operation.integer("num_episodes_per_worker");
                yield batch(
                    operation,
                    () -> sampler.obtainExactEpisodes(numEpisodes, Requests.sampling(options)),
                    () -> sampler.multiAgent().obtainExactEpisodes(numEpisodes, Requests.sampling(options)));
            }
            case "obtain_fragments" -> batch(
                operation,
                () -> sampler.obtainFragments(operation.integer("num_steps"), fragments(operation, options)),
                () -> sampler.multiAgent().obtainFragments(
                    operation.integer("num_steps"), fragments(operation, options)));
            case "stream_samples" -> hasManyAgents
                ? stream(operation, MultiAgentBatch::numSteps, () -> sampler.multiAgent().streamSamples(
                    operation.integer("num_steps"), Requests.sampling(options)))
                : stream(operation, EpisodeBatch::numSteps, () -> sampler.streamSamples(
                    operation.integer("num_steps"), Requests.sampling(options)));
            case "drive" -> Sessions.drive(sampler, operation);
            case "evaluate" -> evaluation(sampler.evaluate(
                (int) operation.integer("num_episodes"),
                Requests.evaluation(options).withPolicyMaps(operation.elements("policy_maps").stream()
                    .map(rules -> PolicyRequests.map((List<?>) rules)).toArray(PolicyMap[]::new))));
            case "status" -> status(sampler.status());
            case "warnings" -> Map.of("warnings", warnings);
            default -> Map.of("unsupported", "no such operation");
        };
    }

    private List<Object> values(Fields operation) {
        String method = operation.text("method");
        Object[] arguments = operation.elements("arguments").toArray();
        return operation.has("environment_version")
            ? sampler.callEnvironments(operation.integer("environment_version"), method, arguments)
            : sampler.callEnvironments(method, arguments);
    }

    private Map<String, ?> environment(EnvUpdated updated) {
        hasManyAgents = !updated.agents().isEmpty();
        return Map.of("environment_version", updated.envVersion());
    }

    private static FragmentOptions fragments(Fields operation, Fields options) {
        FragmentOptions fragments = new FragmentOptions(Requests.sampling(options));
        fragments = operation.set(fragments, "row_step_count", (set, field) ->
            set.withRowStepCount(operation.integer(field)));
        return operation.set(fragments, "soft_horizon", (set, field) -> set.withSoftHorizon(operation.flag(field)));
    }

    private static <B> Map<String, ?> stream(
        Fields operation, ToIntFunction<B> numStepsOf, Supplier<SampleStream<B>> call) {
        long stopAfter = operation.has("stop_after") ? operation.integer("stop_after") : Long.MAX_VALUE;
        long numBatches = 0;
        long numSteps = 0;
        Map<String, Object> result = new LinkedHashMap<>();
        try (SampleStream<B> stream = call.get()) {
            for (B part : stream) {
                numBatches++;
                numSteps += numStepsOf.applyAsInt(part);
                if (numBatches == stopAfter) {
                    break;
                }
            }
            if (operation.flag("progress")) {
                result.put("progress", Map.of(
                    "num_simulated_steps", stream.numSimulatedSteps(),
                    "num_ended_episodes", stream.numEndedEpisodes()));
            }
        }
        result.put("num_batches", numBatches);
        result.put("num_steps", numSteps);
        return result;
    }

    /** Returns the description of a batch, of one agent or of many, and the time that its call takes. */
    private Map<String, ?> batch(
        Fields operation, Supplier<EpisodeBatch> call, Supplier<MultiAgentBatch> callForMany) {
        long began = System.nanoTime();
        Map<String, Object> result = new LinkedHashMap<>();
        if (hasManyAgents) {
            MultiAgentBatch batch = callForMany.get();
            result.put("seconds", (System.nanoTime() - began) / 1e9);
            result.put("multi_agent_batch", Description.of(batch));
            result.putAll(Description.views(batch, operation.texts("views")));
        } else {
            EpisodeBatch batch = call.get();
            result.put("seconds", (System.nanoTime() - began) / 1e9);
            result.put("batch", Description.of(batch));
        }
        return result;
    }

    private static Map<String, ?> evaluation(Evaluation evaluation) {
        Map<String, Object> result = new LinkedHashMap<>();
        result.put("returns", evaluation.returns());
        result.put("lengths", evaluation.lengths());
        evaluation.agentReturns().ifPresent(returns -> result.put("agent_returns", Description.of(returns)));
        return result;
    }

    private static Map<String, ?> status(SamplerStatus status) {
        return Map.of(
            "policy_version", status.policyVersion(),
            "environment_version", status.envVersion(),
            "num_workers", status.numWorkers());
    }
}
