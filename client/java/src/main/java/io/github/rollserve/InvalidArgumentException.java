package io.github.rollserve;

/** The exception of a request that cannot be met: a value, a name or a permission is wrong. Change the request. */
public sealed class InvalidArgumentException extends RollserveException permits AccessException {
    private static final long serialVersionUID = 1;

    InvalidArgumentException(Details details) {
        super(details);
    }
}
