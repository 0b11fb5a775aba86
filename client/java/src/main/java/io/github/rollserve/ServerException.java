package io.github.rollserve;

/** The exception of a fault of the server or of an environment. The server's log has the details. */
public final class ServerException extends RollserveException {
    private static final long serialVersionUID = 1;

    ServerException(Details details) {
        super(details);
    }
}
