package io.github.rollserve;

import java.util.concurrent.Callable;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Executor;
import java.util.concurrent.FutureTask;

/** A call in another thread, which is interrupted, and so cancels its RPC, if the future completes in another way. */
final class AsyncCall<T> extends FutureTask<T> {
    private final CompletableFuture<T> future = new CompletableFuture<>();

    private AsyncCall(Callable<T> call) {
        super(call);
    }

    static <T> CompletableFuture<T> start(Callable<T> call, Executor executor) {
        AsyncCall<T> task = new AsyncCall<>(call);
        task.future.whenComplete((result, failure) -> task.cancel(true)); // does nothing once the task is done
        executor.execute(task);
        return task.future;
    }

    @Override
    protected void done() {
        try {
            future.complete(get());
        } catch (ExecutionException failure) {
            future.completeExceptionally(failure.getCause());
        } catch (CancellationException | InterruptedException stopped) {
            future.cancel(true);
        }
    }
}
