package io.github.rollserve;

import io.github.rollserve.v1.EnvironmentChange;
import java.util.Map;
import java.util.Objects;
import java.util.function.UnaryOperator;

/**
 * A change of the present environment. Each method returns a change of one more setting. What is left out stays as it
 * is; episodes start over in any case.
 */
@CheckReturnValue
public final class EnvChange implements EnvUpdate {
    private final EnvironmentChange wire;

    /** Creates a change of nothing. */
    public EnvChange() {
        this(EnvironmentChange.getDefaultInstance());
    }

    private EnvChange(EnvironmentChange wire) {
        this.wire = wire;
    }

    private EnvChange with(UnaryOperator<EnvironmentChange.Builder> change) {
        return new EnvChange(change.apply(wire.toBuilder()).build());
    }

    /**
     * Sets keyword arguments, which are added to the present ones, or replace them by name.
     *
     * @param kwargs the arguments by name: values that JSON can hold
     * @return the change
     */
    public EnvChange withKwargs(Map<String, ?> kwargs) {
        return with(builder -> builder.setKwargsJson(Json.object("kwargs", kwargs)));
    }

    /**
     * Sets another task.
     *
     * @param task the task
     * @return the change
     */
    public EnvChange withTask(Task task) {
        return with(builder -> builder.setTask(EnvMessages.of(Objects.requireNonNull(task, "task"))));
    }

    /**
     * Sets the {@code options} of each reset from now on.
     *
     * @param resetOptions the options by name, instead of all present ones: values that JSON can hold
     * @return the change
     */
    public EnvChange withResetOptions(Map<String, ?> resetOptions) {
        return with(builder -> builder.setResetOptionsJson(Json.object("resetOptions", resetOptions)));
    }

    @Override
    public boolean equals(Object other) {
        return other instanceof EnvChange change && wire.equals(change.wire);
    }

    @Override
    public int hashCode() {
        return wire.hashCode();
    }

    EnvironmentChange toWire() {
        return wire;
    }
}
