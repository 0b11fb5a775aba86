import io.github.rollserve.Columns;
import io.github.rollserve.DataType;
import io.github.rollserve.DriveOptions;
import io.github.rollserve.DrivenStep;
import io.github.rollserve.RollserveException;
import io.github.rollserve.Sampler;
import io.github.rollserve.Session;
import io.github.rollserve.StepOptions;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Locale;
import java.util.Map;

/** The operation that begins a session, and the operations of the session. */
final class Sessions {
    private Sessions() {}

    static Map<String, ?> drive(Sampler sampler, Fields operation) {
        List<Map<String, ?>> results = new ArrayList<>();
        try (Session session = sampler.drive(options(operation))) {
            for (Fields each : operation.list("operations")) {
                try {
                    results.add(perform(session, each, operation.flag("next_step")));
                } catch (RollserveException failure) {
                    results.add(Adapter.error(failure));
                }
            }
        }
        return Map.of("results", results);
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
            case "batch" -> Map.of("batch", Description.of(session.batch()));
            case "end" -> Map.of("account", Description.of(session.end()));
            default -> throw new UnsupportedOperationException("the session's operation " + operation.text("do"));
        };
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
