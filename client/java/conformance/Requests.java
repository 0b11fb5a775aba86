import io.github.rollserve.ActionMask;
import io.github.rollserve.Agent;
import io.github.rollserve.AgentChange;
import io.github.rollserve.AgentUpdate;
import io.github.rollserve.Columns;
import io.github.rollserve.ConstantAgent;
import io.github.rollserve.DataType;
import io.github.rollserve.EnvChange;
import io.github.rollserve.EnvSpec;
import io.github.rollserve.EnvUpdate;
import io.github.rollserve.EvaluationOptions;
import io.github.rollserve.Exploration;
import io.github.rollserve.MlpAgent;
import io.github.rollserve.MultiAgentApi;
import io.github.rollserve.OnnxAgent;
import io.github.rollserve.Parameters;
import io.github.rollserve.PolicyUpdate;
import io.github.rollserve.PythonAgent;
import io.github.rollserve.RandomAgent;
import io.github.rollserve.SamplingOptions;
import io.github.rollserve.Task;
import io.github.rollserve.Tensor;
import io.github.rollserve.Transform;
import io.github.rollserve.Vectorization;
import io.github.rollserve.Wrapper;
import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Base64;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.stream.Collectors;

/** The arguments of operations. */
final class Requests {
    private static final Set<String> OPERATION_FIELDS = Set.of(
        "do", "id", "kwargs", "wrappers", "task", "reset_options", "vectorization", "num_rows", "agent", "parameters",
        "skip_if_identical", "num_steps", "num_episodes_per_worker", "row_step_count", "soft_horizon", "stop_after",
        "num_episodes", "options", "transforms", "updates", "method", "arguments", "environment_version", "progress",
        "change", "multi_agent", "global_state", "policies", "policy_map", "policy_maps", "views", "fragment_length",
        "agent_infos", "infos", "record", "next_step", "operations", "actions", "min_ready",
        "lease_seconds", "after_seconds");
    private static final Set<String> OPTION_FIELDS = Set.of(
        "seed", "first_episode_index", "max_episode_length", "policy_version", "min_policy_version",
        "environment_version", "expected_num_workers", "deterministic", "return_states", "skip_failed_episodes",
        "plain_frames", "prefetch", "temperatures", "noise_scales", "epsilons", "agent", "parameters", "change",
        "policies", "policy_map", "deliver", "count", "return_last_values", "return_last_states",
        "return_returns_before"); // the last is asked for in all calls
    private static final Set<String> AGENT_FIELDS = Set.of(
        "kind", "action", "layer_sizes", "activation", "head", "parameters", "model", "inputs", "outputs", "infos",
        "name", "kwargs", "action_mask", "normalization_epsilon", "normalization_clip");

    private Requests() {}

    /** Returns the fields of an operation, of its options and of its agents that this adapter does not know. */
    static List<String> unknownFields(Fields operation) {
        Fields options = operation.fields("options");
        List<String> unknown = new ArrayList<>(operation.values().keySet());
        unknown.removeAll(OPERATION_FIELDS);
        Set<String> others = new TreeSet<>(options.values().keySet());
        others.removeAll(OPTION_FIELDS);
        unknown.addAll(others);
        List<Fields> owners = new ArrayList<>(List.of(operation, options));
        operation.optionals("updates", update -> update).forEach(update -> update.ifPresent(owners::add));
        for (Fields policies : List.of(operation.fields("policies"), options.fields("policies"))) {
            policies.values().keySet().forEach(name -> owners.add(policies.fields(name)));
        }
        operation.list("operations").forEach(each -> unknown.addAll(unknownFields(each))); // of a session
        for (Fields owner : owners) {
            others = new TreeSet<>(owner.fields("agent").values().keySet());
            others.removeAll(AGENT_FIELDS);
            unknown.addAll(others);
        }
        return unknown;
    }

    /** Returns the environment of a worker, which has an id, or the change of it. */
    static EnvUpdate envUpdate(Fields operation) {
        return operation.has("id") ? env(operation) : envChange(operation);
    }

    static EnvChange envChange(Fields operation) {
        return new EnvChange().withKwargs(operation.fields("kwargs").values());
    }

    static EnvSpec env(Fields operation) {
        EnvSpec spec = new EnvSpec(operation.text("id")).withKwargs(operation.fields("kwargs").values());
        spec = spec.withWrappers(operation.list("wrappers").stream()
            .map(wrapper -> new Wrapper(wrapper.text("name"), wrapper.fields("kwargs").values()))
            .toArray(Wrapper[]::new));
        spec = spec.withTransforms(
            operation.list("transforms").stream().map(Transforms::of).toArray(Transform[]::new));
        spec = operation.set(spec, "task", (set, field) -> {
            Fields task = operation.fields(field);
            return set.withTask(new Task(task.text("method"), task.value("argument")));
        });
        spec = operation.set(spec, "reset_options", (set, field) ->
            set.withResetOptions(operation.fields(field).values()));
        spec = operation.set(spec, "vectorization", (set, field) ->
            set.withVectorization(Vectorization.valueOf(operation.text(field).toUpperCase(Locale.ROOT))));
        spec = operation.set(spec, "multi_agent", (set, field) ->
            set.withMultiAgent(MultiAgentApi.valueOf(operation.text(field).toUpperCase(Locale.ROOT))));
        spec = spec.withGlobalState(operation.flag("global_state"));
        return operation.set(spec, "num_rows", (set, field) -> set.withRows((int) operation.integer(field), 0));
    }

    /** Returns the agent, the change, the parameters or the policies by name that an operation has. */
    static AgentUpdate agentUpdate(Fields operation) {
        return operation.has("policies") ? PolicyRequests.policies(operation) : policyUpdate(operation);
    }

    static PolicyUpdate policyUpdate(Fields operation) {
        if (operation.has("change")) {
            return agentChange(operation.fields("change"));
        }
        return operation.has("agent") ? agent(operation.fields("agent")) : parameters(operation);
    }

    static AgentChange agentChange(Fields change) {
        return new AgentChange(change.fields("kwargs").values(), parameters(change));
    }

    private static ActionMask mask(Fields mask) {
        return mask.has("observation")
            ? new ActionMask.Observation(mask.text("observation"))
            : new ActionMask.Info(mask.text("info"));
    }

    private static MlpAgent.Head head(String name) {
        return switch (name) {
            case "categorical" -> new MlpAgent.Categorical();
            case "multi_categorical" -> new MlpAgent.MultiCategorical();
            case "diagonal_gaussian" -> new MlpAgent.DiagonalGaussian();
            default -> throw new UnsupportedOperationException("the head " + name);
        };
    }

    private static Agent agent(Fields agent) {
        return switch (agent.text("kind")) {
            case "random" -> agent.set(new RandomAgent(), "action_mask", (set, field) ->
                set.withActionMask(mask(agent.fields(field))));
            case "constant" -> {
                ConstantAgent constant = new ConstantAgent(new Columns(tensors(agent.fields("action"))));
                yield agent.set(constant, "action_mask", (set, field) ->
                    set.withActionMask(mask(agent.fields(field))));
            }
            case "mlp" -> mlp(agent);
            case "onnx" -> {
                OnnxAgent onnx = new OnnxAgent(
                    Base64.getDecoder().decode(agent.text("model")),
                    OnnxAgent.Head.valueOf(agent.text("head").toUpperCase(Locale.ROOT)))
                    .withInputs(texts(agent.fields("inputs")))
                    .withOutputs(texts(agent.fields("outputs")))
                    .withInfos(agent.texts("infos").toArray(String[]::new));
                yield agent.set(onnx, "action_mask", (set, field) -> set.withActionMask(mask(agent.fields(field))));
            }
            case "python" -> {
                PythonAgent python = new PythonAgent(agent.text("name"))
                    .withKwargs(agent.fields("kwargs").values())
                    .withParameters(parameters(agent));
                yield agent.set(python, "action_mask", (set, field) -> set.withActionMask(mask(agent.fields(field))));
            }
            default -> throw new UnsupportedOperationException("the agent " + agent.text("kind"));
        };
    }

    private static MlpAgent mlp(Fields agent) {
        MlpAgent mlp = new MlpAgent(parameters(agent), head(agent.text("head")))
            .withActivation(MlpAgent.Activation.valueOf(agent.text("activation").toUpperCase(Locale.ROOT)));
        if (agent.has("normalization_epsilon") || agent.has("normalization_clip")) {
            mlp = mlp.withNormalization(
                agent.numberOr("normalization_epsilon", 1e-8), agent.numberOr("normalization_clip", 10));
        }
        return agent.set(mlp, "action_mask", (set, field) -> set.withActionMask(mask(agent.fields(field))));
    }

    private static Parameters parameters(Fields owner) {
        return new Parameters(tensors(owner.fields("parameters")));
    }

    private static Map<String, String> texts(Fields fields) {
        return fields.values().keySet().stream().collect(Collectors.toMap(name -> name, fields::text));
    }

    static Map<String, Tensor> tensors(Fields arrays) {
        Map<String, Tensor> tensors = new TreeMap<>();
        arrays.values().keySet().forEach(name -> tensors.put(name, tensor(arrays.fields(name))));
        return tensors;
    }

    private static Tensor tensor(Fields array) {
        DataType type = DataType.valueOf(array.text("dtype").toUpperCase(Locale.ROOT));
        ByteBuffer bytes = ByteBuffer.wrap(Base64.getDecoder().decode(array.text("base64")));
        int[] shape = shape(array);
        if (shape.length == 0) {
            ByteBuffer number = bytes.order(ByteOrder.LITTLE_ENDIAN);
            return type == DataType.INT64 ? Tensor.scalar(number.getLong()) : Tensor.scalar(number.getDouble());
        }
        return Tensor.of(type, bytes, shape);
    }

    static int[] shape(Fields array) {
        return Arrays.stream(array.numbers("shape")).mapToInt(size -> (int) size).toArray();
    }

    static SamplingOptions sampling(Fields fields) {
        SamplingOptions options = new SamplingOptions();
        if (fields.has("agent") || fields.has("parameters") || fields.has("change") || fields.has("policies")) {
            options = options.withAgent(agentUpdate(fields));
        }
        if (exploration(fields) != null) {
            options = options.withExploration(exploration(fields));
        }
        options = fields.set(options, "seed", (set, field) -> set.withSeed(Long.parseUnsignedLong(fields.text(field))));
        options = fields.set(options, "first_episode_index", (set, field) ->
            set.withFirstEpisodeIndex(fields.integer(field)));
        options = fields.set(options, "max_episode_length", (set, field) ->
            set.withMaxEpisodeLength(fields.integer(field)));
        options = fields.set(options, "policy_version", (set, field) -> set.withPolicyVersion(fields.integer(field)));
        options = fields.set(options, "min_policy_version", (set, field) ->
            set.withMinPolicyVersion(fields.integer(field)));
        options = fields.set(options, "environment_version", (set, field) -> set.withEnvVersion(fields.integer(field)));
        options = fields.set(options, "expected_num_workers", (set, field) ->
            set.withExpectedNumWorkers((int) fields.integer(field)));
        options = fields.set(options, "return_states", (set, field) -> set.withReturnStates(fields.flag(field)));
        options = fields.set(options, "return_last_values", (set, field) ->
            set.withReturnLastValues(fields.flag(field)));
        options = fields.set(options, "return_last_states", (set, field) ->
            set.withReturnLastStates(fields.flag(field)));
        options = fields.set(options, "skip_failed_episodes", (set, field) ->
            set.withSkipFailedEpisodes(fields.flag(field)));
        options = fields.set(options, "plain_frames", (set, field) -> set.withFramesOnce(!fields.flag(field)));
        options = options.withDeliver(fields.texts("deliver").toArray(String[]::new))
            .withCountAgentSteps("agent_steps".equals(fields.text("count")));
        return fields.set(options, "prefetch", (set, field) -> set.withPrefetch(fields.flag(field)));
    }

    static EvaluationOptions evaluation(Fields fields) {
        EvaluationOptions options = new EvaluationOptions();
        if (exploration(fields) != null) {
            options = options.withExploration(exploration(fields));
        }
        options = fields.set(options, "seed", (set, field) -> set.withSeed(Long.parseUnsignedLong(fields.text(field))));
        options = fields.set(options, "first_episode_index", (set, field) ->
            set.withFirstEpisodeIndex(fields.integer(field)));
        options = fields.set(options, "max_episode_length", (set, field) ->
            set.withMaxEpisodeLength(fields.integer(field)));
        options = fields.set(options, "policy_version", (set, field) -> set.withPolicyVersion(fields.integer(field)));
        options = fields.set(options, "min_policy_version", (set, field) ->
            set.withMinPolicyVersion(fields.integer(field)));
        options = fields.set(options, "environment_version", (set, field) -> set.withEnvVersion(fields.integer(field)));
        return fields.set(options, "skip_failed_episodes", (set, field) ->
            set.withSkipFailedEpisodes(fields.flag(field)));
    }

    /** Returns the exploration that options name; null for none. */
    private static Exploration exploration(Fields options) {
        if (options.flag("deterministic")) {
            return Exploration.deterministic();
        } else if (options.has("temperatures")) {
            return Exploration.temperatures(options.numbers("temperatures"));
        } else if (options.has("noise_scales")) {
            return Exploration.noiseScales(options.numbers("noise_scales"));
        }
        return options.has("epsilons") ? Exploration.epsilons(options.numbers("epsilons")) : null;
    }
}
