package io.github.rollserve;

import java.util.Objects;

/** Options of {@link Session#send(Columns, SendOptions)}. Each method returns options with one more set. */
@CheckReturnValue
public final class SendOptions {
    private final Columns agentInfos;
    private final int[] rows;

    /** Creates options that all have their defaults. */
    public SendOptions() {
        this(Columns.EMPTY, new int[0]);
    }

    private SendOptions(Columns agentInfos, int[] rows) {
        this.agentInfos = agentInfos;
        this.rows = rows;
    }

    /**
     * Sets the infos that the session was begun with.
     *
     * @param infos (K, *I) for each of them
     * @return the options
     */
    public SendOptions withAgentInfos(Columns infos) {
        return new SendOptions(Objects.requireNonNull(infos, "infos"), rows);
    }

    /**
     * Sets the rows that act, each of which waits for it.
     *
     * @param numbers (K), their numbers among all rows; by default, those of the last step
     * @return the options
     */
    public SendOptions withRows(int... numbers) {
        return new SendOptions(agentInfos, Objects.requireNonNull(numbers, "numbers").clone());
    }

    Columns agentInfos() {
        return agentInfos;
    }

    int[] rows() {
        return rows;
    }
}
