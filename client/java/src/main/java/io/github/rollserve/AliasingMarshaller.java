package io.github.rollserve;

import com.google.protobuf.ByteString;
import com.google.protobuf.CodedInputStream;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Parser;
import com.google.protobuf.UnsafeByteOperations;
import io.grpc.KnownLength;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import java.io.IOException;
import java.io.InputStream;

/**
 * Reads messages whose fields of bytes share the memory of the message. gRPC's own marshaller copies each of them.
 *
 * @param <T> the type of the messages
 */
final class AliasingMarshaller<T> implements MethodDescriptor.Marshaller<T> {
    private final MethodDescriptor.Marshaller<T> own;
    private final Parser<T> parser;

    AliasingMarshaller(MethodDescriptor.Marshaller<T> own, Parser<T> parser) {
        this.own = own;
        this.parser = parser;
    }

    @Override
    public InputStream stream(T value) {
        return own.stream(value);
    }

    @Override
    public T parse(InputStream stream) {
        try {
            return parse(parser, UnsafeByteOperations.unsafeWrap(bytesOf(stream)));
        } catch (InvalidProtocolBufferException malformed) {
            throw Status.INTERNAL.withDescription("malformed message").withCause(malformed).asRuntimeException();
        } catch (IOException broken) {
            throw Status.INTERNAL.withDescription("unreadable message").withCause(broken).asRuntimeException();
        }
    }

    private static byte[] bytesOf(InputStream stream) throws IOException {
        if (!(stream instanceof KnownLength)) {
            return stream.readAllBytes();
        }
        byte[] bytes = new byte[stream.available()];
        int count = stream.readNBytes(bytes, 0, bytes.length);
        if (count != bytes.length) {
            throw new IOException("expected " + bytes.length + " bytes, got " + count);
        }
        return bytes;
    }

    static <T> T parse(Parser<T> parser, ByteString bytes) throws InvalidProtocolBufferException {
        CodedInputStream input = bytes.newCodedInput();
        input.enableAliasing(true);
        T message = parser.parseFrom(input);
        input.checkLastTagWas(0);
        return message;
    }
}
