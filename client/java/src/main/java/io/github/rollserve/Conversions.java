package io.github.rollserve;

import java.nio.ByteBuffer;
import java.util.List;

/** Conversions of single elements between types that they fit into. */
final class Conversions {
    /** Magnitude up to which float64 holds every integer. */
    private static final long MAX_EXACT = 1L << 53;

    private Conversions() {}

    /**
     * Returns the type that holds each value of all tensors: numpy's result_type, but uint64 for signed integers beside
     * uint64.
     *
     * @throws ServerException a negative integer is beside uint64, or one beyond 2^53 beside floats
     */
    static DataType commonType(String field, List<Tensor> tensors) {
        DataType promoted = tensors.stream().map(Tensor::dataType).reduce(DataType::promoted).orElseThrow();
        boolean hasFloats = tensors.stream().anyMatch(tensor -> tensor.dataType().isFloating());
        DataType common = promoted.isFloating() && !hasFloats ? DataType.UINT64 : promoted;
        tensors.forEach(tensor -> checkFits(field, tensor, common));
        return common;
    }

    private static void checkFits(String field, Tensor tensor, DataType common) {
        DataType type = tensor.dataType();
        boolean holdsAll = common != DataType.UINT64 && common != DataType.FLOAT64;
        if (type == common || type.isFloating() || holdsAll) {
            return;
        }
        for (int i = 0; i < tensor.size(); i++) {
            long value = longAt(tensor, i);
            boolean isUnsigned = type == DataType.UINT64;
            boolean fits = common == DataType.FLOAT64
                ? value <= MAX_EXACT && value >= (isUnsigned ? 0 : -MAX_EXACT)
                : value >= 0;
            if (!fits) {
                String got = isUnsigned ? Long.toUnsignedString(value) : Long.toString(value);
                throw Errors.malformed(field, "numbers that " + common + " can hold", got);
            }
        }
    }

    /** Appends the elements of a tensor, as elements of a type that they fit into. */
    static void append(ByteBuffer target, DataType type, Tensor source) {
        if (source.dataType() == type) {
            source.appendTo(target);
            return;
        }
        int count = source.size();
        for (int i = 0; i < count; i++) {
            switch (type) {
                case FLOAT64 -> target.putDouble(doubleAt(source, i));
                case FLOAT32 -> target.putFloat((float) doubleAt(source, i));
                case FLOAT16 -> target.putShort(halfOf((int) longAt(source, i)));
                default -> putInteger(target, type.size(), longAt(source, i));
            }
        }
    }

    private static void putInteger(ByteBuffer target, int size, long value) {
        switch (size) {
            case 1 -> target.put((byte) value);
            case 2 -> target.putShort((short) value);
            case 4 -> target.putInt((int) value);
            default -> target.putLong(value);
        }
    }

    private static long longAt(Tensor tensor, int i) {
        ByteBuffer data = tensor.data();
        return switch (tensor.dataType()) {
            case BOOL, UINT8 -> data.get(i) & 0xff;
            case INT8 -> data.get(i);
            case INT16 -> data.getShort(2 * i);
            case UINT16 -> data.getShort(2 * i) & 0xffff;
            case INT32 -> data.getInt(4 * i);
            case UINT32 -> data.getInt(4 * i) & 0xffff_ffffL;
            case INT64, UINT64 -> data.getLong(8 * i);
            case FLOAT16, FLOAT32, FLOAT64 -> throw new IllegalArgumentException("not an integer: " + tensor);
        };
    }

    static double doubleAt(Tensor tensor, int i) {
        ByteBuffer data = tensor.data();
        return switch (tensor.dataType()) {
            case FLOAT16 -> halfToFloat(data.getShort(2 * i));
            case FLOAT32 -> data.getFloat(4 * i);
            case FLOAT64 -> data.getDouble(8 * i);
            case UINT64 -> unsignedToDouble(data.getLong(8 * i));
            default -> longAt(tensor, i);
        };
    }

    private static double unsignedToDouble(long value) {
        // Half of the number, rounded to odd, has the same leading digits and fits into a signed one.
        return value >= 0 ? value : 2.0 * ((value >>> 1) | (value & 1));
    }

    static float halfToFloat(short bits) {
        int sign = (bits & 0x8000) << 16;
        int exponent = bits >> 10 & 0x1f;
        int fraction = bits & 0x3ff;
        return switch (exponent) {
            case 0 -> Float.intBitsToFloat(Float.floatToRawIntBits(fraction * 0x1p-24f) | sign);
            case 0x1f -> Float.intBitsToFloat(sign | 0xff << 23 | fraction << 13);
            default -> Float.intBitsToFloat(sign | exponent + 127 - 15 << 23 | fraction << 13);
        };
    }

    /** Returns a whole number of up to eight bits in half precision, which has all of them. */
    private static short halfOf(int value) {
        if (value == 0) {
            return 0;
        }
        int bits = Float.floatToRawIntBits(value);
        return (short) (bits >>> 31 << 15 | (bits >>> 23 & 0xff) - 127 + 15 << 10 | bits >>> 13 & 0x3ff);
    }
}
