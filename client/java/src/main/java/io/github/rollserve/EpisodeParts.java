package io.github.rollserve;

import java.util.Arrays;
import java.util.List;
import java.util.function.Function;
import java.util.stream.IntStream;

/**
 * The parts of E episodes that a batch has: where they are, and whether they end their episodes. Of an environment with
 * one agent, its segments; {@link MultiAgentBatch} describes those of many.
 */
record EpisodeParts(
    long[] episodeIndices,
    long[] firstSteps,
    int[] lengths,
    boolean[] terminated,
    boolean[] truncated,
    long[] agentStepCounts) {

    int size() {
        return lengths.length;
    }

    int numSteps() {
        return Arrays.stream(lengths).reduce(0, Math::addExact);
    }

    long numAgentSteps() {
        return Arrays.stream(agentStepCounts).sum();
    }

    boolean ended(int part) {
        return terminated[part] || truncated[part];
    }

    int numEnded() {
        return (int) IntStream.range(0, size()).filter(this::ended).count();
    }

    /** Says whether a part goes on where the part before it stops. */
    boolean followsTheOneBefore(int part) {
        return episodeIndices[part] == episodeIndices[part - 1]
            && firstSteps[part] == firstSteps[part - 1] + lengths[part - 1];
    }

    /** Returns runs of consecutive parts, each as one part. */
    EpisodeParts merge(Runs runs) {
        return new EpisodeParts(
            Arrays.stream(runs.begins()).mapToLong(begin -> episodeIndices[begin]).toArray(),
            Arrays.stream(runs.begins()).mapToLong(begin -> firstSteps[begin]).toArray(),
            runs.sums(lengths),
            booleans(runs.ends(), terminated),
            booleans(runs.ends(), truncated),
            runs.sums(agentStepCounts));
    }

    /**
     * Returns the parts without steps of the first one, or without all of it.
     *
     * @param numSteps the number of steps, at most those of the first part
     * @param numAgentSteps the number of steps of agents among them
     */
    EpisodeParts withoutFirstSteps(int numSteps, long numAgentSteps) {
        int first = numSteps == lengths[0] ? 1 : 0;
        EpisodeParts rest = new EpisodeParts(
            Arrays.copyOfRange(episodeIndices, first, size()),
            Arrays.copyOfRange(firstSteps, first, size()),
            Arrays.copyOfRange(lengths, first, size()),
            Arrays.copyOfRange(terminated, first, size()),
            Arrays.copyOfRange(truncated, first, size()),
            Arrays.copyOfRange(agentStepCounts, first, size()));
        if (first == 0) {
            rest.firstSteps[0] += numSteps;
            rest.lengths[0] -= numSteps;
            rest.agentStepCounts[0] -= numAgentSteps;
        }
        return rest;
    }

    static EpisodeParts concatenate(List<EpisodeParts> all) {
        return new EpisodeParts(
            longs(all, EpisodeParts::episodeIndices),
            longs(all, EpisodeParts::firstSteps),
            all.stream().flatMapToInt(parts -> Arrays.stream(parts.lengths)).toArray(),
            booleans(all, EpisodeParts::terminated),
            booleans(all, EpisodeParts::truncated),
            longs(all, EpisodeParts::agentStepCounts));
    }

    private static long[] longs(List<EpisodeParts> all, Function<EpisodeParts, long[]> header) {
        return all.stream().flatMapToLong(parts -> Arrays.stream(header.apply(parts))).toArray();
    }

    private static boolean[] booleans(List<EpisodeParts> all, Function<EpisodeParts, boolean[]> header) {
        boolean[] values = new boolean[all.stream().mapToInt(EpisodeParts::size).sum()];
        int at = 0;
        for (EpisodeParts parts : all) {
            System.arraycopy(header.apply(parts), 0, values, at, parts.size());
            at += parts.size();
        }
        return values;
    }

    private static boolean[] booleans(int[] positions, boolean[] values) {
        boolean[] picked = new boolean[positions.length];
        for (int i = 0; i < picked.length; i++) {
            picked[i] = values[positions[i]];
        }
        return picked;
    }
}
