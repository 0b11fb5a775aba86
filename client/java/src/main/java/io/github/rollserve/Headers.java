package io.github.rollserve;

import java.util.Arrays;
import java.util.List;
import java.util.function.Function;

/**
 * The headers of a batch, each with a value for each of N segments; {@code workerIndices} and {@code rowIndices} can be
 * empty. {@link EpisodeBatch} describes them.
 */
record Headers(
    int[] lengths,
    boolean[] terminated,
    boolean[] truncated,
    long[] policyVersions,
    long[] episodeIndices,
    long[] firstSteps,
    double[] returnsBefore,
    int[] envSeeds,
    int[] workerIndices,
    long[] rowIndices) {

    int size() {
        return lengths.length;
    }

    int numSteps() {
        return Arrays.stream(lengths).reduce(0, Math::addExact);
    }

    boolean ended(int segment) {
        return terminated[segment] || truncated[segment];
    }

    int numEnded() {
        int count = 0;
        for (int i = 0; i < size(); i++) {
            count += ended(i) ? 1 : 0;
        }
        return count;
    }

    /** Says whether a segment is the continuation of a segment of other headers, or of these. */
    boolean follows(int segment, Headers other, int before) {
        return episodeIndices[segment] == other.episodeIndices[before]
            && policyVersions[segment] == other.policyVersions[before]
            && firstSteps[segment] == other.firstSteps[before] + other.lengths[before]
            && !other.ended(before);
    }

    Headers slice(int begin, int end) {
        return new Headers(
            Arrays.copyOfRange(lengths, begin, end),
            Arrays.copyOfRange(terminated, begin, end),
            Arrays.copyOfRange(truncated, begin, end),
            Arrays.copyOfRange(policyVersions, begin, end),
            Arrays.copyOfRange(episodeIndices, begin, end),
            Arrays.copyOfRange(firstSteps, begin, end),
            Arrays.copyOfRange(returnsBefore, begin, end),
            Arrays.copyOfRange(envSeeds, begin, end),
            workerIndices.length == 0 ? workerIndices : Arrays.copyOfRange(workerIndices, begin, end),
            rowIndices.length == 0 ? rowIndices : Arrays.copyOfRange(rowIndices, begin, end));
    }

    /** Returns the headers of runs of consecutive segments, each as one segment. */
    Headers merge(Runs runs) {
        int[] begins = runs.begins();
        return new Headers(
            runs.sums(lengths),
            pick(terminated, runs.ends()),
            pick(truncated, runs.ends()),
            pick(policyVersions, begins),
            pick(episodeIndices, begins),
            pick(firstSteps, begins),
            Arrays.stream(begins).mapToDouble(begin -> returnsBefore[begin]).toArray(),
            pick(envSeeds, begins),
            pick(workerIndices, begins),
            pick(rowIndices, begins));
    }

    /** Returns the headers of all parts. Optional ones are empty if a part lacks them. */
    static Headers concatenate(List<Headers> parts) {
        return new Headers(
            ints(parts, Headers::lengths),
            booleans(parts, Headers::terminated),
            booleans(parts, Headers::truncated),
            longs(parts, Headers::policyVersions),
            longs(parts, Headers::episodeIndices),
            longs(parts, Headers::firstSteps),
            parts.stream().flatMapToDouble(part -> Arrays.stream(part.returnsBefore())).toArray(),
            ints(parts, Headers::envSeeds),
            ints(parts, Headers::workerIndices),
            longs(parts, Headers::rowIndices));
    }

    private static int[] ints(List<Headers> parts, Function<Headers, int[]> header) {
        boolean complete = parts.stream().allMatch(part -> header.apply(part).length == part.size());
        return complete ? parts.stream().flatMapToInt(part -> Arrays.stream(header.apply(part))).toArray() : new int[0];
    }

    private static long[] longs(List<Headers> parts, Function<Headers, long[]> header) {
        boolean complete = parts.stream().allMatch(part -> header.apply(part).length == part.size());
        return complete
            ? parts.stream().flatMapToLong(part -> Arrays.stream(header.apply(part))).toArray()
            : new long[0];
    }

    private static boolean[] booleans(List<Headers> parts, Function<Headers, boolean[]> header) {
        boolean[] all = new boolean[parts.stream().mapToInt(Headers::size).sum()];
        int at = 0;
        for (Headers part : parts) {
            System.arraycopy(header.apply(part), 0, all, at, part.size());
            at += part.size();
        }
        return all;
    }

    private static boolean[] pick(boolean[] values, int[] positions) {
        boolean[] picked = new boolean[positions.length];
        for (int i = 0; i < picked.length; i++) {
            picked[i] = values[positions[i]];
        }
        return picked;
    }

    private static int[] pick(int[] values, int[] positions) {
        return values.length == 0 ? values : Arrays.stream(positions).map(position -> values[position]).toArray();
    }

    private static long[] pick(long[] values, int[] positions) {
        return values.length == 0 ? values : Arrays.stream(positions).mapToLong(position -> values[position]).toArray();
    }
}
