package io.github.rollserve;

/** The exception of a call that ended early, because of its caller or of a time limit. */
public abstract sealed class StoppedException extends RollserveException
    permits CancelledException, DeadlineException {
    private static final long serialVersionUID = 1;

    StoppedException(Details details) {
        super(details);
    }
}
