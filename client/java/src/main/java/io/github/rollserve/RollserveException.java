package io.github.rollserve;

import io.grpc.Status;

/**
 * The exception of every failed call. Its subclasses say what the caller can do, and {@link #reason()} says exactly
 * what happened:
 *
 * <pre>
 * RollserveException
 * ├── InvalidArgumentException   change the request: a field, a name or a permission is wrong
 * │   └── AccessException        get a token, or one with the scope that the message names
 * ├── PreconditionException      bring the sampler into the right state, then call again
 * ├── LimitException             ask for less, or have a limit raised
 * ├── UnavailableException       the server is out of reach, starting or stopping: call again later
 * ├── StoppedException           the call ended early
 * │   ├── CancelledException     its caller cancelled it
 * │   └── DeadlineException      its deadline passed, or it made no progress for its timeout
 * └── ServerException            a fault of the server or an environment: look at the server's log
 * </pre>
 *
 * <p>The message begins with the field, if one is at fault, and reads {@code field: expected …, got …}. The cause is
 * the error of gRPC, if there is one.
 */
public abstract sealed class RollserveException extends RuntimeException
    permits InvalidArgumentException, PreconditionException, LimitException, UnavailableException, StoppedException,
        ServerException {
    private static final long serialVersionUID = 1;

    /** The status code. */
    private final Status.Code code;
    /** The name of the reason. */
    private final String reason;
    /** The field at fault. */
    private final String field;
    /** The request's id. */
    private final String requestId;

    RollserveException(Details details) {
        super(details.message(), details.cause());
        this.code = details.code();
        this.reason = details.reason();
        this.field = details.field();
        this.requestId = details.requestId();
    }

    /** {@return the gRPC status code} */
    public Status.Code code() {
        return code;
    }

    /** {@return exactly what happened; {@link Reason#NONE} if the error is gRPC's own, such as a lost connection} */
    public Reason reason() {
        return Reason.named(reason);
    }

    /** {@return the name of the reason, also of one that {@link #reason()} does not know; empty without a reason} */
    public String reasonName() {
        return reason;
    }

    /**
     * {@return the path of the argument, or of the field of the request, that is at fault, such as
     * {@code options.max_message_bytes}; empty if none is}
     */
    public String field() {
        return field;
    }

    /** {@return the name of the request in the server's log; empty if the error is gRPC's or the client's own} */
    public String requestId() {
        return requestId;
    }

    Details details() {
        return new Details(getMessage(), code, reason, field, requestId, getCause());
    }
}
