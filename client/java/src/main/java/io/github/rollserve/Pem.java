package io.github.rollserve;

import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.file.Files;
import java.nio.file.Path;
import java.util.Objects;

/** A text in the PEM format, which is read when a connection is made. */
interface Pem {
    InputStream open() throws IOException;

    static Pem of(Path file) {
        Objects.requireNonNull(file, "file");
        return () -> Files.newInputStream(file);
    }

    static Pem of(byte[] content) {
        byte[] copy = Objects.requireNonNull(content, "content").clone();
        return () -> new ByteArrayInputStream(copy);
    }
}
