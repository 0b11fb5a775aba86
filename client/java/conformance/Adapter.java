import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.ToNumberPolicy;
import io.github.rollserve.Compression;
import io.github.rollserve.ConnectionOptions;
import io.github.rollserve.EpisodeBatch;
import io.github.rollserve.Evaluation;
import io.github.rollserve.FragmentOptions;
import io.github.rollserve.RollserveException;
import io.github.rollserve.SampleStream;
import io.github.rollserve.Sampler;
import io.github.rollserve.SamplerStatus;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Supplier;

/**
 * Answers the cases of the conformance kit: reads one of them from each line of the standard input, and writes the
 * results, as docs/conformance.md of the server describes them.
 */
final class Adapter {
    private static final Gson GSON = new GsonBuilder()
        .serializeNulls()
        .disableHtmlEscaping()
        .serializeSpecialFloatingPointValues()
        .setObjectToNumberStrategy(ToNumberPolicy.LONG_OR_DOUBLE)
        .create();

    private Adapter() {}

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        PrintStream out = new PrintStream(System.out, true, StandardCharsets.UTF_8);
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            Fields message = Fields.of(GSON.fromJson(line, Map.class));
            out.println(GSON.toJson(Map.of("case", message.text("case"), "results", results(message))));
        }
    }

    private static List<Map<String, ?>> results(Fields message) {
        List<Fields> operations = message.list("operations");
        List<Map<String, ?>> results = new ArrayList<>();
        try (Sampler sampler = connect(message.fields("connect"))) {
            for (Fields operation : operations) {
                results.add(result(sampler, operation));
            }
            return results;
        } catch (RollserveException refused) {
            return Collections.nCopies(operations.size(), error(refused));
        }
    }

    private static Sampler connect(Fields connect) {
        ConnectionOptions options = new ConnectionOptions();
        options = connect.set(options, "timeout_seconds", (set, field) ->
            set.timeout(Duration.ofNanos((long) (connect.number(field) * 1e9))));
        options = connect.set(options, "ca", (set, field) -> set.ca(Path.of(connect.text(field))));
        options = connect.set(options, "token", (set, field) -> set.token(connect.text(field)));
        options = connect.set(options, "max_message_bytes", (set, field) ->
            set.maxMessageBytes((int) connect.integer(field)));
        options = connect.set(options, "compression", (set, field) -> set.compression(connect.texts(field).stream()
            .map(codec -> Compression.valueOf(codec.toUpperCase(Locale.ROOT))).toArray(Compression[]::new)));
        return Sampler.connect(connect.text("target"), options);
    }

    private static Map<String, ?> result(Sampler sampler, Fields operation) {
        try {
            List<String> unknown = Requests.unknownFields(operation);
            return unknown.isEmpty()
                ? perform(sampler, operation)
                : Map.of("unsupported", "the field " + unknown.get(0));
        } catch (RollserveException failure) {
            return error(failure);
        } catch (UnsupportedOperationException missing) {
            return Map.of("unsupported", missing.getMessage());
        }
    }

    private static Map<String, ?> error(RollserveException error) {
        String name = error.getClass().getSimpleName().replaceFirst("Exception$", "");
        return Map.of("error", Map.of(
            "kind", name.replaceAll("(?<=[a-z])(?=[A-Z])", "_").toLowerCase(Locale.ROOT),
            "status", error.code().name(),
            "reason", error.reason(),
            "field", error.field(),
            "message", error.getMessage(),
            "request_id", error.requestId()));
    }

    private static Map<String, ?> perform(Sampler sampler, Fields operation) {
        Fields options = operation.fields("options");
        return switch (operation.text("do")) {
            case "update_env" ->
                Map.of("environment_version", sampler.updateEnv(Requests.env(operation)).envVersion());
            case "change_env" ->
                Map.of("environment_version", sampler.updateEnv(Requests.envChange(operation)).envVersion());
            case "update_env_per_worker" -> Map.of("environment_version",
                sampler.updateEnvPerWorker(operation.optionals("updates", Requests::envUpdate)).envVersion());
            case "call_environments" -> Collections.singletonMap("values", values(sampler, operation));
            case "update_agent" -> Map.of("policy_version", operation.flag("skip_if_identical")
                ? sampler.updateAgentIfDifferent(Requests.agentUpdate(operation))
                : sampler.updateAgent(Requests.agentUpdate(operation)));
            case "change_agent" ->
                Map.of("policy_version", sampler.updateAgent(Requests.agentChange(operation)));
            case "update_agent_per_worker" -> Map.of("policy_version",
                sampler.updateAgentPerWorker(operation.optionals("updates", Requests::agentUpdate)));
            case "obtain_samples" ->
                batch(() -> sampler.obtainSamples(operation.integer("num_steps"), Requests.sampling(options)));
            case "obtain_exact_episodes" -> batch(() -> sampler.obtainExactEpisodes(
                operation.integer("num_episodes_per_worker"), Requests.sampling(options)));
            case "obtain_fragments" -> batch(() -> sampler.obtainFragments(
                operation.integer("num_steps"), fragments(operation, options)));
            case "stream_samples" -> stream(sampler, operation, options);
            case "evaluate" ->
                evaluation(sampler.evaluate((int) operation.integer("num_episodes"), Requests.evaluation(options)));
            case "status" -> status(sampler.status());
            default -> Map.of("unsupported", "no such operation");
        };
    }

    private static List<Object> values(Sampler sampler, Fields operation) {
        String method = operation.text("method");
        Object[] arguments = operation.elements("arguments").toArray();
        return operation.has("environment_version")
            ? sampler.callEnvironments(operation.integer("environment_version"), method, arguments)
            : sampler.callEnvironments(method, arguments);
    }

    private static FragmentOptions fragments(Fields operation, Fields options) {
        FragmentOptions fragments = new FragmentOptions(Requests.sampling(options));
        fragments = operation.set(fragments, "row_step_count", (set, field) ->
            set.rowStepCount(operation.integer(field)));
        return operation.set(fragments, "soft_horizon", (set, field) -> set.softHorizon(operation.flag(field)));
    }

    private static Map<String, ?> stream(Sampler sampler, Fields operation, Fields options) {
        long stopAfter = operation.has("stop_after") ? operation.integer("stop_after") : Long.MAX_VALUE;
        long numBatches = 0;
        long numSteps = 0;
        Map<String, Object> result = new LinkedHashMap<>();
        try (SampleStream<EpisodeBatch> stream =
                 sampler.streamSamples(operation.integer("num_steps"), Requests.sampling(options))) {
            for (EpisodeBatch part : stream) {
                numBatches++;
                numSteps += part.numSteps();
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

    /** Returns the description of a batch, and the time that its call takes. */
    private static Map<String, ?> batch(Supplier<EpisodeBatch> call) {
        long began = System.nanoTime();
        EpisodeBatch batch = call.get();
        double seconds = (System.nanoTime() - began) / 1e9;
        return Map.of("batch", Description.of(batch), "seconds", seconds);
    }

    private static Map<String, ?> evaluation(Evaluation evaluation) {
        return Map.of("returns", evaluation.returns(), "lengths", evaluation.lengths());
    }

    private static Map<String, ?> status(SamplerStatus status) {
        return Map.of(
            "policy_version", status.policyVersion(),
            "environment_version", status.envVersion(),
            "num_workers", status.numWorkers());
    }
}
