package io.github.rollserve;

import io.grpc.Status;

/** The contents of an exception; see {@link RollserveException} for the fields. */
record Details(String message, Status.Code code, String reason, String field, String requestId, Throwable cause) {
    Details withMessage(String changed) {
        return new Details(changed, code, reason, field, requestId, cause);
    }
}
