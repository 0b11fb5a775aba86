package io.github.rollserve;

/** The exception of a server that is out of reach, starting or stopping, or has lost a worker. Call again later. */
public final class UnavailableException extends RollserveException {
    private static final long serialVersionUID = 1;

    UnavailableException(Details details) {
        super(details);
    }
}
