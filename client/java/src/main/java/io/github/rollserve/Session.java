package io.github.rollserve;

import io.github.rollserve.v1.Beginning;
import io.github.rollserve.v1.DriveEnvironmentsRequest;
import io.github.rollserve.v1.DriveEnvironmentsResponse;
import io.github.rollserve.v1.DriveResumption;
import io.github.rollserve.v1.DriveSpec;
import io.github.rollserve.v1.DrivenActions;
import io.github.rollserve.v1.FragmentEnd;
import io.github.rollserve.v1.NamedTensor;
import io.github.rollserve.v1.SamplerServiceGrpc;
import io.github.rollserve.v1.SessionEnd;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Deadline;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayDeque;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
import java.util.Queue;
import java.util.TreeMap;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeoutException;

/**
 * Acts in the rows of a sampler, step by step, in place of its agent. The server records what happens.
 *
 * <pre>{@code
 * try (Session session = sampler.drive(new DriveOptions().withSeed(7))) {
 *     DrivenStep step = session.observe();
 *     for (int i = 0; i < 128; i++) {
 *         step = session.step(Columns.plain(policy(step.observations().plain())));
 *     }
 *     EpisodeBatch batch = session.batch();
 *     System.out.println(session.end());
 * }
 * }</pre>
 *
 * <p>A session that has failed throws the same exception from then on. One thread at a time may use a session; any may
 * close it. A thread that is interrupted while it waits gets a {@link CancelledException}, and the session is
 * cancelled.
 */
public final class Session implements AutoCloseable {
    private static final MethodDescriptor<DriveEnvironmentsRequest, DriveEnvironmentsResponse> METHOD = method();

    private static final DriveEnvironmentsRequest FRAGMENT_END =
        DriveEnvironmentsRequest.newBuilder().setFragmentEnd(FragmentEnd.getDefaultInstance()).build();

    private final Connection connection;
    private final String sampler;
    private final DriveEnvironmentsRequest first; // what is driven, or which session goes on
    private final boolean isReady; // whether rows do not wait for each other
    private final boolean isRecorded;
    private final boolean lasts; // whether the session has a lease
    private final Duration timeout;
    private final CallOptions callOptions;
    private final Interruptions interruptions;
    private final CountDownLatch closed = new CountDownLatch(1);
    private final Map<String, Form> infoForms = new TreeMap<>();
    private final Map<String, Form> actionForms = new TreeMap<>(); // once the session has begun, as the next three
    private final List<EpisodeBatch> batches = new ArrayList<>(); // of the round that is not complete
    private final List<EpisodeBatch> rounds = new ArrayList<>(); // that batch() has not returned
    private final SessionPosition position;
    private final Queue<DrivenStep> unread = new ArrayDeque<>(); // steps that no method has returned
    private final List<DrivenActions> outstanding = new ArrayList<>(); // with a lease, what no step has followed

    private volatile Attempt<DriveEnvironmentsResponse> attempt;
    private ClientCall<DriveEnvironmentsRequest, DriveEnvironmentsResponse> requests;
    private Space observationSpace;
    private Space actionSpace;
    private int numRows;
    private String token = "";
    private boolean hasBegun;
    private DrivenStep step; // the last one that a method has returned
    private boolean wantsFragmentEnd;
    private boolean wantsEnd;
    private long numRounds; // of the session, up to the last one that is complete
    private long numUnrecorded; // steps that rows were asked to make, and that no round has brought
    private io.github.rollserve.v1.Account account;
    private boolean isOver;
    private RollserveException failure; // how the session has ended, if not with its account

    /** The type and the shape of a row of a column. */
    private record Form(DataType dataType, int[] shape) {
        boolean isOf(Tensor column, int numRows) {
            return column.dataType() == dataType && Arrays.equals(column.shape(), withRows(numRows));
        }

        private int[] withRows(int numRows) {
            int[] whole = new int[shape.length + 1];
            whole[0] = numRows;
            System.arraycopy(shape, 0, whole, 1, shape.length);
            return whole;
        }
    }

    Session(
        Connection connection,
        String sampler,
        DriveEnvironmentsRequest first,
        DriveSpec options,
        boolean isRecorded,
        Duration timeout,
        Deadline deadline) {
        this.connection = connection;
        this.sampler = sampler;
        this.first = first;
        this.isReady = options.getMinReadyRowCount() > 0;
        this.isRecorded = isRecorded;
        this.lasts = first.hasResumption() || first.getSpec().getLeaseSeconds() > 0;
        this.timeout = timeout;
        this.position = new SessionPosition(isReady);
        this.interruptions = new Interruptions(connection, timeout, closed);
        for (NamedTensor info : options.getAgentInfosList()) {
            int[] shape = Tensors.shape(info.getName(), info.getTensor().getShapeList());
            DataType dataType = Tensors.dataType(info.getName(), info.getTensor().getDataTypeValue());
            infoForms.put(info.getName(), new Form(dataType, Arrays.copyOfRange(shape, 1, shape.length)));
        }
        callOptions = CallOptions.DEFAULT.withDeadline(deadline);
        open();
    }

    /** Opens a stream: of a new session, or of one that goes on, with what the stream before may have lost. */
    private void open() {
        DriveEnvironmentsRequest begin = first;
        if (hasBegun) {
            batches.clear();
            DriveResumption.Builder resumption = DriveResumption.newBuilder();
            resumption.setSampler(sampler).setToken(token).setRoundCount(numRounds);
            begin = DriveEnvironmentsRequest.newBuilder().setResumption(resumption).build();
        }
        DriveEnvironmentsRequest request = begin;
        attempt = Attempt.open(connection.channel(), METHOD, callOptions, call -> {
            requests = call;
            call.sendMessage(request);
            outstanding.forEach(actions -> call.sendMessage(request(actions)));
            if (wantsFragmentEnd) {
                call.sendMessage(FRAGMENT_END);
            }
            if (wantsEnd) {
                endRequests();
            }
        });
        if (closed.getCount() == 0) {
            attempt.cancel();
        }
    }

    private static DriveEnvironmentsRequest request(DrivenActions actions) {
        return DriveEnvironmentsRequest.newBuilder().setActions(actions).build();
    }

    private static DriveEnvironmentsRequest sessionEnd(boolean hasAccount) {
        SessionEnd end = SessionEnd.newBuilder().setHasAccount(hasAccount).build();
        return DriveEnvironmentsRequest.newBuilder().setSessionEnd(end).build();
    }

    /** {@return N, the number of rows of all workers, once the session has begun} */
    public int numRows() {
        awaitBeginning();
        return numRows;
    }

    /** {@return the space of a row's observations, once the session has begun} */
    public Space observationSpace() {
        awaitBeginning();
        return observationSpace;
    }

    /** {@return the space of a row's actions, once the session has begun} */
    public Space actionSpace() {
        awaitBeginning();
        return actionSpace;
    }

    /**
     * Waits for the beginning of the session.
     *
     * @return what takes a session with a lease up again, see {@link Sampler#resumeSession(String, DriveOptions)};
     *     empty for one without
     */
    public String token() {
        awaitBeginning();
        return token;
    }

    private void awaitBeginning() {
        while (!hasBegun) {
            receive();
        }
    }

    /**
     * Waits for the beginning of the session.
     *
     * @return the present step, with the observations that the next actions are for
     * @throws RollserveException if the session has failed
     */
    public DrivenStep observe() {
        checkFailure();
        return step == null ? next() : step;
    }

    /** Returns the first step that was received and not returned. */
    private DrivenStep next() {
        while (unread.isEmpty()) {
            receive();
        }
        step = unread.remove();
        return step;
    }

    /**
     * Acts in all rows; see {@link #step(Columns, StepOptions)}.
     *
     * @param actions (N, *A) for each leaf of the action space
     * @return what follows
     */
    public DrivenStep step(Columns actions) {
        return step(actions, new StepOptions());
    }

    /**
     * Acts in all rows.
     *
     * @param actions (N, *A) for each leaf of the action space, of its type
     * @param options infos of the actions, and rows that make no step
     * @return what follows
     * @throws InvalidArgumentException if actions or infos are of another form, and the session goes on; or if they are
     *     outside the action space, and the session has ended. No row has stepped then.
     * @throws RollserveException if the session has failed
     */
    public DrivenStep step(Columns actions, StepOptions options) {
        if (isReady) {
            throw Errors.invalid("step", "a session whose rows step together (call send and recv)", "minReady");
        }
        DrivenStep before = observe();
        boolean[] idle = Objects.requireNonNull(options, "options").idle();
        if (idle.length != 0 && idle.length != numRows) {
            throw Errors.invalid("idle", numRows + " values, or none", idle.length);
        }
        DrivenActions.Builder message = message(before, actions, options.agentInfos(), numRows);
        int numIdle = 0;
        for (boolean isIdle : idle) {
            message.addIdle(isIdle);
            numIdle += isIdle ? 1 : 0;
        }
        act(message.build(), numRows - numIdle);
        return next();
    }

    /**
     * Acts in the rows of the last step; see {@link #send(Columns, SendOptions)}.
     *
     * @param actions (K, *A) for each leaf of the action space
     */
    public void send(Columns actions) {
        send(actions, new SendOptions());
    }

    /**
     * Acts in rows of a session with {@link DriveOptions#withMinReady(int)} that wait for it, without waiting for what
     * follows: {@link #recv()} returns that.
     *
     * @param actions (K, *A) for each leaf of the action space, of its type
     * @param options the rows, and infos of the actions
     * @throws InvalidArgumentException if rows do not wait for actions, or actions or infos are of another form; the
     *     session goes on
     * @throws RollserveException if the session has failed
     */
    public void send(Columns actions, SendOptions options) {
        checkReady("send");
        DrivenStep before = observe();
        int[] given = Objects.requireNonNull(options, "options").rows();
        int[] rows = given.length == 0 ? before.rows() : given;
        DrivenActions.Builder message = message(before, actions, options.agentInfos(), rows.length);
        position.ask(rows, message);
        act(message.build(), rows.length);
    }

    /**
     * Waits for the next step of a session with {@link DriveOptions#withMinReady(int)}.
     *
     * @return the step, as soon as so many rows are ready
     * @throws RollserveException if the session has failed, also because of actions that were sent
     */
    public DrivenStep recv() {
        checkReady("recv");
        checkFailure();
        return next();
    }

    private void checkReady(String method) {
        if (!isReady) {
            throw Errors.invalid(method, "a session with minReady (call step)", "one whose rows step together");
        }
    }

    /** Returns the message with actions of a number of rows. */
    private DrivenActions.Builder message(DrivenStep before, Columns actions, Columns agentInfos, int count) {
        return DrivenActions.newBuilder()
            .setStep(before.number())
            .addAllActions(toWire("actions", Objects.requireNonNull(actions, "actions"), actionForms, count))
            .addAllAgentInfos(toWire("agentInfos", agentInfos, infoForms, count));
    }

    private void act(DrivenActions actions, int numSteps) {
        checkGoesOn();
        if (lasts) {
            outstanding.add(actions);
        }
        numUnrecorded += numSteps;
        send(request(actions));
    }

    /**
     * Ends the present fragments. After {@link #end()}, returns what was recorded and not taken.
     *
     * @return all that was recorded since the last call
     * @throws PreconditionException if nothing was
     * @throws RollserveException if the session has failed
     */
    public EpisodeBatch batch() {
        checkFailure();
        if (isRecording() && !isOver) {
            wantsFragmentEnd = true;
            send(FRAGMENT_END);
        }
        while (isRecording()) {
            receive();
        }
        if (rounds.isEmpty()) {
            throw Errors.premature("batch", "steps that are recorded and not taken", "none");
        }
        EpisodeBatch batch = EpisodeBatch.concatenate(rounds);
        rounds.clear();
        return batch;
    }

    private boolean isRecording() {
        return numUnrecorded > 0 && isRecorded;
    }

    /**
     * Ends the session with the last step.
     *
     * @return the account of the session
     * @throws RollserveException if the session has failed
     */
    public Account end() {
        checkFailure();
        if (!isOver) {
            wantsEnd = true;
            endRequests();
        }
        while (!isOver) {
            receive();
        }
        return Account.from(account, 0);
    }

    private void endRequests() {
        if (lasts) { // closing the requests looks as if the connection were lost
            send(sessionEnd(false));
            return;
        }
        try {
            requests.halfClose();
        } catch (IllegalStateException cancelled) {
            // which the receiver explains
        }
    }

    /** {@return the account of the session; empty before its end, or if it has failed} */
    public Optional<Account> account() {
        return isOver && failure == null ? Optional.of(Account.from(account, 0)) : Optional.empty();
    }

    /** Cancels the session unless it has ended. A thread that uses it gets a {@link CancelledException}. */
    @Override
    public void close() {
        closed.countDown();
        attempt.cancel();
    }

    private void checkFailure() {
        if (failure != null) {
            throw failure;
        }
    }

    private void checkGoesOn() {
        if (isOver) {
            throw Errors.premature("session", "one that goes on", "one that has ended");
        }
    }

    /** Sends a request. If the call is over, the receiver says how it has ended. */
    private void send(DriveEnvironmentsRequest request) {
        try {
            requests.sendMessage(request);
        } catch (IllegalStateException cancelled) {
            // which the receiver explains
        }
    }

    /** Receives a message, or ends the session. */
    private void receive() {
        checkFailure();
        checkGoesOn();
        try {
            DriveEnvironmentsResponse response = nextResponse();
            if (response != null) {
                connection.contact().record();
                read(response);
            } else if (account == null) {
                throw Errors.malformed("the session ended without its account", null);
            } else {
                isOver = true;
            }
        } catch (RollserveException error) {
            fail(error);
        } catch (TimeoutException silent) {
            fail(interruptions.silence());
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            fail(Errors.cancelled("the thread was interrupted", interrupted));
        }
    }

    /** Returns the next response, or null after the last one; takes the session up again where its stream is lost. */
    private DriveEnvironmentsResponse nextResponse() throws TimeoutException, InterruptedException {
        while (true) {
            try {
                return attempt.next(timeout);
            } catch (StatusRuntimeException error) {
                if (account != null) { // which is all that the client needs
                    return null;
                }
                boolean canRepeat = lasts && Errors.from(error).reason() != Reason.CLIENT_STALLED;
                interruptions.pause(error, hasBegun, canRepeat);
                open();
            }
        }
    }

    private void fail(RollserveException error) {
        failure = error;
        isOver = true;
        close();
        throw failure;
    }

    private void read(DriveEnvironmentsResponse response) {
        switch (response.getContentCase()) {
            case BEGINNING -> begin(response.getBeginning());
            case STEP -> show(response.getStep());
            case BATCH -> batches.add(BatchDecoder.decode(response.getBatch(), numRows));
            case ROUND -> {
                EpisodeBatch round = Joining.joinedRound(batches);
                batches.clear();
                rounds.add(round);
                // Another client may have asked for some of them.
                numUnrecorded = Math.max(numUnrecorded - round.numSteps(), 0);
                numRounds = response.getRound().getRoundNumber() + 1;
                wantsFragmentEnd = false;
            }
            case PROGRESS -> {
                interruptions.waitFor(response.getProgress().getWaitingFor());
                if (!response.getProgress().getWarning().isEmpty()) {
                    connection.options().warningListener().accept(response.getProgress().getWarning());
                }
            }
            case ACCOUNT -> {
                account = response.getAccount();
                if (lasts) {
                    send(sessionEnd(true)); // after which the server forgets the session
                }
            }
            case SHARED -> throw Errors.malformed("content", "one that the request accepts", "another one");
            default -> { } // a kind of content that a newer server adds, and that only some clients need
        }
    }

    private void show(io.github.rollserve.v1.DrivenStep message) {
        position.news(message).ifPresent(news -> {
            interruptions.advance();
            unread.add(isReady ? DrivenStep.ofReady(news) : DrivenStep.from(news, numRows));
            outstanding.removeIf(position::isBehind);
        });
    }

    private void begin(Beginning beginning) {
        hasBegun = true;
        token = beginning.getSessionToken();
        numRows = Math.toIntExact(beginning.getRowCount());
        position.begin(numRows);
        observationSpace = Spaces.from("observation_space", beginning.getObservationSpace());
        actionSpace = Spaces.from("action_space", beginning.getActionSpace());
        addForms(actionSpace, "");
    }

    /** Adds the form of each leaf of the action space, by its name. The path leads to the space. */
    private void addForms(Space space, String path) {
        String prefix = path.isEmpty() ? "" : path + "/";
        if (space instanceof Space.Box box) {
            actionForms.put(path, new Form(box.dataType(), shape(box.shape())));
        } else if (space instanceof Space.Discrete) {
            actionForms.put(path, new Form(DataType.INT64, new int[0]));
        } else if (space instanceof Space.MultiDiscrete choices) {
            actionForms.put(path, new Form(choices.dataType(), choices.numValues().shape()));
        } else if (space instanceof Space.MultiBinary flags) {
            actionForms.put(path, new Form(DataType.INT8, shape(flags.shape())));
        } else if (space instanceof Space.Dict dict) {
            dict.spaces().forEach((name, part) -> addForms(part, prefix + name));
        } else if (space instanceof Space.Tuple tuple) {
            for (int i = 0; i < tuple.spaces().size(); i++) {
                addForms(tuple.spaces().get(i), prefix + i);
            }
        }
    }

    private static int[] shape(List<Integer> sizes) {
        return sizes.stream().mapToInt(Integer::intValue).toArray();
    }

    private static List<NamedTensor> toWire(String field, Columns columns, Map<String, Form> forms, int count) {
        if (!columns.tensors().keySet().equals(forms.keySet())) {
            String expected = "the columns " + Columns.quoted(forms.keySet());
            throw Errors.invalid(field, expected, Columns.quoted(columns.tensors().keySet()));
        }
        forms.forEach((name, form) -> {
            Tensor column = columns.get(name);
            if (!form.isOf(column, count)) {
                String expected = form.dataType() + Arrays.toString(form.withRows(count));
                throw Errors.invalid(name.isEmpty() ? field : field + "['" + name + "']", expected, column);
            }
        });
        return Tensors.toWire(columns.tensors());
    }

    private static MethodDescriptor<DriveEnvironmentsRequest, DriveEnvironmentsResponse> method() {
        var method = SamplerServiceGrpc.getDriveEnvironmentsMethod();
        return method.toBuilder(
            method.getRequestMarshaller(),
            new AliasingMarshaller<>(method.getResponseMarshaller(), DriveEnvironmentsResponse.parser())).build();
    }
}
