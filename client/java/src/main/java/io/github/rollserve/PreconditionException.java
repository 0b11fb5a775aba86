package io.github.rollserve;

/** The exception of a sampler that is not in the state that the request needs, such as one without an agent. */
public final class PreconditionException extends RollserveException {
    private static final long serialVersionUID = 1;

    PreconditionException(Details details) {
        super(details);
    }
}
