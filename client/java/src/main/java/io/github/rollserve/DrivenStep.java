package io.github.rollserve;

import io.github.rollserve.v1.DrivenRows;
import io.github.rollserve.v1.NamedTensor;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

/**
 * The observations of N rows for the next actions of a session, and what followed the last ones. These are all rows of
 * all workers, or, of a session with {@link DriveOptions#withMinReady(int)}, those that are ready.
 *
 * <p>Rows are reset in the step that ends an episode: such a row's observation is the first one of its next episode,
 * and {@code lastObservations} have the last one of the episode that has ended.
 *
 * @param number the number of the step that actions are wanted for, from 0; with minReady, of what was received
 * @param observations (N, *O), the observations for the next actions
 * @param episodeIndices (N), the indices of the episodes that the rows' next steps belong to
 * @param rewards (N) float64, the rewards of the last step; zeros before the first
 * @param terminated (N), whether the environment has ended the row's episode with the last step
 * @param truncated (N), whether a limit has; both may be true
 * @param endedRows (E), the positions, among these rows, of those whose episodes have ended with the last step
 * @param lastObservations (E, *O), the last observations of these episodes
 * @param envSeeds (N), the seeds of the last reset of each row's environment, of which all 64 bits count; of rows that
 *     are stepped at once, the seed of their joint reset
 * @param infos (N, *I), what came with the observations, with {@link DriveOptions#withReturnInfos(boolean)}
 * @param lastInfos (E, *I), what came with the last observations, in the same form
 * @param rows (N), the numbers of these rows among all rows
 * @param rowSteps (N), how many steps each of them has made in the session
 */
public record DrivenStep(
    long number,
    Columns observations,
    long[] episodeIndices,
    Tensor rewards,
    boolean[] terminated,
    boolean[] truncated,
    int[] endedRows,
    Columns lastObservations,
    long[] envSeeds,
    Columns infos,
    Columns lastInfos,
    int[] rows,
    long[] rowSteps) {

    /** {@return whether each row's episode has ended with the last step, (N)} */
    public boolean[] ended() {
        boolean[] ended = new boolean[terminated.length];
        for (int row : endedRows) {
            ended[row] = true;
        }
        return ended;
    }

    @Override
    public boolean equals(Object other) {
        return Records.equal(this, other);
    }

    @Override
    public int hashCode() {
        return Records.hash(this);
    }

    /** Reads a step of all rows. Its tensors share the memory of the message if one worker has all rows. */
    static DrivenStep from(io.github.rollserve.v1.DrivenStep message, int numRows) {
        long[] rowSteps = new long[numRows];
        Arrays.fill(rowSteps, message.getStep());
        return from(message, IntStream.range(0, numRows).toArray(), rowSteps);
    }

    /** Reads a step of rows that are ready. */
    static DrivenStep ofReady(io.github.rollserve.v1.DrivenStep message) {
        List<DrivenRows> workers = message.getWorkersList();
        int[] rows = LongStream.of(longs(workers, DrivenRows::getRowsList)).mapToInt(Math::toIntExact).toArray();
        return from(message, rows, longs(workers, DrivenRows::getRowStepCountsList));
    }

    private static DrivenStep from(io.github.rollserve.v1.DrivenStep message, int[] allRows, long[] rowSteps) {
        int numRows = allRows.length;
        List<DrivenRows> workers = message.getWorkersList();
        int[] counts = workers.stream().mapToInt(DrivenRows::getEpisodeIndicesCount).toArray();
        int[] endedCounts = workers.stream().mapToInt(DrivenRows::getEndedRowsCount).toArray();
        if (workers.isEmpty() || IntStream.of(counts).sum() != numRows) {
            throw Errors.malformed("workers", numRows + " rows in all", IntStream.of(counts).sum());
        }
        double[] rewards = new double[numRows];
        boolean[] terminated = new boolean[numRows];
        boolean[] truncated = new boolean[numRows];
        int[] endedRows = new int[IntStream.of(endedCounts).sum()];
        List<Columns> observations = new ArrayList<>();
        List<Columns> lastObservations = new ArrayList<>(); // of workers where episodes have ended
        List<Columns> infos = new ArrayList<>();
        List<Columns> lastInfos = new ArrayList<>();
        int begin = 0;
        int numEnded = 0;
        for (int i = 0; i < counts.length; i++) {
            DrivenRows rows = workers.get(i);
            String path = "workers[" + i + "].";
            check(path, rows, counts[i], endedCounts[i]);
            for (int row = 0; row < rows.getRewardsCount(); row++) {
                rewards[begin + row] = rows.getRewards(row);
            }
            for (int ended = 0; ended < endedCounts[i]; ended++) {
                int row = begin + (int) rows.getEndedRows(ended);
                endedRows[numEnded++] = row;
                terminated[row] = rows.getTerminated(ended);
                truncated[row] = rows.getTruncated(ended);
            }
            observations.add(columns(path + "observations", rows.getObservationsList(), counts[i]));
            infos.add(columns(path + "infos", rows.getInfosList(), counts[i]));
            lastInfos.add(columns(path + "last_infos", rows.getLastInfosList(), endedCounts[i]));
            if (endedCounts[i] > 0) {
                lastObservations.add(
                    columns(path + "last_observations", rows.getLastObservationsList(), endedCounts[i]));
            }
            begin += counts[i];
        }
        Columns all = joined("observations", observations);
        return new DrivenStep(
            message.getStep(),
            all,
            longs(workers, DrivenRows::getEpisodeIndicesList),
            Tensor.of(rewards),
            terminated,
            truncated,
            endedRows,
            lastObservations.isEmpty() ? all.rows(0, 0) : joined("last_observations", lastObservations),
            longs(workers, DrivenRows::getEnvironmentSeedsList),
            Joining.concatenateInfos("infos", infos, counts),
            Joining.concatenateInfos("last_infos", lastInfos, endedCounts),
            allRows,
            rowSteps);
    }

    private static long[] longs(List<DrivenRows> workers, Function<DrivenRows, List<Long>> field) {
        return workers.stream().map(field).flatMap(List::stream).mapToLong(Long::longValue).toArray();
    }

    /** Checks that a worker's rows are as many as its numbers say. */
    private static void check(String path, DrivenRows rows, int count, int numEnded) {
        if (rows.getRewardsCount() != 0) { // as before the first step
            BatchDecoder.check(path + "rewards", rows.getRewardsList(), count);
        }
        BatchDecoder.check(path + "environment_seeds", rows.getEnvironmentSeedsList(), count);
        BatchDecoder.check(path + "terminated", rows.getTerminatedList(), numEnded);
        BatchDecoder.check(path + "truncated", rows.getTruncatedList(), numEnded);
        for (long row : rows.getEndedRowsList()) {
            if (row < 0 || row >= count) {
                throw Errors.malformed(path + "ended_rows", "positions below " + count, row);
            }
        }
    }

    private static Columns columns(String path, List<NamedTensor> messages, int count) {
        Columns columns = new Columns(Tensors.named(path, messages));
        columns.tensors().forEach((name, tensor) -> {
            if (tensor.numAxes() == 0 || tensor.numRows() != count) {
                throw Errors.malformed(path + "['" + name + "']", count + " rows", tensor);
            }
        });
        return columns;
    }

    private static Columns joined(String field, List<Columns> parts) {
        return parts.size() == 1 ? parts.get(0) : Joining.concatenateColumns(field, parts);
    }
}
