package io.github.rollserve;

import io.github.rollserve.v1.EnvironmentUpdate;
import java.util.ArrayList;
import java.util.List;
import java.util.Optional;

/** Environments as the wire has them. */
final class EnvMessages {
    private EnvMessages() {}

    static EnvironmentUpdate of(EnvUpdate update) {
        EnvironmentUpdate.Builder message = EnvironmentUpdate.newBuilder();
        if (update instanceof EnvSpec spec) {
            message.setEnvironment(spec.toWire());
        } else if (update instanceof EnvChange change) {
            message.setChange(change.toWire());
        } else {
            for (Optional<EnvUpdate> row : ((RowEnvUpdates) update).updates()) {
                message.getPerRowBuilder().addUpdates(
                    row.map(EnvMessages::of).orElse(EnvironmentUpdate.getDefaultInstance()));
            }
        }
        return message.build();
    }

    static List<io.github.rollserve.v1.Wrapper> of(List<Wrapper> wrappers) {
        List<io.github.rollserve.v1.Wrapper> messages = new ArrayList<>();
        for (Wrapper wrapper : wrappers) {
            messages.add(io.github.rollserve.v1.Wrapper.newBuilder()
                .setName(wrapper.name())
                .setKwargsJson(Json.object("wrappers[" + messages.size() + "].kwargs", wrapper.kwargs()))
                .build());
        }
        return messages;
    }

    static io.github.rollserve.v1.Task of(Task task) {
        return io.github.rollserve.v1.Task.newBuilder()
            .setMethod(task.method())
            .setArgumentJson(Json.value("task.argument", task.argument()))
            .build();
    }

    static Task from(io.github.rollserve.v1.Task message) {
        return new Task(message.getMethod(), Json.readValue("task.argument_json", message.getArgumentJson()));
    }

    /** Says whether an update keeps or changes any of the present environments. */
    static boolean keepsAny(EnvironmentUpdate update) {
        return update.hasPerRow()
            ? update.getPerRow().getUpdatesList().stream().anyMatch(row -> !row.hasEnvironment())
            : !update.hasEnvironment();
    }
}
