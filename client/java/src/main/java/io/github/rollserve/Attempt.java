package io.github.rollserve;

import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.TimeoutException;
import java.util.function.Consumer;

/**
 * One RPC that streams responses. One thread reads it; any thread may cancel it.
 *
 * @param <R> the type of the responses
 */
final class Attempt<R> {
    /** The number of responses that may be unread, so that the next one is on its way while one is used. */
    private static final int READ_AHEAD = 2;

    private final ClientCall<?, R> call;
    private final BlockingQueue<Arrival<R>> arrivals = new LinkedBlockingQueue<>();

    private Attempt(ClientCall<?, R> call) {
        this.call = call;
    }

    /** A response; or, if that is null, the end with a status. */
    private record Arrival<R>(R response, Status status, Metadata trailers) {}

    static <Q, R> Attempt<R> start(Channel channel, MethodDescriptor<Q, R> method, CallOptions options, Q request) {
        return open(channel, method, options, call -> {
            call.sendMessage(request);
            call.halfClose();
        });
    }

    /** Starts an RPC, whose requests a function sends, then or later. */
    static <Q, R> Attempt<R> open(
        Channel channel, MethodDescriptor<Q, R> method, CallOptions options, Consumer<ClientCall<Q, R>> requests) {
        // What arrives is only put into a queue, so no other thread is needed for that.
        ClientCall<Q, R> call = channel.newCall(method, options.withExecutor(Runnable::run));
        Attempt<R> attempt = new Attempt<>(call);
        try {
            call.start(attempt.new Listener(), new Metadata());
            call.request(READ_AHEAD);
            requests.accept(call);
        } catch (RuntimeException | Error failure) {
            call.cancel("the call could not be started", failure);
            throw failure;
        }
        return attempt;
    }

    private final class Listener extends ClientCall.Listener<R> {
        @Override
        public void onMessage(R response) {
            arrivals.add(new Arrival<>(response, null, null));
        }

        @Override
        public void onClose(Status status, Metadata trailers) {
            arrivals.add(new Arrival<>(null, status, trailers));
        }
    }

    /**
     * Returns the next response, or null after the last one.
     *
     * @throws StatusRuntimeException if the RPC has failed
     * @throws TimeoutException if nothing has arrived for the time
     * @throws InterruptedException if the thread is interrupted
     */
    R next(Duration timeout) throws TimeoutException, InterruptedException {
        Arrival<R> arrival = arrivals.poll(timeout.toNanos(), TimeUnit.NANOSECONDS);
        if (arrival == null) {
            throw new TimeoutException();
        }
        if (arrival.response() != null) {
            call.request(1);
            return arrival.response();
        }
        if (!arrival.status().isOk()) {
            throw arrival.status().asRuntimeException(arrival.trailers());
        }
        return null;
    }

    /** Cancels the RPC unless it is over. */
    void cancel() {
        call.cancel("cancelled by the client", null);
    }
}
