import com.google.gson.Gson;
import com.google.gson.GsonBuilder;
import com.google.gson.ToNumberPolicy;
import io.github.rollserve.Compression;
import io.github.rollserve.ConnectionOptions;
import io.github.rollserve.RollserveException;
import io.github.rollserve.Sampler;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.io.PrintStream;
import java.nio.charset.StandardCharsets;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Locale;
import java.util.Map;
import java.util.function.Consumer;

/**
 * Answers the cases of the conformance kit: reads one of them from each line of the standard input, and writes the
 * results, as docs/conformance.md describes them.
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
        List<String> warnings = new ArrayList<>();
        try (Sampler sampler = connect(message.fields("connect"), warnings::add)) {
            Operations client = new Operations(sampler, warnings);
            for (Fields operation : operations) {
                results.add(result(client, operation));
            }
            return results;
        } catch (RollserveException refused) {
            return Collections.nCopies(operations.size(), error(refused));
        }
    }

    private static Sampler connect(Fields connect, Consumer<String> warningListener) {
        ConnectionOptions options = new ConnectionOptions().withWarningListener(warningListener);
        options = connect.set(options, "timeout_seconds", (set, field) ->
            set.withTimeout(Duration.ofNanos((long) (connect.number(field) * 1e9))));
        options = connect.set(options, "ca", (set, field) -> set.withCa(Path.of(connect.text(field))));
        options = connect.set(options, "token", (set, field) -> set.withToken(connect.text(field)));
        options = connect.set(options, "max_message_bytes", (set, field) ->
            set.withMaxMessageBytes((int) connect.integer(field)));
        options = connect.set(options, "compression", (set, field) -> set.withCompression(connect.texts(field).stream()
            .map(codec -> Compression.valueOf(codec.toUpperCase(Locale.ROOT))).toArray(Compression[]::new)));
        return Sampler.connect(connect.text("target"), options);
    }

    private static Map<String, ?> result(Operations client, Fields operation) {
        try {
            List<String> unknown = Requests.unknownFields(operation);
            return unknown.isEmpty()
                ? client.perform(operation)
                : Map.of("unsupported", "the field " + unknown.get(0));
        } catch (RollserveException failure) {
            return error(failure);
        } catch (UnsupportedOperationException missing) {
            return Map.of("unsupported", missing.getMessage());
        }
    }

    static Map<String, ?> error(RollserveException error) {
        String name = error.getClass().getSimpleName().replaceFirst("Exception$", "");
        return Map.of("error", Map.of(
            "kind", name.replaceAll("(?<=[a-z])(?=[A-Z])", "_").toLowerCase(Locale.ROOT),
            "status", error.code().name(),
            "reason", error.reasonName(),
            "field", error.field(),
            "message", error.getMessage(),
            "request_id", error.requestId()));
    }
}
