package io.github.rollserve;

import java.util.List;

/** A lossless codec that columns of batches may come in. Each needs a library, which is optional otherwise. */
public enum Compression {
    /** LZ4, the faster one. Needs {@code lz4-java}. */
    LZ4("net.jpountz.lz4.LZ4Factory", "lz4-java"),
    /** Zstandard, which compresses better. Needs {@code com.github.luben:zstd-jni}. */
    ZSTD("com.github.luben.zstd.Zstd", "com.github.luben:zstd-jni");

    private final String className;
    private final String artifact;

    Compression(String className, String artifact) {
        this.className = className;
        this.artifact = artifact;
    }

    io.github.rollserve.v1.Compression toWire() {
        return io.github.rollserve.v1.Compression.forNumber(ordinal() + 1);
    }

    /** Copies codecs; throws unless their libraries are there. */
    static List<Compression> available(Compression... codecs) {
        List<Compression> copy = Arguments.list("codecs", codecs);
        copy.forEach(Compression::checkAvailable);
        return copy;
    }

    private void checkAvailable() {
        try {
            Class.forName(className, false, Compression.class.getClassLoader());
        } catch (ClassNotFoundException missing) {
            throw Errors.invalid("compression", artifact + " among the libraries of the program for " + this, "none");
        }
    }
}
