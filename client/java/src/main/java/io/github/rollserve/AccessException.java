package io.github.rollserve;

/** The exception of a client that does not prove who it is, or lacks the scope that the message names. */
public final class AccessException extends InvalidArgumentException {
    private static final long serialVersionUID = 1;

    AccessException(Details details) {
        super(details);
    }
}
