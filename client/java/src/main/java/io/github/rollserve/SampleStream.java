package io.github.rollserve;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import io.github.rollserve.v1.Beginning;
import io.github.rollserve.v1.ObtainSamplesResponse;
import io.grpc.CallOptions;
import io.grpc.Deadline;
import io.grpc.Status;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Collections;
import java.util.Deque;
import java.util.Iterator;
import java.util.List;
import java.util.NoSuchElementException;
import java.util.Optional;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeoutException;
import java.util.stream.Stream;
import java.util.stream.StreamSupport;

/**
 * The batches of a sampling call, as they arrive. The call begins when the stream is made.
 *
 * <p>Each batch can be used alone; {@code concatenate} and {@code joined} of its class make whole episodes of several.
 * If the connection or the server is lost, the stream continues where it was once both are back. It ends with the last
 * error if no new data has arrived for its timeout since then. Close it, or read it to its end:
 *
 * <pre>{@code
 * try (SampleStream<EpisodeBatch> stream = sampler.streamSamples(10_000)) {
 *     for (EpisodeBatch part : stream) {
 *         System.out.println(part.numSteps());
 *     }
 *     System.out.println(stream.account());
 * }
 * }</pre>
 *
 * <p>One thread at a time may read a stream; any may close it. A thread that is interrupted while it waits gets a
 * {@link CancelledException}, and the call is cancelled.
 *
 * @param <B> {@link EpisodeBatch}, or {@link MultiAgentBatch} for environments with many agents
 */
public final class SampleStream<B> implements Iterable<B>, AutoCloseable {
    private final Connection connection;
    private final BatchKind<B> kind;
    private final Resumption<B> resumption;
    private final Interruptions interruptions;
    private final Duration timeout;
    private final CallOptions callOptions;
    private final CountDownLatch closed = new CountDownLatch(1);
    private final List<String> warnings = Collections.synchronizedList(new ArrayList<>());
    private final Deque<ObtainSamplesResponse> unread = new ArrayDeque<>();

    private volatile Attempt<ObtainSamplesResponse> attempt; // null between two attempts
    private volatile long numSimulatedSteps;
    private volatile long numEndedEpisodes;
    private volatile io.github.rollserve.v1.Account account; // of the last call of the stream
    private long numRows;
    private B next; // read ahead by hasNext
    private boolean isOver;
    private RollserveException failure; // how the stream has ended, if not with its account

    SampleStream(
        Connection connection, SamplingCall call, BatchKind<B> kind, Duration timeout, Deadline deadline) {
        this.connection = connection;
        this.kind = kind;
        this.resumption = new Resumption<>(call, kind);
        this.interruptions = new Interruptions(connection, timeout, closed);
        this.timeout = timeout;
        this.callOptions = CallOptions.DEFAULT.withDeadline(deadline);
    }

    /** Makes the call, which the first read would make otherwise. */
    SampleStream<B> begin() {
        current();
        return this;
    }

    /**
     * Returns the batches that are left. All iterators of a stream share its position; {@code hasNext} and {@code next}
     * throw a {@link RollserveException} if the call fails.
     *
     * @return an iterator
     */
    @Override
    public Iterator<B> iterator() {
        return new Iterator<>() {
            @Override
            public boolean hasNext() {
                if (next == null) {
                    next = read();
                }
                return next != null;
            }

            @Override
            public B next() {
                if (!hasNext()) {
                    throw new NoSuchElementException("the stream is over");
                }
                B batch = next;
                next = null;
                return batch;
            }
        };
    }

    /** {@return the batches that are left, as a stream that closes this one when it is closed} */
    public Stream<B> stream() {
        return StreamSupport.stream(spliterator(), false).onClose(this::close);
    }

    /**
     * Reads the rest of the stream.
     *
     * @return one batch of whole episodes or fragments, with the account
     * @throws RollserveException if the call fails
     */
    public B join() {
        if (resumption.call().options().getBlackhole()) {
            throw Errors.invalid("blackhole", "false for a call that returns a batch (read a stream to its end)", true);
        }
        List<B> batches = new ArrayList<>();
        forEach(batches::add);
        return kind.join(batches, account, resumption.numResumptions());
    }

    /**
     * {@return the account of the call; empty before the stream has been read to its end, where {@code hasNext()} is
     * false, or if it has failed}
     */
    public Optional<Account> account() {
        return isOver && failure == null
            ? Optional.of(Account.from(account, resumption.numResumptions()))
            : Optional.empty();
    }

    /** {@return the number of steps that the call has simulated so far, as far as the client knows} */
    public long numSimulatedSteps() {
        return numSimulatedSteps;
    }

    /**
     * {@return the number of episodes that have ended so far, as far as the client knows: at least the episodes whose
     * ends it has received, and including episodes that will not be delivered}
     */
    public long numEndedEpisodes() {
        return numEndedEpisodes;
    }

    /** {@return what the server has told about the call so far, such as that no episode ends} */
    public List<String> warnings() {
        return List.copyOf(warnings);
    }

    /** Cancels the call unless it is over. A thread that reads the stream gets a {@link CancelledException}. */
    @Override
    public void close() {
        closed.countDown();
        Attempt<ObtainSamplesResponse> current = attempt;
        if (current != null) {
            current.cancel();
        }
    }

    /** Returns the next batch, or null after the last one. */
    private B read() {
        if (failure != null) {
            throw failure;
        }
        try {
            while (!isOver) {
                B batch = unread.isEmpty() ? receive() : read(unread.remove());
                if (batch != null) {
                    return batch;
                }
            }
            return null;
        } catch (RollserveException error) {
            failure = error;
        } catch (TimeoutException silent) {
            failure = interruptions.silence();
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            failure = Errors.cancelled("the thread was interrupted", interrupted);
        }
        isOver = true;
        close();
        throw failure;
    }

    /** Receives a message, from a new attempt at the call if none is under way. */
    private B receive() throws InterruptedException, TimeoutException {
        try {
            ObtainSamplesResponse response = current().next(timeout);
            if (response != null) {
                connection.contact().record();
                split(response);
                return null;
            }
            if (account == null) {
                throw Errors.malformed("the stream ended without its account", null);
            }
            account = resumption.whole(account);
            isOver = true;
        } catch (StatusRuntimeException error) {
            attempt = null;
            interruptions.pause(error, resumption.hasBegun(), resumption.isPossible());
            resumption.prepare();
        }
        return null;
    }

    private Attempt<ObtainSamplesResponse> current() {
        if (attempt == null) {
            attempt = resumption.call().start(connection.channel(), callOptions);
            if (closed.getCount() == 0) { // before the attempt was there to be cancelled
                attempt.cancel();
            }
        }
        return attempt;
    }

    /** Adds the responses that a message joins; the message itself if it is a single one. */
    private void split(ObtainSamplesResponse message) {
        if (!message.hasJoined()) {
            unread.add(message);
            return;
        }
        try {
            for (ByteString response : message.getJoined().getResponsesList()) {
                unread.add(AliasingMarshaller.parse(ObtainSamplesResponse.parser(), response));
            }
        } catch (InvalidProtocolBufferException error) {
            throw Errors.malformed("joined: " + error.getMessage(), error);
        }
    }

    /** Returns the part of a response's batch that was not received before; null if there is none. */
    private B read(ObtainSamplesResponse response) {
        switch (response.getContentCase()) {
            case BEGINNING -> begin(response.getBeginning());
            case BATCH, MULTI_AGENT_BATCH -> {
                B batch = resumption.take(kind.decode(response, numRows));
                if (batch != null) {
                    interruptions.advance();
                    numEndedEpisodes = Math.max(numEndedEpisodes, resumption.numEpisodes());
                }
                return batch;
            }
            case PROGRESS -> {
                numSimulatedSteps = response.getProgress().getSimulatedStepCount();
                numEndedEpisodes = Math.max(numEndedEpisodes, response.getProgress().getEndedEpisodeCount());
                interruptions.waitFor(response.getProgress().getWaitingFor());
                if (!response.getProgress().getWarning().isEmpty()) {
                    warnings.add(response.getProgress().getWarning());
                    connection.options().warningListener().accept(response.getProgress().getWarning());
                }
            }
            case ACCOUNT -> {
                account = response.getAccount();
                numSimulatedSteps = account.getSimulatedStepCount();
            }
            case SHARED, JOINED -> throw Errors.malformed("content", "one that the request accepts", "another one");
            default -> { } // a kind of content that a newer server adds, and that only some clients need
        }
        return null;
    }

    private void begin(Beginning beginning) {
        if (!resumption.hasBegun() && resumption.call().options().hasAgentUpdate()) {
            if (!beginning.getAgentUpdated()) {
                String expected = "a server that knows agents of calls (use updateAgent with this one)";
                String got = "one of an earlier version, which samples with the agent that is there";
                throw new ServerException(new Details(
                    Errors.mismatch("agent", expected, got), Status.Code.UNIMPLEMENTED, "", "agent", "", null));
            }
            connection.own().setAgent(beginning.getPolicyVersion(), beginning.getEnvironmentVersion());
        }
        resumption.begin(beginning);
        numRows = beginning.getRowCount();
    }
}
