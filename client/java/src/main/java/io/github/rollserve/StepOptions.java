package io.github.rollserve;

import java.util.Objects;

/** Options of {@link Session#step(Columns, StepOptions)}. Each method returns options with one more set. */
@CheckReturnValue
public final class StepOptions {
    private final Columns agentInfos;
    private final boolean[] idle;

    /** Creates options that all have their defaults. */
    public StepOptions() {
        this(Columns.EMPTY, new boolean[0]);
    }

    private StepOptions(Columns agentInfos, boolean[] idle) {
        this.agentInfos = agentInfos;
        this.idle = idle;
    }

    /**
     * Sets the infos that the session was begun with.
     *
     * @param infos (N, *I) for each of them
     * @return the options
     */
    public StepOptions withAgentInfos(Columns infos) {
        return new StepOptions(Objects.requireNonNull(infos, "infos"), idle);
    }

    /**
     * Sets which rows make no step, whatever their actions are: only rows whose present episode has made none, and not
     * where rows are stepped at once.
     *
     * @param rows (N), whether each row is idle; by default, none is
     * @return the options
     */
    public StepOptions withIdle(boolean... rows) {
        return new StepOptions(agentInfos, Objects.requireNonNull(rows, "rows").clone());
    }

    Columns agentInfos() {
        return agentInfos;
    }

    boolean[] idle() {
        return idle;
    }
}
