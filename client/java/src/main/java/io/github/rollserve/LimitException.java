package io.github.rollserve;

/** The exception of a request or a result that is larger than a limit allows. */
public final class LimitException extends RollserveException {
    private static final long serialVersionUID = 1;

    LimitException(Details details) {
        super(details);
    }
}
