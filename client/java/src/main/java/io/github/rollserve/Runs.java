package io.github.rollserve;

import java.util.Arrays;
import java.util.function.IntPredicate;
import java.util.stream.IntStream;

/**
 * Runs of consecutive elements that belong together.
 *
 * @param begins the position of the first element of each run
 * @param ends the position of its last element
 */
record Runs(int[] begins, int[] ends) {
    /** Returns the runs of some elements, given whether each but the first belongs to the one before it. */
    static Runs of(int size, IntPredicate follows) {
        int[] begins = IntStream.range(0, size).filter(i -> i == 0 || !follows.test(i)).toArray();
        int[] ends = IntStream.range(1, begins.length + 1)
            .map(next -> (next < begins.length ? begins[next] : size) - 1)
            .toArray();
        return new Runs(begins, ends);
    }

    int size() {
        return begins.length;
    }

    int[] sums(int[] values) {
        return IntStream.range(0, size())
            .map(run -> Arrays.stream(values, begins[run], ends[run] + 1).reduce(0, Math::addExact))
            .toArray();
    }

    long[] sums(long[] values) {
        return IntStream.range(0, size())
            .mapToLong(run -> Arrays.stream(values, begins[run], ends[run] + 1).sum())
            .toArray();
    }
}
