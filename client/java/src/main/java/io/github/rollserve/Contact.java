package io.github.rollserve;

import io.grpc.Status;
import io.grpc.StatusRuntimeException;

/**
 * Whether the server has ever answered, which decides what calls do while it is away: without an answer ever, the
 * address may be wrong, so calls fail at once.
 */
final class Contact {
    private volatile boolean made;

    void record() {
        made = true;
    }

    boolean wasMade() {
        return made;
    }

    /** Returns the exception for an error of gRPC, with a hint if a server closes each new connection. */
    RollserveException exception(StatusRuntimeException error) {
        if (error.getStatus().getCode() == Status.Code.UNAVAILABLE) {
            RollserveException failure = TlsFailures.exception(error);
            if (failure != null) {
                return failure;
            }
        }
        RollserveException known = Errors.from(error);
        boolean isClosed = known instanceof UnavailableException && known.reason().isEmpty() && !made;
        if (!isClosed || TlsFailures.isUnreachable(error)) {
            return known;
        }
        String hint = ": the connection was closed. If the server encrypts connections, give ca; if it asks for "
            + "certificates, give cert and key, signed by an authority that it trusts";
        return Errors.classify(known.details().withMessage(known.getMessage() + hint));
    }
}
