package io.github.rollserve;

import io.github.rollserve.v1.Environment;
import io.github.rollserve.v1.EnvironmentChange;
import io.github.rollserve.v1.EnvironmentUpdate;
import java.util.List;
import java.util.Optional;

/** Environments as the wire has them. */
final class EnvMessages {
    private EnvMessages() {}

    static EnvironmentUpdate of(EnvUpdate update) {
        EnvironmentUpdate.Builder message = EnvironmentUpdate.newBuilder();
        if (update instanceof EnvSpec spec) {
            message.setEnvironment(of(spec));
        } else if (update instanceof EnvChange change) {
            message.setChange(of(change));
        } else {
            for (Optional<EnvUpdate> row : ((RowEnvUpdates) update).updates()) {
                message.getPerRowBuilder().addUpdates(
                    row.map(EnvMessages::of).orElse(EnvironmentUpdate.getDefaultInstance()));
            }
        }
        return message.build();
    }

    static Environment of(EnvSpec spec) {
        Environment.Builder message = Environment.newBuilder()
            .setId(spec.id())
            .setKwargsJson(Json.object("kwargs", spec.kwargs()))
            .setResetOptionsJson(Json.object("resetOptions", spec.resetOptions()))
            .setVectorizationValue(spec.vectorization().ordinal())
            .setRowCount(spec.numRows())
            .setEpisodesPerRow(spec.numEpisodesPerRow())
            .setTextInfoBytes(spec.textInfoBytes())
            .setMultiAgentValue(spec.multiAgent().ordinal())
            .setGlobalState(spec.globalState());
        spec.transforms().forEach(transform -> message.addTransforms(TransformMessages.of(transform)));
        for (Wrapper wrapper : spec.wrappers()) {
            String field = "wrappers[" + message.getWrappersCount() + "].kwargs";
            message.addWrappersBuilder()
                .setName(wrapper.name())
                .setKwargsJson(Json.object(field, wrapper.kwargs()));
        }
        spec.task().ifPresent(task -> message.setTask(of(task)));
        return message.build();
    }

    private static EnvironmentChange of(EnvChange change) {
        EnvironmentChange.Builder message = EnvironmentChange.newBuilder()
            .setKwargsJson(Json.object("kwargs", change.kwargs()));
        change.task().ifPresent(task -> message.setTask(of(task)));
        change.resetOptions().ifPresent(options -> message.setResetOptionsJson(Json.object("resetOptions", options)));
        return message.build();
    }

    private static io.github.rollserve.v1.Task of(Task task) {
        return io.github.rollserve.v1.Task.newBuilder()
            .setMethod(task.method())
            .setArgumentJson(Json.value("task.argument", task.argument()))
            .build();
    }

    static EnvSpec from(Environment message) {
        List<Wrapper> wrappers = message.getWrappersList().stream()
            .map(wrapper -> new Wrapper(wrapper.getName(), Json.read("wrappers.kwargs_json", wrapper.getKwargsJson())))
            .toList();
        Optional<Task> task = Optional.of(message.getTask())
            .filter(given -> message.hasTask())
            .map(given -> new Task(
                given.getMethod(), Json.readValue("task.argument_json", given.getArgumentJson())));
        return new EnvSpec(
            message.getId(),
            Json.read("kwargs_json", message.getKwargsJson()),
            wrappers,
            message.getTransformsList().stream().map(TransformMessages::from).flatMap(Optional::stream).toList(),
            task,
            Json.read("reset_options_json", message.getResetOptionsJson()),
            Vectorization.from(message.getVectorizationValue()),
            message.getRowCount(),
            message.getEpisodesPerRow(),
            message.getTextInfoBytes(),
            MultiAgentApi.from(message.getMultiAgentValue()),
            message.getGlobalState());
    }

    /** Says whether an update keeps or changes any of the present environments. */
    static boolean keepsAny(EnvironmentUpdate update) {
        return update.hasPerRow()
            ? update.getPerRow().getUpdatesList().stream().anyMatch(row -> !row.hasEnvironment())
            : !update.hasEnvironment();
    }
}
