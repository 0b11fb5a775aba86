package io.github.rollserve;

import java.nio.DoubleBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;

/**
 * N segments, which are episodes or parts of episodes, with T steps in all, as flat columns.
 *
 * <p>The rows of a segment are contiguous, and segments follow each other in the order of the headers, the arrays with
 * an element for each segment. Those arrays belong to the batch: copy them before you change them. Parts of a batch
 * share the memory of its columns.
 */
public final class EpisodeBatch {
    private final Headers headers;
    private final Map<ColumnField, Columns> columns;
    private final Tensor rewards;
    private final Account account;
    private final int[] firstRows; // of each segment, and T behind them

    EpisodeBatch(Headers headers, Map<ColumnField, Columns> columns, Account account) {
        this.headers = headers;
        this.columns = columns;
        this.rewards = columns.get(ColumnField.REWARDS).plain();
        this.account = account;
        this.firstRows = new int[headers.size() + 1];
        for (int i = 0; i < headers.size(); i++) {
            firstRows[i + 1] = firstRows[i] + headers.lengths()[i];
        }
    }

    /** {@return N, the number of segments} */
    public int numSegments() {
        return headers.size();
    }

    /** {@return T, the number of steps of all segments} */
    public int numSteps() {
        return rewards.numRows();
    }

    /** {@return (T, *O), the observations before each step} */
    public Columns observations() {
        return columns.get(ColumnField.OBSERVATIONS);
    }

    /**
     * {@return (N, *O), the observations after the last step of each segment: the true last observation of an episode
     * that ended, otherwise the first observation of the next segment}
     */
    public Columns lastObservations() {
        return columns.get(ColumnField.LAST_OBSERVATIONS);
    }

    /** {@return (T, *A), the actions of each step} */
    public Columns actions() {
        return columns.get(ColumnField.ACTIONS);
    }

    /** {@return (T) float64, the rewards of each step} */
    public Tensor rewards() {
        return rewards;
    }

    /** {@return (T, *I), infos of the agent, such as {@code log_prob}} */
    public Columns agentInfos() {
        return columns.get(ColumnField.AGENT_INFOS);
    }

    /** {@return (T, *I), infos of the environment's steps; nested names are joined by {@code /}} */
    public Columns envInfos() {
        return columns.get(ColumnField.ENVIRONMENT_INFOS);
    }

    /** {@return (N, *I), infos of the environment's reset at the start of each segment's episode} */
    public Columns episodeInfos() {
        return columns.get(ColumnField.EPISODE_INFOS);
    }

    /** {@return (N, *H), recurrent states before the first step of each segment} */
    public Columns initialStates() {
        return columns.get(ColumnField.INITIAL_STATES);
    }

    /**
     * {@return (N, *H), recurrent states after the last step of each segment, with
     * {@link SamplingOptions#withReturnLastStates(boolean)}}
     */
    public Columns lastStates() {
        return columns.get(ColumnField.LAST_STATES);
    }

    /**
     * {@return (N), the values of the last observations, 0 where the segment terminated, of the type of the agent's
     * info {@code value}; with {@link SamplingOptions#withReturnLastValues(boolean)}, otherwise empty}
     */
    public Optional<Tensor> lastValues() {
        return optional(ColumnField.LAST_VALUES);
    }

    /**
     * {@return (T) float64, the rewards as the environment returned them, where transforms change rewards; otherwise
     * empty}
     */
    public Optional<Tensor> rawRewards() {
        return optional(ColumnField.RAW_REWARDS);
    }

    /**
     * {@return (T, *A), the actions as the environment got them, where transforms change actions; otherwise without
     * tensors}
     */
    public Columns envActions() {
        return columns.get(ColumnField.ENVIRONMENT_ACTIONS);
    }

    private Optional<Tensor> optional(ColumnField field) {
        return Optional.ofNullable(columns.get(field).tensors().get(""));
    }

    /** {@return (N), the number of steps of each segment, at least 1} */
    public int[] lengths() {
        return headers.lengths();
    }

    /** {@return (N), whether the last step reached a terminal state} */
    public boolean[] terminated() {
        return headers.terminated();
    }

    /** {@return (N), whether a limit ended the episode at the last step; both flags may be set} */
    public boolean[] truncated() {
        return headers.truncated();
    }

    /** {@return (N), the versions that acted} */
    public long[] policyVersions() {
        return headers.policyVersions();
    }

    /** {@return (N), the indices of the episodes} */
    public long[] episodeIndices() {
        return headers.episodeIndices();
    }

    /** {@return (N), the number of steps of the episode before each segment, including earlier calls} */
    public long[] firstSteps() {
        return headers.firstSteps();
    }

    /**
     * {@return (N), the sum of the environment's own rewards of the episode before each segment, including earlier
     * calls; NaN where the server does not tell}
     */
    public double[] returnsBefore() {
        return headers.returnsBefore();
    }

    /** {@return (N), the seeds that the environments were reset with} */
    public int[] envSeeds() {
        return (int[]) headers.array(ColumnField.ENVIRONMENT_SEEDS);
    }

    /** {@return (N), the workers that episodes are bound to; empty if they are bound to none} */
    public int[] workerIndices() {
        return (int[]) headers.array(ColumnField.WORKER_INDICES);
    }

    /** {@return (N), the rows that fragments ran in, over the rows of all workers; empty except for fragments} */
    public long[] rowIndices() {
        return (long[]) headers.array(ColumnField.ROW_INDICES);
    }

    /** {@return what became of everything that was simulated, if this is the whole result of a call} */
    public Optional<Account> account() {
        return Optional.ofNullable(account);
    }

    /** {@return (N), the sum of the rewards of each segment, added in the order of the steps} */
    public double[] returns() {
        return sums(rewards);
    }

    /** {@return (N), the sum of the environment's own rewards of each segment, without transforms} */
    public double[] rawReturns() {
        return sums(rawRewards().orElse(rewards));
    }

    /**
     * {@return (N), the sum of the environment's own rewards of each segment's episode up to the segment's last step,
     * including earlier calls; NaN where the server does not tell}
     */
    public double[] episodeReturns() {
        double[] sums = rawReturns();
        Arrays.setAll(sums, i -> sums[i] + returnsBefore()[i]);
        return sums;
    }

    private double[] sums(Tensor rewards) {
        double[] sums = new double[numSegments()];
        DoubleBuffer values = rewards.doubles();
        for (int i = 0; i < sums.length; i++) {
            for (int step = firstRows[i]; step < firstRows[i + 1]; step++) {
                sums[i] += values.get(step);
            }
        }
        return sums;
    }

    /**
     * Says whether a segment has the last step of its episode.
     *
     * @param segment the position of the segment
     * @return whether it is terminated or truncated
     */
    public boolean ended(int segment) {
        return headers.ended(segment);
    }

    /**
     * Returns where the steps of a segment are.
     *
     * @param segment the position of the segment, or N
     * @return the row of its first step in columns with a row for each step; for N, T
     */
    public int firstRow(int segment) {
        return firstRows[segment];
    }

    /**
     * Returns a segment as a batch that shares the memory of this one.
     *
     * @param segment the position of the segment
     * @return the batch of this segment alone
     */
    public EpisodeBatch segment(int segment) {
        return segments(segment, segment + 1);
    }

    /** Returns consecutive segments as a batch that shares the memory of this one. */
    EpisodeBatch segments(int begin, int end) {
        return part(firstRows[begin], begin, end, headers.slice(begin, end));
    }

    /** {@return a batch for each segment, which share the memory of this one} */
    public List<EpisodeBatch> split() {
        List<EpisodeBatch> parts = new ArrayList<>();
        for (int i = 0; i < numSegments(); i++) {
            parts.add(segment(i));
        }
        return parts;
    }

    /**
     * Returns the segments of all batches, in their order, in new tensors; of a single batch, its own tensors.
     *
     * <p>Infos that a batch lacks become gaps. Workers, rows and last values are empty if one of the batches has none.
     * A batch without the environment's own rewards or actions, beside others that have them, has the agent's. There is
     * no account.
     *
     * @param batches at least one batch
     * @return the batch of all
     * @throws RollserveException if columns do not fit together, or one of them takes 2 GiB or more
     */
    public static EpisodeBatch concatenate(List<EpisodeBatch> batches) {
        return Joining.concatenate(Arguments.list("batches", batches));
    }

    /**
     * Joins consecutive segments of one episode.
     *
     * <p>A segment is joined to the one before it if both have the same episode index and policy version, if it begins
     * with the step after the other's last one, and if the other did not end the episode.
     *
     * @return the batch with whole episodes, or fragments, as one segment each; this batch if there is nothing to join
     */
    public EpisodeBatch joined() {
        return Joining.joined(this);
    }

    /** {@return a description in one line} */
    @Override
    public String toString() {
        return "EpisodeBatch(%d segments, %d steps, %d ended)".formatted(
            numSegments(), numSteps(), headers.numEnded());
    }

    Headers headers() {
        return headers;
    }

    Columns columns(ColumnField field) {
        return columns.get(field);
    }

    EpisodeBatch withColumns(Map<ColumnField, Columns> changed) {
        return new EpisodeBatch(headers, changed, account);
    }

    EpisodeBatch withAccount(Account changed) {
        return new EpisodeBatch(headers, columns, changed);
    }

    /**
     * Returns the batch without its first steps. A segment that loses some of its steps begins later in its episode,
     * and after more raw rewards; its recurrent state is a gap, unless the agent's infos have the states of every step.
     */
    EpisodeBatch withoutFirstSteps(int numSkipped) {
        int first = 0;
        while (first < numSegments() && firstRows[first + 1] <= numSkipped) {
            first++;
        }
        Headers rest = headers.slice(first, numSegments());
        int cut = numSkipped - firstRows[first];
        if (cut > 0) {
            rest.lengths()[0] -= cut;
            rest.firstSteps()[0] += cut;
            DoubleBuffer raw = rawRewards().orElse(rewards).doubles();
            for (int step = firstRows[first]; step < numSkipped; step++) {
                rest.returnsBefore()[0] += raw.get(step);
            }
        }
        EpisodeBatch part = part(numSkipped, first, numSegments(), rest);
        if (cut == 0) {
            return part;
        }
        Map<ColumnField, Columns> changed = new EnumMap<>(part.columns);
        changed.put(ColumnField.INITIAL_STATES, LaterStates.of(part.initialStates(), part.agentInfos()));
        return part.withColumns(changed);
    }

    private EpisodeBatch part(int firstStep, int first, int end, Headers kept) {
        Map<ColumnField, Columns> parts = ColumnField.each(field -> field.isPerStep
            ? columns(field).rows(firstStep, firstRows[end])
            : columns(field).rows(first, end));
        return new EpisodeBatch(kept, parts, null);
    }
}
