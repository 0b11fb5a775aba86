package io.github.rollserve;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.nio.DoubleBuffer;
import java.nio.FloatBuffer;
import java.nio.IntBuffer;
import java.nio.LongBuffer;
import java.nio.ShortBuffer;
import java.util.Arrays;
import java.util.Objects;

/**
 * A dense array of numbers or truth values in C order: the last axis varies fastest. Immutable.
 *
 * <p>Methods such as {@link #floats()} return the elements as read-only views without a copy. Copy them to change them:
 * {@code tensor.floats().get(array)}.
 */
public final class Tensor {
    private final DataType dataType;
    private final int[] shape;
    private final FrameStack frames; // the source of the elements until they are first read; null for others
    private ByteBuffer data; // read-only, little endian

    private Tensor(DataType dataType, int[] shape, ByteBuffer data, FrameStack frames) {
        this.dataType = dataType;
        this.shape = shape;
        this.data = data == null ? null : data.asReadOnlyBuffer().order(ByteOrder.LITTLE_ENDIAN);
        this.frames = frames;
    }

    /** Wraps little endian elements, from the position of a buffer to its limit, which nobody may change any more. */
    static Tensor wrap(DataType dataType, int[] shape, ByteBuffer data) {
        return new Tensor(dataType, shape, data.slice(), null);
    }

    /** Returns a tensor whose elements are written when they are first read or joined. */
    static Tensor ofFrames(DataType dataType, int[] shape, FrameStack frames) {
        return new Tensor(dataType, shape, null, frames);
    }

    /**
     * Returns a float32 tensor with copies of values.
     *
     * @param values the elements
     * @param shape the size of each axis; without one, there is one axis with all values
     * @return the tensor
     * @throws InvalidArgumentException if the shape does not fit the number of values
     */
    public static Tensor of(float[] values, int... shape) {
        ByteBuffer data = allocate(DataType.FLOAT32, Objects.requireNonNull(values, "values").length);
        data.asFloatBuffer().put(values);
        return checked(DataType.FLOAT32, values.length, shape, data);
    }

    /**
     * Returns a float64 tensor with copies of values; see {@link #of(float[], int...)}.
     *
     * @param values the elements
     * @param shape the size of each axis
     * @return the tensor
     */
    public static Tensor of(double[] values, int... shape) {
        ByteBuffer data = allocate(DataType.FLOAT64, Objects.requireNonNull(values, "values").length);
        data.asDoubleBuffer().put(values);
        return checked(DataType.FLOAT64, values.length, shape, data);
    }

    /**
     * Returns an int64 tensor with copies of values; see {@link #of(float[], int...)}.
     *
     * @param values the elements
     * @param shape the size of each axis
     * @return the tensor
     */
    public static Tensor of(long[] values, int... shape) {
        ByteBuffer data = allocate(DataType.INT64, Objects.requireNonNull(values, "values").length);
        data.asLongBuffer().put(values);
        return checked(DataType.INT64, values.length, shape, data);
    }

    /**
     * Returns an int32 tensor with copies of values; see {@link #of(float[], int...)}.
     *
     * @param values the elements
     * @param shape the size of each axis
     * @return the tensor
     */
    public static Tensor of(int[] values, int... shape) {
        ByteBuffer data = allocate(DataType.INT32, Objects.requireNonNull(values, "values").length);
        data.asIntBuffer().put(values);
        return checked(DataType.INT32, values.length, shape, data);
    }

    /**
     * Returns a tensor of truth values with copies of values; see {@link #of(float[], int...)}.
     *
     * @param values the elements
     * @param shape the size of each axis
     * @return the tensor
     */
    public static Tensor of(boolean[] values, int... shape) {
        ByteBuffer data = allocate(DataType.BOOL, Objects.requireNonNull(values, "values").length);
        for (boolean value : values) {
            data.put((byte) (value ? 1 : 0));
        }
        return checked(DataType.BOOL, values.length, shape, data.flip());
    }

    /**
     * Returns a tensor of any type with a copy of its elements.
     *
     * @param dataType the type of the elements
     * @param elements the elements, little endian, from the position of the buffer to its limit
     * @param shape the size of each axis
     * @return the tensor
     * @throws InvalidArgumentException if the shape does not fit the number of bytes, or a truth value is not 0 or 1
     */
    public static Tensor of(DataType dataType, ByteBuffer elements, int... shape) {
        Objects.requireNonNull(dataType, "dataType");
        ByteBuffer source = Objects.requireNonNull(elements, "elements").duplicate();
        if (source.remaining() % dataType.size() != 0) {
            throw Errors.invalid("elements", "whole elements of " + dataType, source.remaining() + " bytes");
        }
        if (dataType == DataType.BOOL && !areTruthValues(source)) {
            throw Errors.invalid("elements", "truth values of 0 or 1", "another byte");
        }
        int count = source.remaining() / dataType.size();
        ByteBuffer data = allocate(dataType, count).put(source).flip();
        return checked(dataType, count, shape, data);
    }

    /**
     * Returns an int64 tensor without axes.
     *
     * @param value the element
     * @return the tensor
     */
    public static Tensor scalar(long value) {
        ByteBuffer data = allocate(DataType.INT64, 1);
        return wrap(DataType.INT64, new int[0], data.putLong(0, value));
    }

    /**
     * Returns a float64 tensor without axes.
     *
     * @param value the element
     * @return the tensor
     */
    public static Tensor scalar(double value) {
        ByteBuffer data = allocate(DataType.FLOAT64, 1);
        return wrap(DataType.FLOAT64, new int[0], data.putDouble(0, value));
    }

    private static Tensor checked(DataType dataType, int count, int[] shape, ByteBuffer data) {
        int[] sizes = Objects.requireNonNull(shape, "shape").length == 0 ? new int[] {count} : shape.clone();
        if (Arrays.stream(sizes).anyMatch(size -> size < 0) || product(sizes) != count) {
            throw Errors.invalid("shape", "a shape for " + count + " elements", Arrays.toString(sizes));
        }
        return wrap(dataType, sizes, data);
    }

    /** {@return the type of the elements} */
    public DataType dataType() {
        return dataType;
    }

    /** {@return the size of each axis, outermost first, in a new array; empty for a scalar} */
    public int[] shape() {
        return shape.clone();
    }

    /** {@return the size of the first axis, the number of rows; 1 for a scalar} */
    public int numRows() {
        return shape.length == 0 ? 1 : shape[0];
    }

    /** {@return the number of elements of a row, which is an element of the first axis; 1 for a scalar} */
    public int rowSize() {
        return (int) product(rowShape());
    }

    /** {@return the number of elements} */
    public int size() {
        return (int) product(shape);
    }

    /** {@return the elements of any type as bytes, little endian; truth values are 0 or 1} */
    public ByteBuffer bytes() {
        return data().duplicate().order(ByteOrder.LITTLE_ENDIAN);
    }

    /** {@return the elements of an int16, uint16 or float16 tensor; see {@link #halfToFloat(short)}} */
    public ShortBuffer shorts() {
        check("shorts()", DataType.INT16, DataType.UINT16, DataType.FLOAT16);
        return data().asShortBuffer();
    }

    /** {@return the elements of an int32 or uint32 tensor} */
    public IntBuffer ints() {
        check("ints()", DataType.INT32, DataType.UINT32);
        return data().asIntBuffer();
    }

    /** {@return the elements of an int64 or uint64 tensor} */
    public LongBuffer longs() {
        check("longs()", DataType.INT64, DataType.UINT64);
        return data().asLongBuffer();
    }

    /** {@return the elements of a float32 tensor} */
    public FloatBuffer floats() {
        check("floats()", DataType.FLOAT32);
        return data().asFloatBuffer();
    }

    /** {@return the elements of a float64 tensor} */
    public DoubleBuffer doubles() {
        check("doubles()", DataType.FLOAT64);
        return data().asDoubleBuffer();
    }

    /** {@return the elements of a tensor of truth values, in a new array} */
    public boolean[] booleans() {
        check("booleans()", DataType.BOOL);
        boolean[] values = new boolean[size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = data().get(i) != 0;
        }
        return values;
    }

    /** {@return the elements of any type as numbers of double precision, in a new array; large integers are rounded} */
    public double[] toDoubles() {
        double[] values = new double[size()];
        for (int i = 0; i < values.length; i++) {
            values[i] = Conversions.doubleAt(this, i);
        }
        return values;
    }

    /**
     * Returns some rows as a tensor that shares the memory of this one.
     *
     * @param begin the first row
     * @param end the row behind the last one
     * @return the rows
     */
    public Tensor rows(int begin, int end) {
        int[] part = shape.clone();
        part[0] = end - begin;
        return wrap(dataType, part, data().slice(begin * rowBytes(), (end - begin) * rowBytes()));
    }

    /** {@return the type and the shape, such as {@code float32[500, 4]}} */
    @Override
    public String toString() {
        return dataType + Arrays.toString(shape);
    }

    /** {@return whether the other object is a tensor of the same type, shape and bytes} */
    @Override
    public boolean equals(Object other) {
        return other instanceof Tensor tensor && dataType == tensor.dataType && Arrays.equals(shape, tensor.shape)
            && data().equals(tensor.data());
    }

    @Override
    public int hashCode() {
        return Objects.hash(dataType, Arrays.hashCode(shape), data());
    }

    /**
     * Returns a number of half precision in single precision, which has all of them.
     *
     * @param bits the bits of the number, as {@link #shorts()} has them
     * @return the number
     */
    public static float halfToFloat(short bits) {
        return Conversions.halfToFloat(bits);
    }

    synchronized ByteBuffer data() {
        if (data == null) {
            ByteBuffer written = allocate(dataType, size());
            frames.write(written);
            data = written.flip().asReadOnlyBuffer().order(ByteOrder.LITTLE_ENDIAN);
        }
        return data;
    }

    /** Appends the elements to a buffer. Frames that have not been read yet are written there only. */
    void appendTo(ByteBuffer target) {
        boolean isUnread;
        synchronized (this) {
            isUnread = data == null;
        }
        if (isUnread) {
            frames.write(target);
        } else {
            target.put(data().duplicate());
        }
    }

    /** Returns the rows at the given positions in a new tensor. */
    Tensor gather(int[] rows) {
        int[] gathered = shape.clone();
        gathered[0] = rows.length;
        ByteBuffer target = allocate(dataType, Math.multiplyExact(rows.length, rowSize()));
        for (int row : rows) {
            target.put(data().slice(row * rowBytes(), rowBytes()));
        }
        return wrap(dataType, gathered, target.flip());
    }

    int numAxes() {
        return shape.length;
    }

    int[] rowShape() {
        return shape.length == 0 ? shape : Arrays.copyOfRange(shape, 1, shape.length);
    }

    boolean hasRowsLike(Tensor other) {
        return Arrays.equals(rowShape(), other.rowShape());
    }

    private int rowBytes() {
        return rowSize() * dataType.size();
    }

    private void check(String method, DataType... accepted) {
        if (!Arrays.asList(accepted).contains(dataType)) {
            String names = String.join(" or ", Arrays.stream(accepted).map(DataType::toString).toList());
            throw Errors.invalid(method, "elements of " + names, dataType);
        }
    }

    static ByteBuffer allocate(DataType dataType, long count) {
        long bytes = count * dataType.size();
        if (bytes > Integer.MAX_VALUE - 8) {
            throw Errors.tooLarge(bytes);
        }
        return ByteBuffer.allocate((int) bytes).order(ByteOrder.LITTLE_ENDIAN);
    }

    static boolean areTruthValues(ByteBuffer values) {
        for (int i = values.position(); i < values.limit(); i++) {
            if ((values.get(i) & ~1) != 0) {
                return false;
            }
        }
        return true;
    }

    static long product(int[] shape) {
        long product = 1;
        for (int size : shape) {
            product *= size;
        }
        return product;
    }
}
