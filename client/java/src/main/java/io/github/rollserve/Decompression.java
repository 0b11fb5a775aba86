package io.github.rollserve;

import com.github.luben.zstd.Zstd;
import com.github.luben.zstd.ZstdException;
import com.google.protobuf.ByteString;
import java.nio.ByteBuffer;
import net.jpountz.lz4.LZ4Exception;
import net.jpountz.lz4.LZ4Factory;

/** The decompression of columns. */
final class Decompression {
    /** The largest decompressed size: the wire contract has no larger messages. */
    static final int MAX_RAW_BYTES = 256 << 20;
    /** The largest numbers of bytes that a compressed byte can stand for, by the definitions of the formats. */
    private static final int MAX_LZ4_RATIO = 255;
    private static final int MAX_ZSTD_RATIO = 1 << 15;

    private Decompression() {}

    /** Decompresses a column. Nothing is allocated if the data cannot stand for as many bytes. */
    static ByteBuffer decompress(String field, io.github.rollserve.v1.Tensor message, int numBytes) {
        ByteString data = message.getData();
        boolean isLz4 = message.getCompression() == io.github.rollserve.v1.Compression.COMPRESSION_LZ4;
        if (!isLz4 && message.getCompression() != io.github.rollserve.v1.Compression.COMPRESSION_ZSTD) {
            throw Errors.malformed(field + ".compression", "a member of Compression", message.getCompressionValue());
        }
        int maxRatio = isLz4 ? MAX_LZ4_RATIO : MAX_ZSTD_RATIO;
        if (numBytes > MAX_RAW_BYTES || numBytes > (long) maxRatio * data.size()) {
            throw Errors.malformed(field + ".data", "enough bytes for " + numBytes, data.size());
        }
        byte[] raw = new byte[numBytes];
        String fault = isLz4 ? Lz4.decompress(data.toByteArray(), raw) : Zstandard.decompress(data.toByteArray(), raw);
        if (!fault.isEmpty()) {
            String expected = numBytes + " bytes, compressed by " + message.getCompression();
            throw Errors.malformed(field + ".data", expected, fault);
        }
        return ByteBuffer.wrap(raw);
    }

    private static String faultOf(long count, byte[] raw) {
        return count == raw.length ? "" : count + " bytes";
    }

    // Each library is named in a class of its own, so that it is loaded, and has to be there, only when it is needed.

    private static final class Lz4 {
        static String decompress(byte[] data, byte[] raw) {
            try {
                // This decompressor checks all bounds: malformed data cannot make it read or write other memory.
                return faultOf(LZ4Factory.safeInstance().safeDecompressor().decompress(data, raw), raw);
            } catch (LZ4Exception malformed) {
                return malformed.getMessage();
            }
        }
    }

    private static final class Zstandard {
        static String decompress(byte[] data, byte[] raw) {
            try {
                return faultOf(Zstd.decompress(raw, data), raw);
            } catch (ZstdException malformed) {
                return malformed.getMessage();
            }
        }
    }
}
