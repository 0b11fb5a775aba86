import io.github.rollserve.Columns;
import io.github.rollserve.DataType;
import io.github.rollserve.DriveOptions;
import io.github.rollserve.DrivenStep;
import io.github.rollserve.RollserveException;
import io.github.rollserve.Sampler;
import io.github.rollserve.SendOptions;
import io.github.rollserve.Session;
import io.github.rollserve.StepOptions;
import io.github.rollserve.Tensor;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** The operation that begins a session, and the operations of the session. */
final class Sessions {
    private Sessions() {}

    static Map<String, ?> drive(Sampler sampler, Fields operation) {
        List<Map<String, ?>> results = new ArrayList<>();
        DriveOptions options = options(operation);
        Session session = sampler.drive(options);
        try {
            for (Fields each : operation.list("operations")) {
                if (each.text("do").equals("resume")) {
                    String token = session.token();
                    session.close();
                    sleep(each.numberOr("after_seconds", 0));
                    session = sampler.resumeSession(token, options);
                    results.add(Map.of());
                    continue;
                }
                try {
                    results.add(perform(session, each, operation.flag("next_step")));
                } catch (RollserveException failure) {
                    results.add(Adapter.error(failure));
                }
            }
        } finally {
            session.close();
        }
        return Map.of("results", results);
    }

    private static void sleep(double seconds) {
        try {
            Thread.sleep((long) (1000 * seconds));
        } catch (InterruptedException interrupted) {
            throw new IllegalStateException(interrupted); // nobody does
        }
    }

    private static DriveOptions options(Fields operation) {
        Fields given = operation.fields("options");
        DriveOptions options = new DriveOptions()
            .withFragmentLength(operation.integer("fragment_length"))
            .withReturnInfos(operation.flag("infos"))
            .withBlackhole(operation.has("record") && !operation.flag("record"));
        for (String name : operation.fields("agent_infos").values().keySet()) {
            Fields example = operation.fields("agent_infos").fields(name);
            DataType dataType = DataType.valueOf(example.text("dtype").toUpperCase(Locale.ROOT));
            options = options.withAgentInfo(name, dataType, Requests.shape(example));
        }
        options = operation.set(options, "min_ready", (set, field) ->
            set.withMinReady((int) operation.integer(field)));
        options = operation.set(options, "lease_seconds", (set, field) ->
            set.withLease(Duration.ofMillis((long) (1000 * operation.number(field)))));
        options = given.set(options, "seed", (set, field) ->
            set.withSeed(Long.parseUnsignedLong(given.text(field))));
        options = given.set(options, "max_episode_length", (set, field) ->
            set.withMaxEpisodeLength(given.integer(field)));
        return given.set(options, "environment_version", (set, field) -> set.withEnvVersion(given.integer(field)));
    }

    private static Map<String, ?> perform(Session session, Fields operation, boolean isNextStep) {
        return switch (operation.text("do")) {
            case "observe" -> Map.of("step", of(session.observe()));
            case "step" -> {
                StepOptions options = new StepOptions()
                    .withAgentInfos(new Columns(Requests.tensors(operation.fields("agent_infos"))));
                if (isNextStep) {
                    options = options.withIdle(session.observe().ended());
                }
                Columns actions = new Columns(Requests.tensors(operation.fields("actions")));
                yield Map.of("step", of(session.step(actions, options)));
            }
            case "rows" -> {
                Columns actions = new Columns(Requests.tensors(operation.fields("actions")));
                Columns infos = new Columns(Requests.tensors(operation.fields("agent_infos")));
                yield Map.of("rows", actApart(session, actions, infos));
            }
            case "batch" -> Map.of("batch", Description.of(session.batch()));
            case "end" -> Map.of("account", Description.of(session.end()));
            default -> throw new UnsupportedOperationException("the session's operation " + operation.text("do"));
        };
    }

    /** Acts in rows as they become ready, and describes what each has shown, by step and row. */
    private static Map<String, ?> actApart(Session session, Columns actions, Columns infos) {
        int numRows = session.numRows();
        int numSteps = actions.tensors().values().iterator().next().shape()[0];
        int numPlaces = (numSteps + 1) * numRows;
        double[] rewards = new double[numPlaces];
        Map<String, Tensor[]> shown = new LinkedHashMap<>();
        for (int numShown = 0; numShown < numPlaces;) {
            DrivenStep step = session.recv();
            List<Integer> places = new ArrayList<>(); // of the rows that act
            for (int i = 0; i < step.rows().length; i++, numShown++) {
                int place = (int) step.rowSteps()[i] * numRows + step.rows()[i];
                rewards[place] = step.rewards().doubles().get(i);
                for (Map.Entry<String, Tensor> column : step.observations().tensors().entrySet()) {
                    shown.computeIfAbsent(column.getKey(), name -> new Tensor[numPlaces])[place] =
                        column.getValue().rows(i, i + 1);
                }
                if (step.rowSteps()[i] < numSteps) {
                    places.add(place);
                }
            }
            if (!places.isEmpty()) {
                int[] rows = places.stream().mapToInt(place -> place % numRows).toArray();
                SendOptions options = new SendOptions().withRows(rows).withAgentInfos(rowsAt(infos, places));
                session.send(rowsAt(actions, places), options);
            }
        }
        Map<String, Tensor> observations = new LinkedHashMap<>();
        shown.forEach((name, rows) -> observations.put(name, joined(List.of(rows), numSteps + 1, numRows)));
        return Map.of(
            "observations", Description.leaves(new Columns(observations)),
            "rewards", Description.leaves(Columns.plain(Tensor.of(rewards, numSteps + 1, numRows))));
    }

    /** Returns the rows of columns (T, N, …) at some places, by step and row in one number. */
    private static Columns rowsAt(Columns columns, List<Integer> places) {
        Map<String, Tensor> chosen = new LinkedHashMap<>();
        columns.tensors().forEach((name, column) -> {
            int[] shape = column.shape();
            int[] flat = Arrays.copyOfRange(shape, 1, shape.length);
            flat[0] *= shape[0];
            Tensor rows = Tensor.of(column.dataType(), column.bytes(), flat);
            chosen.put(name, joined(places.stream().map(place -> rows.rows(place, place + 1)).toList(), places.size()));
        });
        return new Columns(chosen);
    }

    /** Returns rows in one tensor whose first axes are given. */
    private static Tensor joined(List<Tensor> rows, int... sizes) {
        Tensor first = rows.get(0);
        ByteBuffer bytes = ByteBuffer.allocate(rows.size() * first.bytes().remaining());
        rows.forEach(row -> bytes.put(row.bytes()));
        int[] rowShape = first.shape();
        int[] shape = Arrays.copyOf(sizes, sizes.length + rowShape.length - 1);
        System.arraycopy(rowShape, 1, shape, sizes.length, rowShape.length - 1);
        return Tensor.of(first.dataType(), bytes.flip(), shape);
    }

    private static Map<String, ?> of(DrivenStep step) {
        Map<String, Object> described = new LinkedHashMap<>();
        described.put("number", step.number());
        described.put("episode_indices", step.episodeIndices());
        described.put("env_seeds", step.envSeeds());
        described.put("terminated", step.terminated());
        described.put("truncated", step.truncated());
        described.put("ended_rows", step.endedRows());
        described.put("rewards", Description.leaves(Columns.plain(step.rewards())));
        described.put("observations", Description.leaves(step.observations()));
        described.put("last_observations", Description.leaves(step.lastObservations()));
        described.put("infos", Description.infos(step.infos()));
        described.put("last_infos", Description.infos(step.lastInfos()));
        return described;
    }
}
