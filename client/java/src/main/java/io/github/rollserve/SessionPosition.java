package io.github.rollserve;

import io.github.rollserve.v1.DrivenActions;
import io.github.rollserve.v1.DrivenRows;
import io.github.rollserve.v1.DrivenStep;
import java.util.Arrays;
import java.util.List;
import java.util.Optional;

/**
 * Where the rows of a session are, over all its streams. One that is taken up again shows steps that the client may
 * have.
 */
final class SessionPosition {
    private final boolean isApart;
    private long numSteps;
    // For rows that do not wait for each other: how many steps each has made, -1 before it is shown, and was asked for.
    private long[] made = {};
    private long[] asked = {};

    /** Starts before the first step; isApart says whether rows do not wait for each other. */
    SessionPosition(boolean isApart) {
        this.isApart = isApart;
    }

    /** Sets the number of rows, once. */
    void begin(int numRows) {
        if (made.length == 0) {
            made = new long[numRows];
            asked = new long[numRows];
            Arrays.fill(made, -1);
        }
    }

    /** Returns what is new in a step; empty for nothing. The rows of a worker step together. */
    Optional<DrivenStep> news(DrivenStep step) {
        if (isApart) {
            List<DrivenRows> workers = step.getWorkersList().stream().filter(this::isNew).toList();
            DrivenStep news = step.toBuilder().clearWorkers().addAllWorkers(workers).build();
            return workers.isEmpty() ? Optional.empty() : Optional.of(news);
        }
        if (step.getStep() < numSteps) {
            return Optional.empty();
        }
        numSteps = step.getStep() + 1;
        return Optional.of(step);
    }

    private boolean isNew(DrivenRows worker) {
        int numRows = worker.getEpisodeIndicesCount();
        if (worker.getRowsCount() != numRows || worker.getRowStepCountsCount() != numRows) {
            throw Errors.malformed("workers.rows", numRows + " rows, and step counts", worker.getRowsCount());
        }
        boolean isNew = false;
        for (int i = 0; i < numRows; i++) {
            long row = worker.getRows(i);
            if (row < 0 || row >= made.length) {
                throw Errors.malformed("workers.rows", "rows below " + made.length, row);
            }
            long count = worker.getRowStepCounts(i);
            isNew |= count > made[(int) row];
            made[(int) row] = Math.max(count, made[(int) row]);
        }
        return isNew;
    }

    /** Adds the rows that are to act, and how many steps they have made; counts one more for each. */
    void ask(int[] rows, DrivenActions.Builder actions) {
        long[] next = asked.clone();
        for (int i = 0; i < rows.length; i++) {
            int row = rows[i];
            if (row < 0 || row >= made.length || next[row] > made[row]) {
                throw Errors.invalid("rows[" + i + "]", "a row that waits for actions", row);
            }
            actions.addRows(row).addRowStepCounts(made[row]);
            next[row] = made[row] + 1;
        }
        asked = next;
    }

    /** Returns whether a step has followed the actions. */
    boolean isBehind(DrivenActions actions) {
        if (!isApart) {
            return actions.getStep() + 1 < numSteps;
        }
        for (int i = 0; i < actions.getRowsCount(); i++) {
            if (actions.getRowStepCounts(i) >= made[(int) actions.getRows(i)]) {
                return false;
            }
        }
        return true;
    }
}
