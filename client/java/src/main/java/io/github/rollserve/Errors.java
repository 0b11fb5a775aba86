package io.github.rollserve;

import com.google.protobuf.InvalidProtocolBufferException;
import com.google.rpc.BadRequest;
import io.grpc.Metadata;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import io.grpc.protobuf.StatusProto;
import java.util.Objects;
import java.util.Set;

/** Makers of exceptions: from statuses of gRPC, and for faults that the client finds itself. */
final class Errors {
    private static final Metadata.Key<String> REASON = key("rollserve-reason");
    private static final Metadata.Key<String> REQUEST_ID = key("rollserve-request-id");
    private static final Set<Reason> ACCESS_REASONS =
        Set.of(Reason.TOKEN_MISSING, Reason.TOKEN_INVALID, Reason.TOKEN_EXPIRED, Reason.SCOPE_MISSING);

    private Errors() {}

    private static Metadata.Key<String> key(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }

    /** Returns the exception for an error of gRPC. */
    static RollserveException from(StatusRuntimeException error) {
        if (error.getCause() instanceof StatusRuntimeException unreadable) { // gRPC cancels calls with such a message
            return from(unreadable);
        }
        Status status = error.getStatus();
        Metadata trailers = Objects.requireNonNullElseGet(error.getTrailers(), Metadata::new);
        Details details = new Details(
            text(status),
            status.getCode(),
            Objects.requireNonNullElse(trailers.get(REASON), ""),
            fieldOf(status, trailers),
            Objects.requireNonNullElse(trailers.get(REQUEST_ID), ""),
            error);
        return classify(details);
    }

    /** Returns what a status says, with the cause of a connection that could not be made. */
    private static String text(Status status) {
        String text = Objects.requireNonNullElse(status.getDescription(), status.getCode().name());
        return status.getCause() == null ? text : text + ": " + status.getCause().getMessage();
    }

    private static String fieldOf(Status status, Metadata trailers) {
        com.google.rpc.Status details = StatusProto.fromStatusAndTrailers(status, trailers);
        for (com.google.protobuf.Any detail : details.getDetailsList()) {
            if (detail.is(BadRequest.class)) {
                try {
                    BadRequest request = detail.unpack(BadRequest.class);
                    return request.getFieldViolationsCount() == 0 ? "" : request.getFieldViolations(0).getField();
                } catch (InvalidProtocolBufferException malformed) {
                    return ""; // some other server has made the details
                }
            }
        }
        return "";
    }

    /** Returns the exception of the tree that a status code and a reason belong to. */
    static RollserveException classify(Details details) {
        if (ACCESS_REASONS.contains(Reason.named(details.reason()))) {
            return new AccessException(details);
        }
        return switch (details.code()) {
            case INVALID_ARGUMENT, NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, PERMISSION_DENIED, UNAUTHENTICATED,
                UNIMPLEMENTED -> new InvalidArgumentException(details);
            case FAILED_PRECONDITION, ABORTED -> new PreconditionException(details);
            case RESOURCE_EXHAUSTED -> new LimitException(details);
            case UNAVAILABLE -> new UnavailableException(details);
            case CANCELLED -> new CancelledException(details);
            case DEADLINE_EXCEEDED -> new DeadlineException(details);
            default -> new ServerException(details);
        };
    }

    /** Returns the text of an error about a field. */
    static String mismatch(String field, Object expected, Object got) {
        return field + ": expected " + expected + ", got " + got;
    }

    /** Returns the exception for an argument that a call cannot send. */
    static InvalidArgumentException invalid(String field, Object expected, Object got) {
        String message = mismatch(field, expected, got);
        return new InvalidArgumentException(
            new Details(message, Status.Code.INVALID_ARGUMENT, Reason.INVALID_VALUE.name(), field, "", null));
    }

    /** Returns the exception for what a session is not in the state for. */
    static PreconditionException premature(String field, Object expected, Object got) {
        String message = mismatch(field, expected, got);
        return new PreconditionException(
            new Details(message, Status.Code.FAILED_PRECONDITION, "", field, "", null));
    }

    /** Returns the exception for a message that violates the wire contract. */
    static ServerException malformed(String field, Object expected, Object got) {
        return malformed(mismatch(field, expected, got), null);
    }

    static ServerException malformed(String text, Throwable cause) {
        return new ServerException(
            new Details("malformed message: " + text, Status.Code.DATA_LOSS, "", "", "", cause));
    }

    /** Returns the exception for a column that Java's buffers cannot hold. */
    static LimitException tooLarge(long bytes) {
        String expected = "columns of less than 2 GiB (read a stream message by message)";
        String message = mismatch("batch", expected, bytes + " bytes");
        return new LimitException(new Details(message, Status.Code.RESOURCE_EXHAUSTED, "", "", "", null));
    }

    /** Returns the exception for a call that the server has reset. */
    static UnavailableException reset(Throwable cause) {
        return new UnavailableException(
            new Details("the server reset the call", Status.Code.UNAVAILABLE, "", "", "", cause));
    }

    /** Returns the exception for a call that its caller has stopped. */
    static CancelledException cancelled(String text, Throwable cause) {
        return new CancelledException(new Details(text, Status.Code.CANCELLED, "", "", "", cause));
    }
}
