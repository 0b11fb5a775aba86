package io.github.rollserve;

import java.util.Locale;
import java.util.Optional;

/** The type of the elements of a tensor. The number of a constant on the wire is its position, from 1. */
public enum DataType {
    /** Truth values, one byte each. */
    BOOL(Kind.TRUTH, 1),
    /** Signed integers of 8 bits. */
    INT8(Kind.SIGNED, 1),
    /** Signed integers of 16 bits. */
    INT16(Kind.SIGNED, 2),
    /** Signed integers of 32 bits. */
    INT32(Kind.SIGNED, 4),
    /** Signed integers of 64 bits. */
    INT64(Kind.SIGNED, 8),
    /** Unsigned integers of 8 bits. */
    UINT8(Kind.UNSIGNED, 1),
    /** Unsigned integers of 16 bits. */
    UINT16(Kind.UNSIGNED, 2),
    /** Unsigned integers of 32 bits. */
    UINT32(Kind.UNSIGNED, 4),
    /** Unsigned integers of 64 bits. */
    UINT64(Kind.UNSIGNED, 8),
    /** Numbers of IEEE 754 half precision, whose bits Java holds in a {@code short}. */
    FLOAT16(Kind.FLOATING, 2),
    /** Numbers of single precision. */
    FLOAT32(Kind.FLOATING, 4),
    /** Numbers of double precision. */
    FLOAT64(Kind.FLOATING, 8);

    /** The kinds of numbers, in the order in which one fits into the next. */
    enum Kind { TRUTH, UNSIGNED, SIGNED, FLOATING }

    private final Kind kind;
    private final int size;

    DataType(Kind kind, int size) {
        this.kind = kind;
        this.size = size;
    }

    /** {@return the size of an element in bytes} */
    public int size() {
        return size;
    }

    /** {@return the type's name, as numpy has it, such as {@code float32}} */
    @Override
    public String toString() {
        return name().toLowerCase(Locale.ROOT);
    }

    boolean isFloating() {
        return kind == Kind.FLOATING;
    }

    io.github.rollserve.v1.DataType toWire() {
        return io.github.rollserve.v1.DataType.forNumber(ordinal() + 1);
    }

    static Optional<DataType> fromWire(int number) {
        return number < 1 || number > values().length ? Optional.empty() : Optional.of(values()[number - 1]);
    }

    /**
     * Returns the smallest type that the values of two types fit into. As in numpy, float64 counts as one for integers
     * of 64 bits.
     */
    static DataType promoted(DataType a, DataType b) {
        DataType low = a.kind.compareTo(b.kind) <= 0 ? a : b;
        DataType high = low == a ? b : a;
        if (low.kind == Kind.TRUTH) {
            return high;
        }
        // Of two kinds, the higher one needs room for a sign, or for all digits in the fraction of a float.
        int lowSize = low.kind == high.kind ? low.size : 2 * low.size;
        int bytes = Math.max(lowSize, high.size);
        for (DataType type : values()) {
            if (type.kind == high.kind && type.size == bytes) {
                return type;
            }
        }
        return FLOAT64;
    }
}
