package io.github.rollserve;

/** The form of a column. */
enum ColumnKind {
    /** Tensors of the leaves of a space, which are the same in all messages of a stream. */
    LEAVES(null),
    /** Tensors by name, which can have gaps, and which messages can lack. */
    INFOS(null),
    /** A tensor with a number in each row. */
    NUMBERS(null),
    /** A tensor with a number of type float64 in each row. */
    REWARDS(null),
    /** A truth value for each segment. */
    BOOLEANS(boolean.class),
    /** An int for each segment. */
    INTS(int.class),
    /** A long for each segment. */
    LONGS(long.class),
    /** A double for each segment. */
    DOUBLES(double.class);

    /** The type of the elements of headers; null for tensors. */
    final Class<?> type;

    ColumnKind(Class<?> type) {
        this.type = type;
    }

    boolean isHeader() {
        return type != null;
    }
}
