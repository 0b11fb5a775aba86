package io.github.rollserve;

import com.google.protobuf.ByteString;
import com.google.protobuf.UnsafeByteOperations;
import io.github.rollserve.v1.NamedTensor;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** The tensors of the wire: checked, read without a copy where they are not compressed, and written without one. */
final class Tensors {
    private static final int MAX_AXES = 32;

    private Tensors() {}

    /** Returns a tensor that may not be compressed, such as a bound of a space. */
    static Tensor from(String field, io.github.rollserve.v1.Tensor message) {
        if (message.getCompressionValue() != 0) {
            throw Errors.malformed(field + ".compression", "none outside of batches", message.getCompression());
        }
        return column(field, message);
    }

    /** Returns a column of a batch. */
    static Tensor column(String field, io.github.rollserve.v1.Tensor message) {
        DataType dataType = dataType(field + ".data_type", message.getDataTypeValue());
        int[] shape = shape(field + ".shape", message.getShapeList());
        long numBytes = Math.multiplyExact(Tensor.product(shape), (long) dataType.size());
        if (numBytes > Integer.MAX_VALUE) {
            throw Errors.malformed(field + ".shape", "no more elements than a message holds", message.getShapeList());
        }
        ByteBuffer data = message.getCompressionValue() == 0
            ? message.getData().asReadOnlyByteBuffer()
            : Decompression.decompress(field, message, (int) numBytes);
        if (data.remaining() != numBytes) {
            throw Errors.malformed(field + ".data", numBytes + " bytes", data.remaining());
        }
        if (dataType == DataType.BOOL && !Tensor.areTruthValues(data)) {
            throw Errors.malformed(field + ".data", "truth values of 0 or 1", "another byte");
        }
        return Tensor.wrap(dataType, shape, data);
    }

    static DataType dataType(String field, int number) {
        return DataType.fromWire(number).orElseThrow(() -> Errors.malformed(field, "a member of DataType", number));
    }

    static int[] shape(String field, List<Long> sizes) {
        if (sizes.size() > MAX_AXES) {
            throw Errors.malformed(field, "at most " + MAX_AXES + " sizes", sizes.size());
        }
        int[] shape = new int[sizes.size()];
        long product = 1; // without zeros: also an empty array has rows of a size that this client can count
        for (int i = 0; i < shape.length; i++) {
            long size = sizes.get(i);
            if (size < 0 || size > Integer.MAX_VALUE || product * Math.max(1, size) > Integer.MAX_VALUE) {
                throw Errors.malformed(field, "sizes of at least 0, whose product is below 2^31", sizes);
            }
            product *= Math.max(1, size);
            shape[i] = (int) size;
        }
        return shape;
    }

    static Map<String, Tensor> named(String field, List<NamedTensor> messages) {
        Map<String, Tensor> tensors = new LinkedHashMap<>();
        for (NamedTensor message : messages) {
            String path = field + "['" + message.getName() + "']";
            if (tensors.put(message.getName(), column(path, message.getTensor())) != null) {
                throw Errors.malformed(path, "unique names", "this name twice");
            }
        }
        return tensors;
    }

    static io.github.rollserve.v1.Tensor toWire(Tensor tensor) {
        io.github.rollserve.v1.Tensor.Builder message = io.github.rollserve.v1.Tensor.newBuilder();
        for (int size : tensor.shape()) {
            message.addShape(size);
        }
        ByteString data = UnsafeByteOperations.unsafeWrap(tensor.bytes());
        return message.setDataType(tensor.dataType().toWire()).setData(data).build();
    }

    static List<NamedTensor> toWire(Map<String, Tensor> tensors) {
        List<NamedTensor> messages = new ArrayList<>();
        tensors.forEach((name, tensor) -> messages.add(
            NamedTensor.newBuilder().setName(name).setTensor(toWire(tensor)).build()));
        return messages;
    }
}
