package io.github.rollserve;

import io.grpc.Context;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.Set;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.ThreadLocalRandom;
import java.util.concurrent.TimeUnit;

/**
 * The interruptions of one call, over all attempts at it. Only data that was not received before counts as progress:
 * attempts end when the call's timeout has passed since the first interruption without new data since.
 */
final class Interruptions {
    private static final long FIRST_PAUSE = TimeUnit.MILLISECONDS.toNanos(100);
    private static final long MAX_PAUSE = TimeUnit.SECONDS.toNanos(1);
    /** Reasons of workers that the server itself has replaced in vain. */
    private static final Set<Reason> LOST_AGAIN =
        Set.of(Reason.WORKER_LOST_AGAIN, Reason.WORKER_HUNG, Reason.WORKER_OUT_OF_MEMORY);
    /** Reasons that the next server at the address need not have. */
    private static final Set<Reason> ELSEWHERE =
        Set.of(Reason.NONE, Reason.SERVER_STOPPING, Reason.SAMPLER_TAKEN, Reason.JOURNAL_LOST);

    private final Connection connection;
    private final Duration timeout;
    private final CountDownLatch closed;
    private RollserveException last; // how the last attempt ended, if it was interrupted
    private String waitingFor = "";
    private boolean isInterrupted;
    private long since; // the first interruption without new data since, if isInterrupted
    private long pause = FIRST_PAUSE;

    /**
     * Starts without interruptions.
     *
     * @param connection the connection of the call
     * @param timeout the time that attempts go on without new data
     * @param closed is zero once the caller has closed the call
     */
    Interruptions(Connection connection, Duration timeout, CountDownLatch closed) {
        this.connection = connection;
        this.timeout = timeout;
        this.closed = closed;
    }

    /** Records that new data has arrived. */
    void advance() {
        isInterrupted = false;
        pause = FIRST_PAUSE;
        waitingFor = "";
    }

    /** Records what the server says that the call waits for. */
    void waitFor(String what) {
        waitingFor = what;
    }

    /**
     * Waits before the next attempt.
     *
     * @param error how the last attempt ended
     * @param hasBegun whether the beginning of the call's stream has arrived
     * @param canRepeat whether a call that has begun can be made again
     * @throws RollserveException if there is no other attempt
     */
    void pause(StatusRuntimeException error, boolean hasBegun, boolean canRepeat) throws InterruptedException {
        RollserveException failure = failureOf(error);
        if (!goesOn(failure, hasBegun, canRepeat)) {
            throw finished(failure);
        }
        long now = System.nanoTime();
        if (!isInterrupted) {
            isInterrupted = true;
            since = now;
        }
        long left = timeout.toNanos() - (now - since);
        if (left <= 0) {
            throw finished(failure);
        }
        last = failure;
        long length = Math.min(left, (long) (pause * ThreadLocalRandom.current().nextDouble(0.5, 1)));
        pause = Math.min(2 * pause, MAX_PAUSE);
        if (closed.await(length, TimeUnit.NANOSECONDS)) {
            throw Errors.cancelled("the stream was closed", failure);
        }
    }

    /** Returns the exception for the last attempt, after which there is none. */
    RollserveException failure(StatusRuntimeException error) {
        return finished(failureOf(error));
    }

    private RollserveException failureOf(StatusRuntimeException error) {
        RollserveException failure = connection.contact().exception(error);
        if (closed.getCount() == 0 || connection.isClosed()) {
            return Errors.cancelled("the stream or the sampler was closed", failure);
        }
        return isReset(error, failure) ? Errors.reset(error) : failure;
    }

    /**
     * Whether a call was cancelled, and not by its caller: gRPC resets calls that a server has received and not begun
     * when it stops. Calls that this side cancels have a cause, or a context that is cancelled.
     */
    private static boolean isReset(StatusRuntimeException error, RollserveException failure) {
        boolean isAsked = error.getStatus().getCause() != null || Context.current().isCancelled()
            || Thread.currentThread().isInterrupted();
        return failure instanceof CancelledException && failure.reason() == Reason.NONE && !isAsked;
    }

    private boolean goesOn(RollserveException failure, boolean hasBegun, boolean canRepeat) {
        if (!(failure instanceof UnavailableException)) {
            return false;
        }
        return hasBegun
            ? canRepeat && !LOST_AGAIN.contains(failure.reason())
            : connection.contact().wasMade() && ELSEWHERE.contains(failure.reason());
    }

    private RollserveException finished(RollserveException failure) {
        if (!(failure instanceof DeadlineException) || failure.reason() != Reason.NONE) {
            return failure;
        }
        String message = "deadline: the call was not over when its deadline passed" + after();
        return new DeadlineException(
            new Details(message, Status.Code.DEADLINE_EXCEEDED, "", "deadline", "", cause(failure)));
    }

    /** Returns the exception for an attempt that made no progress for the call's timeout. */
    DeadlineException silence() {
        String message = "timeout: no progress for " + timeout.toMillis() / 1000.0 + " s" + after();
        return new DeadlineException(
            new Details(message, Status.Code.DEADLINE_EXCEEDED, Reason.NO_PROGRESS.name(), "timeout", "", last));
    }

    /** Returns how the last interrupted attempt ended; null if none was. */
    RollserveException last() {
        return last;
    }

    private Throwable cause(RollserveException failure) {
        return last == null ? failure.getCause() : last;
    }

    private String after() {
        if (!waitingFor.isEmpty()) {
            return "; the server waits for " + waitingFor;
        }
        return last == null ? "" : "; an earlier attempt ended with: " + last.getMessage();
    }
}
