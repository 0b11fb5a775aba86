package io.github.rollserve;

import java.lang.reflect.Array;
import java.util.Arrays;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.function.BiFunction;
import java.util.function.Function;

/**
 * The headers of a batch, each an array with a value for each of N segments; optional ones can be empty. {@link
 * EpisodeBatch} describes them.
 */
final class Headers {
    private final Map<ColumnField, Object> arrays;

    private Headers(Map<ColumnField, Object> arrays) {
        this.arrays = arrays;
    }

    /** Returns the headers that a function makes. */
    static Headers of(Function<ColumnField, Object> function) {
        Map<ColumnField, Object> arrays = new EnumMap<>(ColumnField.class);
        for (ColumnField field : ColumnField.values()) {
            if (field.kind.isHeader()) {
                arrays.put(field, function.apply(field));
            }
        }
        return new Headers(arrays);
    }

    /** Returns these headers with another array in the place of one. */
    Headers with(ColumnField field, Object array) {
        return of(each -> each == field ? array : arrays.get(each));
    }

    Object array(ColumnField field) {
        return arrays.get(field);
    }

    int[] lengths() {
        return (int[]) array(ColumnField.LENGTHS);
    }

    boolean[] terminated() {
        return (boolean[]) array(ColumnField.TERMINATED);
    }

    boolean[] truncated() {
        return (boolean[]) array(ColumnField.TRUNCATED);
    }

    long[] policyVersions() {
        return (long[]) array(ColumnField.POLICY_VERSIONS);
    }

    long[] episodeIndices() {
        return (long[]) array(ColumnField.EPISODE_INDICES);
    }

    long[] firstSteps() {
        return (long[]) array(ColumnField.FIRST_STEPS);
    }

    double[] returnsBefore() {
        return (double[]) array(ColumnField.RETURNS_BEFORE);
    }

    int size() {
        return lengths().length;
    }

    int numSteps() {
        return Arrays.stream(lengths()).reduce(0, Math::addExact);
    }

    boolean ended(int segment) {
        return terminated()[segment] || truncated()[segment];
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
        return episodeIndices()[segment] == other.episodeIndices()[before]
            && policyVersions()[segment] == other.policyVersions()[before]
            && firstSteps()[segment] == other.firstSteps()[before] + other.lengths()[before]
            && !other.ended(before);
    }

    Headers slice(int begin, int end) {
        return map((field, array) -> {
            Object part = newArray(field, end - begin);
            System.arraycopy(array, begin, part, 0, end - begin);
            return part;
        });
    }

    /** Returns the headers of runs of consecutive segments, each as one segment. */
    Headers merge(Runs runs) {
        Headers merged = map((field, array) -> {
            int[] positions = field.isLast ? runs.ends() : runs.begins();
            Object picked = newArray(field, positions.length);
            for (int i = 0; i < positions.length; i++) {
                System.arraycopy(array, positions[i], picked, i, 1);
            }
            return picked;
        });
        return merged.with(ColumnField.LENGTHS, runs.sums(lengths()));
    }

    /** Returns the headers of all parts. Optional ones are empty if a part lacks them. */
    static Headers concatenate(List<Headers> parts) {
        int size = parts.stream().mapToInt(Headers::size).sum();
        return of(field -> {
            if (parts.stream().anyMatch(part -> part.lacks(field))) {
                return newArray(field, 0);
            }
            Object joined = newArray(field, size);
            int at = 0;
            for (Headers part : parts) {
                System.arraycopy(part.array(field), 0, joined, at, part.size());
                at += part.size();
            }
            return joined;
        });
    }

    private boolean lacks(ColumnField field) {
        return Array.getLength(array(field)) < size();
    }

    /** Returns what a function makes of each array that is there. */
    private Headers map(BiFunction<ColumnField, Object, Object> function) {
        return of(field -> lacks(field) ? array(field) : function.apply(field, array(field)));
    }

    private static Object newArray(ColumnField field, int length) {
        return Array.newInstance(field.kind.type, length);
    }
}
