package io.github.rollserve;

import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.function.UnaryOperator;

/**
 * Tensors by name, each with a row for each step or for each segment.
 *
 * <p>Observations and actions have one tensor for each leaf of their space. The leaf of a plain space, which is no Dict
 * or Tuple, has the empty name: {@link #plain()} returns it. Other leaves are named by their path from the root, joined
 * by {@code /}: the keys of Dicts and the positions in Tuples.
 *
 * <p>Infos and recurrent states can have gaps. The rows without a value are 0 then, and a mask, a tensor of truth
 * values of the same name with {@code _} in front, is false there.
 *
 * @param tensors the tensors by name, which nobody can change
 */
public record Columns(Map<String, Tensor> tensors) {
    /** Columns that have no tensors. */
    static final Columns EMPTY = new Columns(Map.of());

    /**
     * Takes over tensors.
     *
     * @param tensors the tensors by name, in an order that is kept
     */
    public Columns {
        tensors = Arguments.map("tensors", tensors);
    }

    /**
     * Returns columns that have the tensor of a plain space.
     *
     * @param tensor the only tensor
     * @return the columns
     */
    public static Columns plain(Tensor tensor) {
        return new Columns(Map.of("", Objects.requireNonNull(tensor, "tensor")));
    }

    /** {@return the only tensor of a plain space, which has the empty name} */
    public Tensor plain() {
        return get("");
    }

    /**
     * Returns a tensor.
     *
     * @param name the name of the tensor
     * @return the tensor
     * @throws InvalidArgumentException if there is none of that name; the message has the names
     */
    public Tensor get(String name) {
        Tensor tensor = tensors.get(Objects.requireNonNull(name, "name"));
        if (tensor == null) {
            throw Errors.invalid("name", "one of " + quoted(tensors.keySet()), quoted(List.of(name)));
        }
        return tensor;
    }

    /**
     * Says which rows of an info or a recurrent state have a value.
     *
     * @param name the name of the info
     * @return a truth value for each row; empty if all rows have a value
     */
    public Optional<boolean[]> mask(String name) {
        return Optional.ofNullable(tensors.get(maskName(Objects.requireNonNull(name, "name"))))
            .filter(mask -> mask.dataType() == DataType.BOOL)
            .map(Tensor::booleans);
    }

    /**
     * Reads the texts of an info. {@code text/NAME} has the texts of the info {@code NAME}, and {@code json/NAME} its
     * other values as JSON, with {@link EnvSpec#textInfoBytes()}.
     *
     * @param name the name of the column
     * @return a text for each row; empty for a row without one
     * @throws InvalidArgumentException if there is no column of that name, or it is not uint8 of shape (T, B)
     */
    public List<Optional<String>> texts(String name) {
        Tensor column = get(name);
        if (column.dataType() != DataType.UINT8 || column.numAxes() != 2) {
            throw Errors.invalid("name", "a column of texts, which is uint8 (T, B)", quoted(List.of(name)));
        }
        boolean[] mask = mask(name).orElse(null);
        List<Optional<String>> texts = new ArrayList<>();
        for (int row = 0; row < column.numRows(); row++) {
            boolean isThere = mask == null || mask[row];
            texts.add(isThere ? Optional.of(text(column.rows(row, row + 1).bytes())) : Optional.empty());
        }
        return Collections.unmodifiableList(texts);
    }

    /** Returns the text of bytes of UTF-8 with zeros behind it. */
    private static String text(ByteBuffer bytes) {
        int end = bytes.limit();
        while (end > 0 && bytes.get(end - 1) == 0) {
            end--;
        }
        return StandardCharsets.UTF_8.decode(bytes.limit(end)).toString();
    }

    Columns rows(int begin, int end) {
        return map(tensor -> tensor.rows(begin, end));
    }

    Columns gather(int[] rows) {
        return map(tensor -> tensor.gather(rows));
    }

    private Columns map(UnaryOperator<Tensor> function) {
        Map<String, Tensor> mapped = new LinkedHashMap<>();
        tensors.forEach((name, tensor) -> mapped.put(name, function.apply(tensor)));
        return new Columns(mapped);
    }

    static String maskName(String name) {
        return "_" + name;
    }

    /** Says whether a column is the mask of another one. */
    boolean isMask(String name) {
        return name.startsWith("_") && tensors.containsKey(name.substring(1));
    }

    /** Returns the columns without masks that are true in every row. */
    Columns withoutFullMasks() {
        Map<String, Tensor> kept = new LinkedHashMap<>();
        tensors.forEach((name, tensor) -> {
            if (!isMask(name) || !isTrue(tensor.booleans())) {
                kept.put(name, tensor);
            }
        });
        return new Columns(kept);
    }

    static boolean isTrue(boolean[] values) {
        for (boolean value : values) {
            if (!value) {
                return false;
            }
        }
        return true;
    }

    static String quoted(Iterable<String> names) {
        List<String> quoted = new ArrayList<>();
        names.forEach(name -> quoted.add('"' + name + '"'));
        return quoted.isEmpty() ? "none" : String.join(", ", quoted);
    }
}
