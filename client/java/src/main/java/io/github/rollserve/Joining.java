package io.github.rollserve;

import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.LinkedHashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.function.ToIntFunction;

/** Makes one batch of several: each value is copied once. */
final class Joining {
    private Joining() {}

    static EpisodeBatch concatenate(List<EpisodeBatch> batches) {
        if (batches.isEmpty()) {
            throw Errors.invalid("batches", "at least one", "none");
        }
        if (batches.size() == 1) {
            EpisodeBatch single = batches.get(0);
            return single.withAccount(null).withColumns(
                ColumnField.each(field -> withNeededMasks(field, single.columns(field))));
        }
        Map<ColumnField, Columns> columns = ColumnField.each(field -> {
            List<Columns> parts = parts(batches, field);
            if (field.kind == ColumnKind.LEAVES || field.kind == ColumnKind.REWARDS) {
                return concatenateColumns(field.wireName(), parts);
            }
            ToIntFunction<EpisodeBatch> numRows = field.isPerStep ? EpisodeBatch::numSteps : EpisodeBatch::numSegments;
            return concatenateInfos(field.wireName(), parts, batches.stream().mapToInt(numRows).toArray());
        });
        Headers headers = Headers.concatenate(batches.stream().map(EpisodeBatch::headers).toList());
        return new EpisodeBatch(headers, columns, null);
    }

    /**
     * Returns the columns of all batches. Where one lacks rewards or actions of the environment's own and another has
     * them, they are the agent's. Last values have no such original, so that no batch keeps them if one lacks them.
     */
    private static List<Columns> parts(List<EpisodeBatch> batches, ColumnField field) {
        List<Columns> parts = batches.stream().map(batch -> batch.columns(field)).toList();
        boolean isInSome = parts.stream().anyMatch(part -> !part.tensors().isEmpty());
        boolean isInAll = parts.stream().noneMatch(part -> part.tensors().isEmpty());
        if (!field.isOptional || !isInSome || isInAll) {
            return parts;
        }
        if (field.original == null) {
            return Collections.nCopies(batches.size(), Columns.EMPTY);
        }
        return batches.stream()
            .map(batch -> batch.columns(batch.columns(field).tensors().isEmpty() ? field.original : field))
            .toList();
    }

    /** Returns infos without masks that are true in every row, and other columns as they are. */
    private static Columns withNeededMasks(ColumnField field, Columns columns) {
        return field.kind == ColumnKind.INFOS ? columns.withoutFullMasks() : columns;
    }

    static EpisodeBatch joined(EpisodeBatch batch) {
        Headers headers = batch.headers();
        return merged(batch, Runs.of(headers.size(), i -> headers.follows(i, headers, i - 1)));
    }

    /** Returns a batch with one segment for each run of its segments. */
    static EpisodeBatch merged(EpisodeBatch batch, Runs runs) {
        if (runs.size() == batch.numSegments()) {
            return batch;
        }
        Map<ColumnField, Columns> columns = ColumnField.each(field -> {
            if (field.isPerStep) {
                return batch.columns(field);
            }
            Columns rows = batch.columns(field).gather(field.isLast ? runs.ends() : runs.begins());
            return withNeededMasks(field, rows); // segments that had gaps may have been joined to others
        });
        return new EpisodeBatch(batch.headers().merge(runs), columns, batch.account().orElse(null));
    }

    /** Returns the columns of all parts, which have the same names, types and shapes of rows. */
    static Columns concatenateColumns(String field, List<Columns> parts) {
        Map<String, Tensor> joined = new LinkedHashMap<>();
        Set<String> names = parts.get(0).tensors().keySet();
        for (Columns part : parts) {
            if (!part.tensors().keySet().equals(names)) {
                String expected = "columns " + Columns.quoted(names) + " in each message";
                throw Errors.malformed(field, expected, Columns.quoted(part.tensors().keySet()));
            }
        }
        parts.get(0).tensors().forEach((name, first) -> {
            List<Tensor> tensors = parts.stream().map(part -> part.tensors().get(name)).toList();
            for (Tensor tensor : tensors) {
                if (tensor.dataType() != first.dataType() || !tensor.hasRowsLike(first)) {
                    throw Errors.malformed(field + "['" + name + "']", "rows as in " + first, tensor);
                }
            }
            joined.put(name, concatenateTensors(tensors));
        });
        return new Columns(joined);
    }

    /** Returns the rows of tensors of one type and shape of rows, in a new tensor. */
    static Tensor concatenateTensors(List<Tensor> tensors) {
        Tensor first = tensors.get(0);
        long numRows = tensors.stream().mapToLong(Tensor::numRows).sum();
        ByteBuffer target = Tensor.allocate(first.dataType(), numRows * first.rowSize());
        tensors.forEach(tensor -> tensor.appendTo(target));
        return Tensor.wrap(first.dataType(), withRows(numRows, first), target.flip());
    }

    private static int[] withRows(long numRows, Tensor model) {
        int[] shape = model.shape();
        shape[0] = Math.toIntExact(numRows);
        return shape;
    }

    /**
     * Returns the infos of all parts. An info that a part lacks is a gap of the part's length. An info of several types
     * gets one that holds each value.
     */
    static Columns concatenateInfos(String field, List<Columns> parts, int[] lengths) {
        Set<String> names = new LinkedHashSet<>();
        for (Columns part : parts) {
            part.tensors().keySet().stream().filter(name -> !part.isMask(name)).forEach(names::add);
        }
        Map<String, Tensor> joined = new LinkedHashMap<>();
        for (String name : names) {
            List<Tensor> tensors = parts.stream()
                .map(part -> part.tensors().get(name))
                .filter(tensor -> tensor != null)
                .toList();
            Tensor first = tensors.get(0);
            for (Tensor tensor : tensors) {
                if (!tensor.hasRowsLike(first)) {
                    throw Errors.malformed(field + "['" + name + "']", "rows as in " + first, tensor);
                }
            }
            DataType type = Conversions.commonType(field + "['" + name + "']", tensors);
            joined.put(name, concatenateInfo(name, parts, lengths, type, first));
            boolean[] mask = concatenateMasks(name, parts, lengths);
            if (!Columns.isTrue(mask)) {
                joined.put(Columns.maskName(name), Tensor.of(mask));
            }
        }
        return new Columns(joined);
    }

    private static Tensor concatenateInfo(
        String name, List<Columns> parts, int[] lengths, DataType type, Tensor model) {
        long numRows = Arrays.stream(lengths).asLongStream().sum();
        ByteBuffer target = Tensor.allocate(type, numRows * model.rowSize());
        int rowBytes = model.rowSize() * type.size();
        for (int i = 0; i < lengths.length; i++) {
            Tensor tensor = parts.get(i).tensors().get(name);
            if (tensor == null) {
                target.position(target.position() + lengths[i] * rowBytes);
            } else {
                Conversions.append(target, type, tensor);
            }
        }
        return Tensor.wrap(type, withRows(numRows, model), target.flip());
    }

    private static boolean[] concatenateMasks(String name, List<Columns> parts, int[] lengths) {
        boolean[] joined = new boolean[Arrays.stream(lengths).sum()];
        int at = 0;
        for (int i = 0; i < lengths.length; i++) {
            if (parts.get(i).tensors().containsKey(name)) {
                Arrays.fill(joined, at, at + lengths[i], true);
                int begin = at;
                parts.get(i).mask(name).ifPresent(mask -> System.arraycopy(mask, 0, joined, begin, mask.length));
            }
            at += lengths[i];
        }
        return joined;
    }

    /**
     * Returns the batches of a stream as one batch of whole episodes or fragments, with the account, which has to count
     * the same episodes and steps.
     */
    static EpisodeBatch joinedWithAccount(
        List<EpisodeBatch> batches, io.github.rollserve.v1.Account message, int numResumptions) {
        if (batches.isEmpty()) {
            throw Errors.malformed("the stream had no batch", null);
        }
        Map<String, Long> dropped = new HashMap<>(message.getDroppedInfosMap());
        EpisodeBatch batch = concatenate(withOneShape(batches, dropped)).joined();
        checkAccount(message, batch.headers().numEnded(), batch.numSteps());
        io.github.rollserve.v1.Account.Builder account = message.toBuilder().putAllDroppedInfos(dropped);
        return batch.withAccount(Account.from(account.build(), numResumptions));
    }

    /** Returns the batches of a round as one batch. */
    static EpisodeBatch joinedRound(List<EpisodeBatch> batches) {
        if (batches.isEmpty()) {
            throw Errors.malformed("the round had no batch", null);
        }
        return concatenate(withOneShape(batches, new HashMap<>())).joined();
    }

    /** Returns the batches of a stream of many agents as one batch, with the account, which is checked alike. */
    static MultiAgentBatch joinedManyWithAccount(
        List<MultiAgentBatch> batches, io.github.rollserve.v1.Account message, int numResumptions) {
        if (batches.isEmpty()) {
            throw Errors.malformed("the stream had no batch", null);
        }
        MultiAgentBatch batch = MultiAgentBatch.concatenate(batches).joined();
        checkAccount(message, batch.parts().numEnded(), batch.numSteps());
        return batch.withAccount(Account.from(message, numResumptions));
    }

    private static void checkAccount(io.github.rollserve.v1.Account message, int numEnded, int numSteps) {
        String got = numEnded + " in " + numSteps;
        String expected = message.getEpisodeCount() + " in " + message.getStepCount();
        if (!got.equals(expected)) {
            throw Errors.malformed("account", "episodes that end, in a number of steps, " + expected, got);
        }
    }

    /**
     * Returns the batches without the environment's infos whose shape is not the first one of their name, or that no
     * common type holds, and counts the values that are dropped. A server does not mix shapes within a message, so
     * which values are kept does not depend on how episodes are spread over messages.
     */
    private static List<EpisodeBatch> withOneShape(List<EpisodeBatch> batches, Map<String, Long> dropped) {
        Map<String, Tensor> models = new HashMap<>();
        Set<String> misfits = misfits(batches);
        List<EpisodeBatch> kept = new ArrayList<>();
        EpisodeBatch before = null;
        for (EpisodeBatch batch : batches) {
            // The infos of an episode that goes on have been counted with its first segment.
            boolean goesOn = before != null && batch.headers().follows(0, before.headers(), before.numSegments() - 1);
            kept.add(batch.withColumns(ColumnField.each(field -> switch (field) {
                case ENVIRONMENT_INFOS -> withFirstShapes(field, batch.columns(field), models, misfits, dropped, 0);
                case EPISODE_INFOS ->
                    withFirstShapes(field, batch.columns(field), models, misfits, dropped, goesOn ? 1 : 0);
                default -> batch.columns(field);
            })));
            before = batch;
        }
        return kept;
    }

    /** Returns the fields and names of the environment's infos that no common type holds. */
    private static Set<String> misfits(List<EpisodeBatch> batches) {
        Map<String, List<Tensor>> tensors = new HashMap<>();
        for (EpisodeBatch batch : batches) {
            for (ColumnField field : List.of(ColumnField.ENVIRONMENT_INFOS, ColumnField.EPISODE_INFOS)) {
                batch.columns(field).tensors().forEach((name, tensor) ->
                    tensors.computeIfAbsent(field + "/" + name, key -> new ArrayList<>()).add(tensor));
            }
        }
        Set<String> misfits = new HashSet<>();
        tensors.forEach((key, each) -> {
            try {
                Conversions.commonType(key, each);
            } catch (ServerException misfit) {
                misfits.add(key);
            }
        });
        return misfits;
    }

    private static Columns withFirstShapes(
        ColumnField field,
        Columns infos,
        Map<String, Tensor> models,
        Set<String> misfits,
        Map<String, Long> dropped,
        int firstRow) {
        Map<String, Tensor> kept = new LinkedHashMap<>();
        infos.tensors().forEach((name, tensor) -> {
            if (infos.isMask(name)) {
                return;
            }
            String key = field + "/" + name;
            Tensor model = models.computeIfAbsent(key, absent -> tensor);
            String maskName = Columns.maskName(name);
            if (tensor.hasRowsLike(model) && !misfits.contains(key)) {
                kept.put(name, tensor);
                infos.mask(name).ifPresent(mask -> kept.put(maskName, infos.tensors().get(maskName)));
                return;
            }
            boolean[] mask = infos.mask(name).orElse(null);
            for (int row = firstRow; row < tensor.numRows(); row++) {
                if (mask == null || mask[row]) {
                    dropped.merge(name, 1L, Long::sum);
                }
            }
        });
        return new Columns(kept);
    }
}
