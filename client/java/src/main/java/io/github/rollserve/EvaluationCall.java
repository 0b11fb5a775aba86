package io.github.rollserve;

import io.github.rollserve.v1.Beginning;
import io.github.rollserve.v1.Progress;
import io.grpc.CallOptions;
import io.grpc.Deadline;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;
import java.util.function.Function;

/**
 * A call that evaluates. If the connection or the server is lost, the call is repeated: nothing of an interrupted
 * evaluation is kept.
 *
 * @param <R> the type of the responses
 */
final class EvaluationCall<R> {
    private final Connection connection;
    private final io.github.rollserve.v1.EvaluationOptions.Builder options;
    private final Duration timeout;
    private final CallOptions callOptions;
    private final Function<R, Beginning> beginningOf;
    private final Function<R, Progress> progressOf;
    private boolean hasBegun;
    private boolean canRepeat;

    /**
     * Prepares a call.
     *
     * @param connection the connection
     * @param options the options of the request, which change so that it repeats the call that has begun
     * @param timeout the time without progress after which the call ends
     * @param deadline the deadline; null for none
     * @param beginningOf returns the beginning that a response has; null for none
     * @param progressOf returns the progress that a response has; null for none
     */
    EvaluationCall(
        Connection connection, io.github.rollserve.v1.EvaluationOptions.Builder options, Duration timeout,
        Deadline deadline, Function<R, Beginning> beginningOf,
        Function<R, Progress> progressOf) {
        this.connection = connection;
        this.options = options;
        this.timeout = timeout;
        this.callOptions = CallOptions.DEFAULT.withDeadline(deadline);
        this.beginningOf = beginningOf;
        this.progressOf = progressOf;
    }

    /**
     * Makes the call.
     *
     * @param start starts an attempt, with the options as they are then
     * @param take takes a response
     */
    void run(Function<CallOptions, Attempt<R>> start, Consumer<R> take) {
        Interruptions interruptions = new Interruptions(connection, timeout, new CountDownLatch(1));
        Attempt<R> attempt = null;
        try {
            while (true) {
                attempt = start.apply(callOptions);
                try {
                    read(attempt, interruptions, take);
                    return;
                } catch (StatusRuntimeException error) {
                    interruptions.pause(error, hasBegun, canRepeat);
                }
            }
        } catch (TimeoutException silent) {
            throw interruptions.silence();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            throw Errors.cancelled("the thread was interrupted", interrupted);
        } finally {
            if (attempt != null) {
                attempt.cancel();
            }
        }
    }

    private void read(Attempt<R> attempt, Interruptions interruptions, Consumer<R> take)
        throws InterruptedException, TimeoutException {
        for (R response = attempt.next(timeout); response != null; response = attempt.next(timeout)) {
            connection.contact().record();
            Beginning beginning = beginningOf.apply(response);
            if (beginning != null) {
                repeatFrom(beginning);
            }
            Progress progress = progressOf.apply(response);
            if (progress != null) {
                interruptions.waitFor(progress.getWaitingFor());
                if (!progress.getWarning().isEmpty()) {
                    connection.options().warningListener().accept(progress.getWarning());
                }
            }
            take.accept(response);
        }
    }

    private void repeatFrom(Beginning beginning) {
        hasBegun = true;
        canRepeat = Reproducibility.from(beginning.getReproducibilityValue()).isRepeatable();
        options.clearExpectedPolicyVersion() // checked when the call began, as the next one
            .clearExpectedEnvironmentVersion()
            .setSeed(beginning.getSeed())
            .setPolicyVersion(beginning.getPolicyVersion())
            .setSamplerRun(beginning.getSamplerRun());
        if (!options.hasEnvironment()) {
            options.setEnvironmentVersion(beginning.getEnvironmentVersion());
        }
    }
}
