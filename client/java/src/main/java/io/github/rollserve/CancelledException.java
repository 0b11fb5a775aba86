package io.github.rollserve;

/** The exception of a call whose thread was interrupted, or whose stream, sampler or gRPC context was closed. */
public final class CancelledException extends StoppedException {
    private static final long serialVersionUID = 1;

    CancelledException(Details details) {
        super(details);
    }
}
