package io.github.rollserve;

import io.github.rollserve.v1.NamedTensor;
import java.lang.reflect.Array;
import java.nio.ByteBuffer;
import java.util.EnumMap;
import java.util.List;
import java.util.Map;
import java.util.stream.IntStream;
import java.util.stream.LongStream;

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
    static EpisodeBatch decode(io.github.rollserve.v1.EpisodeBatch message, long numRows) {
        Headers headers = headers(message, numRows);
        Map<ColumnField, Map<String, Tensor>> named = new EnumMap<>(ColumnField.class);
        for (ColumnField field : ColumnField.OF_TENSORS) {
            named.put(field, Tensors.named(field.wireName(), tensors(field.content.apply(message))));
        }
        Tensor rewards = named.get(ColumnField.REWARDS).get("");
        checkRewards("rewards", rewards);
        long numSteps = IntStream.of(headers.lengths()).asLongStream().sum();
        if (rewards.numRows() != numSteps) {
            throw Errors.malformed("rewards", numSteps + " steps, the sum of lengths", rewards.numRows());
        }
        for (io.github.rollserve.v1.FrameStack stack : message.getFrameStacksList()) {
            addFrames(stack, headers, named.get(ColumnField.OBSERVATIONS), named.get(ColumnField.LAST_OBSERVATIONS));
        }
        Map<ColumnField, Columns> columns = ColumnField.each(field -> new Columns(named.get(field)));
        columns.forEach((field, group) -> check(field, group, field.isPerStep ? rewards.numRows() : headers.size()));
        checkLeaves(columns.get(ColumnField.OBSERVATIONS), columns.get(ColumnField.LAST_OBSERVATIONS));
        return new EpisodeBatch(headers, columns, null);
    }

    /** Returns the tensors among the content of a message, of which a single one gets the empty name. */
    private static List<NamedTensor> tensors(List<?> content) {
        return content.stream()
            .map(each -> each instanceof io.github.rollserve.v1.Tensor tensor
                ? NamedTensor.newBuilder().setTensor(tensor).build()
                : (NamedTensor) each)
            .toList();
    }

    private static Headers headers(io.github.rollserve.v1.EpisodeBatch message, long numRows) {
        int size = message.getLengthsCount();
        if (size == 0) {
            throw Errors.malformed("lengths", "at least one segment", "none");
        }
        Headers headers = Headers.of(field -> {
            List<?> values = field.content.apply(message);
            if (!field.isOptional || !values.isEmpty()) {
                check(field.wireName(), values, size);
            }
            return array(field.kind.type, values);
        });
        checkLengths(headers.lengths());
        if (message.getReturnsBeforeCount() == 0) {
            headers = headers.with(ColumnField.RETURNS_BEFORE, unknownReturns(headers.firstSteps()));
        }
        if (numRows > 0) {
            headers = headers.with(ColumnField.ROW_INDICES, LongStream.of(headers.episodeIndices())
                .map(index -> Long.remainderUnsigned(index, numRows)).toArray());
        }
        return headers;
    }

    static int[] lengths(List<Integer> values) {
        int[] lengths = (int[]) array(int.class, values);
        checkLengths(lengths);
        return lengths;
    }

    private static void checkLengths(int[] lengths) {
        for (int i = 0; i < lengths.length; i++) {
            if (lengths[i] < 1) {
                throw Errors.malformed("lengths[" + i + "]", "1 to 2^31 - 1", Integer.toUnsignedString(lengths[i]));
            }
        }
    }

    /** Returns what is known of the sums of raw rewards before segments without being told: 0 before an episode. */
    private static double[] unknownReturns(long[] firstSteps) {
        return LongStream.of(firstSteps).mapToDouble(step -> step == 0 ? 0 : Double.NaN).toArray();
    }

    static void check(String field, List<?> values, int size) {
        if (values.size() != size) {
            throw Errors.malformed(field, size + " values", values.size());
        }
    }

    static long[] longs(List<Long> values) {
        return (long[]) array(long.class, values);
    }

    static boolean[] booleans(List<Boolean> values) {
        return (boolean[]) array(boolean.class, values);
    }

    private static Object array(Class<?> type, List<?> values) {
        Object array = Array.newInstance(type, values.size());
        for (int i = 0; i < values.size(); i++) {
            Array.set(array, i, values.get(i));
        }
        return array;
    }

    private static void addFrames(
        io.github.rollserve.v1.FrameStack stack, Headers headers, Map<String, Tensor> observations,
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
            boolean isMask = field.kind == ColumnKind.INFOS && columns.isMask(name);
            if (isMask && (tensor.dataType() != DataType.BOOL || tensor.numAxes() != 1)) {
                throw Errors.malformed(path, "a mask, with one truth value for each row", tensor);
            }
            if (field.kind == ColumnKind.NUMBERS && tensor.numAxes() != 1) {
                throw Errors.malformed(field.wireName(), "one axis", tensor);
            }
            if (field.kind == ColumnKind.REWARDS) {
                checkRewards(field.wireName(), tensor);
            }
        });
    }

    private static void checkRewards(String field, Tensor rewards) {
        if (rewards.dataType() != DataType.FLOAT64 || rewards.numAxes() != 1) {
            throw Errors.malformed(field, "float64 of shape (T)", rewards);
        }
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
