package io.github.rollserve;


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

    /** Throws unless the library is there. */
    Compression checkAvailable() {
        try {
            Class.forName(className, false, Compression.class.getClassLoader());
            return this;
        } catch (ClassNotFoundException missing) {
            throw Errors.invalid("compression", artifact + " among the libraries of the program for " + this, "none");
        }
    }
}
