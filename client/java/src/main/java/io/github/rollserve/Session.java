package io.github.rollserve;

import io.github.rollserve.v1.Beginning;
import io.github.rollserve.v1.DriveEnvironmentsRequest;
import io.github.rollserve.v1.DriveEnvironmentsResponse;
import io.github.rollserve.v1.DriveSpec;
import io.github.rollserve.v1.DrivenActions;
import io.github.rollserve.v1.FragmentEnd;
import io.github.rollserve.v1.NamedTensor;
import io.github.rollserve.v1.SamplerServiceGrpc;
import io.grpc.CallOptions;
import io.grpc.ClientCall;
import io.grpc.Deadline;
import io.grpc.MethodDescriptor;
import io.grpc.StatusRuntimeException;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.Optional;
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

    private final Connection connection;
    private final DriveSpec spec;
    private final Duration timeout;
    private final Interruptions interruptions;
    private final CountDownLatch closed = new CountDownLatch(1);
    private final Attempt<DriveEnvironmentsResponse> attempt;
    private final Map<String, Form> infoForms = new TreeMap<>();
    private final Map<String, Form> actionForms = new TreeMap<>(); // once the session has begun, as the next three
    private final List<EpisodeBatch> batches = new ArrayList<>(); // of the round that is not complete
    private final List<EpisodeBatch> rounds = new ArrayList<>(); // that batch() has not returned

    private ClientCall<DriveEnvironmentsRequest, DriveEnvironmentsResponse> requests;
    private Space observationSpace;
    private Space actionSpace;
    private int numRows;
    private DrivenStep step;
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

    Session(Connection connection, DriveSpec spec, Duration timeout, Deadline deadline) {
        this.connection = connection;
        this.spec = spec;
        this.timeout = timeout;
        this.interruptions = new Interruptions(connection, timeout, closed);
        for (NamedTensor info : spec.getAgentInfosList()) {
            int[] shape = Tensors.shape(info.getName(), info.getTensor().getShapeList());
            DataType dataType = Tensors.dataType(info.getName(), info.getTensor().getDataTypeValue());
            infoForms.put(info.getName(), new Form(dataType, Arrays.copyOfRange(shape, 1, shape.length)));
        }
        CallOptions callOptions = CallOptions.DEFAULT.withDeadline(deadline);
        attempt = Attempt.open(connection.channel(), METHOD, callOptions, call -> {
            requests = call;
            call.sendMessage(DriveEnvironmentsRequest.newBuilder().setSpec(spec).build());
        });
    }

    /** {@return N, the number of rows of all workers, once the session has begun} */
    public int numRows() {
        observe();
        return numRows;
    }

    /** {@return the space of a row's observations, once the session has begun} */
    public Space observationSpace() {
        observe();
        return observationSpace;
    }

    /** {@return the space of a row's actions, once the session has begun} */
    public Space actionSpace() {
        observe();
        return actionSpace;
    }

    /**
     * Waits for the beginning of the session.
     *
     * @return the present step, with the observations that the next actions are for
     * @throws RollserveException if the session has failed
     */
    public DrivenStep observe() {
        checkFailure();
        while (step == null) {
            receive();
        }
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
        DrivenStep before = observe();
        boolean[] idle = Objects.requireNonNull(options, "options").idle();
        if (idle.length != 0 && idle.length != numRows) {
            throw Errors.invalid("idle", numRows + " values, or none", idle.length);
        }
        DrivenActions.Builder message = DrivenActions.newBuilder()
            .setStep(before.number())
            .addAllActions(toWire("actions", Objects.requireNonNull(actions, "actions"), actionForms))
            .addAllAgentInfos(toWire("agentInfos", options.agentInfos(), infoForms));
        int numIdle = 0;
        for (boolean isIdle : idle) {
            message.addIdle(isIdle);
            numIdle += isIdle ? 1 : 0;
        }
        send(DriveEnvironmentsRequest.newBuilder().setActions(message).build());
        numUnrecorded += numRows - numIdle;
        while (step == before) {
            receive();
        }
        return step;
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
            send(DriveEnvironmentsRequest.newBuilder().setFragmentEnd(FragmentEnd.getDefaultInstance()).build());
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
        return numUnrecorded > 0 && !spec.getOptions().getBlackhole();
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
            try {
                requests.halfClose();
            } catch (IllegalStateException cancelled) {
                // which the receiver explains
            }
        }
        while (!isOver) {
            receive();
        }
        return Account.from(account, 0);
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

    /** Sends a request. If the call is over, the receiver says how it has ended. */
    private void send(DriveEnvironmentsRequest request) {
        if (isOver) {
            throw Errors.premature("session", "one that goes on", "one that has ended");
        }
        try {
            requests.sendMessage(request);
        } catch (IllegalStateException cancelled) {
            // which the receiver explains
        }
    }

    /** Receives a message, or ends the session. */
    private void receive() {
        checkFailure();
        if (isOver) {
            throw Errors.premature("session", "one that goes on", "one that has ended");
        }
        try {
            DriveEnvironmentsResponse response = attempt.next(timeout);
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
        } catch (StatusRuntimeException error) {
            fail(interruptions.failure(error));
        } catch (TimeoutException silent) {
            fail(interruptions.silence());
        } catch (InterruptedException interrupted) {
            Thread.currentThread().interrupt();
            fail(Errors.cancelled("the thread was interrupted", interrupted));
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
            case STEP -> {
                interruptions.advance();
                step = DrivenStep.from(response.getStep(), numRows);
            }
            case BATCH -> batches.add(BatchDecoder.decode(response.getBatch(), numRows));
            case ROUND -> {
                EpisodeBatch round = Joining.joinedRound(batches);
                batches.clear();
                rounds.add(round);
                numUnrecorded -= round.numSteps();
            }
            case PROGRESS -> {
                interruptions.waitFor(response.getProgress().getWaitingFor());
                if (!response.getProgress().getWarning().isEmpty()) {
                    connection.options().warningListener().accept(response.getProgress().getWarning());
                }
            }
            case ACCOUNT -> account = response.getAccount();
            case SHARED -> throw Errors.malformed("content", "one that the request accepts", "another one");
            default -> { } // a kind of content that a newer server adds, and that only some clients need
        }
    }

    private void begin(Beginning beginning) {
        numRows = Math.toIntExact(beginning.getRowCount());
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

    private List<NamedTensor> toWire(String field, Columns columns, Map<String, Form> forms) {
        if (!columns.tensors().keySet().equals(forms.keySet())) {
            String expected = "the columns " + Columns.quoted(forms.keySet());
            throw Errors.invalid(field, expected, Columns.quoted(columns.tensors().keySet()));
        }
        forms.forEach((name, form) -> {
            Tensor column = columns.get(name);
            if (!form.isOf(column, numRows)) {
                String expected = form.dataType() + Arrays.toString(form.withRows(numRows));
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
