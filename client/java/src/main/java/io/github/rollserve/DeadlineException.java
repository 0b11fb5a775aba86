package io.github.rollserve;

/** The exception of a call whose deadline passed, or that made no progress ({@link Reason#NO_PROGRESS}). */
public final class DeadlineException extends StoppedException {
    private static final long serialVersionUID = 1;

    DeadlineException(Details details) {
        super(details);
    }
}
