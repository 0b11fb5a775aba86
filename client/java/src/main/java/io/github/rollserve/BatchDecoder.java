package io.github.rollserve;

import java.nio.ByteBuffer;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import rollserve.v1.EpisodeBatchOuterClass;

/**
 * Reads the batches of a stream. Their columns share the memory of the message, except for compressed ones; stacks of
 * frames are written when they are first read or joined.
 */
final class BatchDecoder {
    private BatchDecoder() {}

    /**
     * Reads a batch.
     *
     * @param message the message
     * @param numRows the number of rows of all workers of a fragment call, otherwise 0
     * @return the batch
     * @throws ServerException if the message violates the wire contract
     */
    static EpisodeBatch decode(EpisodeBatchOuterClass.EpisodeBatch message, long numRows) {
        Headers headers = headers(message, numRows);
        Tensor rewards = Tensors.column("rewards", message.getRewards());
        if (rewards.dataType() != DataType.FLOAT64 || rewards.numAxes() != 1) {
            throw Errors.malformed("rewards", "float64 of shape (T)", rewards);
        }
        long numSteps = IntStream.of(headers.lengths()).asLongStream().sum();
        if (rewards.numRows() != numSteps) {
            throw Errors.malformed("rewards", numSteps + " steps, the sum of lengths", rewards.numRows());
        }
        Map<ColumnField, Map<String, Tensor>> named = new EnumMap<>(ColumnField.class);
        for (ColumnField field : ColumnField.values()) {
            named.put(field, Tensors.named(field.wireName(), field.of(message)));
        }
        for (EpisodeBatchOuterClass.FrameStack stack : message.getFrameStacksList()) {
            addFrames(stack, headers, named.get(ColumnField.OBSERVATIONS), named.get(ColumnField.LAST_OBSERVATIONS));
        }
        Map<ColumnField, Columns> columns = ColumnField.each(field -> new Columns(named.get(field)));
        columns.forEach((field, group) -> check(field, group, field.isPerStep ? rewards.numRows() : headers.size()));
        checkLeaves(columns.get(ColumnField.OBSERVATIONS), columns.get(ColumnField.LAST_OBSERVATIONS));
        columns.get(ColumnField.RAW_REWARDS).tensors().values().forEach(raw -> {
            if (raw.dataType() != DataType.FLOAT64 || raw.numAxes() != 1) {
                throw Errors.malformed("raw_rewards", "float64 of shape (T)", raw);
            }
        });
        columns.get(ColumnField.LAST_VALUES).tensors().values().forEach(values -> {
            if (values.numAxes() != 1) {
                throw Errors.malformed("last_values", "one axis", values);
            }
        });
        return new EpisodeBatch(headers, columns, rewards, null);
    }

    private static Headers headers(EpisodeBatchOuterClass.EpisodeBatch message, long numRows) {
        int size = message.getLengthsCount();
        if (size == 0) {
            throw Errors.malformed("lengths", "at least one segment", "none");
        }
        check("terminated", message.getTerminatedList(), size);
        check("truncated", message.getTruncatedList(), size);
        check("policy_versions", message.getPolicyVersionsList(), size);
        check("episode_indices", message.getEpisodeIndicesList(), size);
        check("first_steps", message.getFirstStepsList(), size);
        check("environment_seeds", message.getEnvironmentSeedsList(), size);
        if (message.getReturnsBeforeCount() > 0) {
            check("returns_before", message.getReturnsBeforeList(), size);
        }
        if (message.getWorkerIndicesCount() > 0) {
            check("worker_indices", message.getWorkerIndicesList(), size);
        }
        return new Headers(
            lengths(message.getLengthsList()),
            booleans(message.getTerminatedList()),
            booleans(message.getTruncatedList()),
            longs(message.getPolicyVersionsList()),
            longs(message.getEpisodeIndicesList()),
            longs(message.getFirstStepsList()),
            returnsBefore(message),
            ints(message.getEnvironmentSeedsList()),
            ints(message.getWorkerIndicesList()),
            numRows == 0
                ? new long[0]
                : message.getEpisodeIndicesList().stream()
                    .mapToLong(index -> Long.remainderUnsigned(index, numRows)).toArray());
    }

    static int[] lengths(List<Integer> values) {
        int[] lengths = ints(values);
        for (int i = 0; i < lengths.length; i++) {
            if (lengths[i] < 1) {
                throw Errors.malformed("lengths[" + i + "]", "1 to 2^31 - 1", Integer.toUnsignedString(lengths[i]));
            }
        }
        return lengths;
    }

    /** Returns the sums of raw rewards before segments; where the server does not tell, NaN within an episode. */
    private static double[] returnsBefore(EpisodeBatchOuterClass.EpisodeBatch message) {
        return message.getReturnsBeforeCount() > 0
            ? message.getReturnsBeforeList().stream().mapToDouble(Double::doubleValue).toArray()
            : message.getFirstStepsList().stream().mapToDouble(step -> step == 0 ? 0 : Double.NaN).toArray();
    }

    static void check(String field, List<?> values, int size) {
        if (values.size() != size) {
            throw Errors.malformed(field, size + " values", values.size());
        }
    }

    private static int[] ints(List<Integer> values) {
        return values.stream().mapToInt(Integer::intValue).toArray();
    }

    static long[] longs(List<Long> values) {
        return values.stream().mapToLong(Long::longValue).toArray();
    }

    static boolean[] booleans(List<Boolean> values) {
        boolean[] array = new boolean[values.size()];
        for (int i = 0; i < array.length; i++) {
            array[i] = values.get(i);
        }
        return array;
    }

    private static void addFrames(
        EpisodeBatchOuterClass.FrameStack stack, Headers headers, Map<String, Tensor> observations,
        Map<String, Tensor> lastObservations) {
        String field = "frame_stacks['" + stack.getName() + "']";
        if (observations.containsKey(stack.getName()) || lastObservations.containsKey(stack.getName())) {
            throw Errors.malformed(field, "a leaf that observations lack", "one of them");
        }
        int numFrames = stack.getFrameCount();
        Tensor frames = Tensors.column(field + ".frames", stack.getFrames());
        int numSteps = headers.numSteps();
        if (numFrames < 2) {
            throw Errors.malformed(field + ".frame_count", "at least 2", Integer.toUnsignedString(numFrames));
        }
        long expected = numSteps + (long) headers.size() * numFrames;
        if (frames.numAxes() == 0 || frames.numRows() != expected) {
            throw Errors.malformed(field + ".frames", expected + " frames", frames);
        }
        long stackBytes = (long) frames.rowSize() * frames.dataType().size() * numFrames;
        if ((numSteps + headers.size()) * stackBytes > Decompression.MAX_RAW_BYTES) {
            throw Errors.malformed(field + ".frames", "at most 256 MiB of observations", frames);
        }
        observations.put(stack.getName(), unstacked(frames, numFrames, headers, false));
        lastObservations.put(stack.getName(), unstacked(frames, numFrames, headers, true));
    }

    /** Returns the observations (T, K, *F), or the last ones (N, K, *F), of frames that came once each. */
    private static Tensor unstacked(Tensor frames, int numFrames, Headers headers, boolean isLast) {
        int[] frame = frames.rowShape();
        int[] shape = new int[frame.length + 2];
        shape[0] = isLast ? headers.size() : headers.numSteps();
        shape[1] = numFrames;
        System.arraycopy(frame, 0, shape, 2, frame.length);
        ByteBuffer data = frames.bytes();
        int frameBytes = frames.rowSize() * frames.dataType().size();
        FrameStack stack = new FrameStack(data, frameBytes, numFrames, headers.lengths().clone(), isLast);
        return Tensor.ofFrames(frames.dataType(), shape, stack);
    }

    private static void check(ColumnField field, Columns columns, int numRows) {
        columns.tensors().forEach((name, tensor) -> {
            String path = field.wireName() + "['" + name + "']";
            if (tensor.numAxes() == 0 || tensor.numRows() != numRows) {
                throw Errors.malformed(path, numRows + " rows", tensor);
            }
            boolean isMask = field.hasGaps && columns.isMask(name);
            if (isMask && (tensor.dataType() != DataType.BOOL || tensor.numAxes() != 1)) {
                throw Errors.malformed(path, "a mask, with one truth value for each row", tensor);
            }
        });
    }

    private static void checkLeaves(Columns observations, Columns lastObservations) {
        if (!observations.tensors().keySet().equals(lastObservations.tensors().keySet())) {
            String expected = "leaves " + Columns.quoted(observations.tensors().keySet());
            throw Errors.malformed(
                "last_observations", expected, Columns.quoted(lastObservations.tensors().keySet()));
        }
        observations.tensors().forEach((name, model) -> {
            Tensor last = lastObservations.get(name);
            if (last.dataType() != model.dataType() || !last.hasRowsLike(model)) {
                throw Errors.malformed("last_observations['" + name + "']", "rows as in " + model, last);
            }
        });
    }
}
