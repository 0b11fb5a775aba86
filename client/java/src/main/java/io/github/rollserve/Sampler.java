package io.github.rollserve;

import io.github.rollserve.v1.CallEnvironmentsRequest;
import io.github.rollserve.v1.CallEnvironmentsResponse;
import io.github.rollserve.v1.DriveEnvironmentsRequest;
import io.github.rollserve.v1.DriveSpec;
import io.github.rollserve.v1.EnvironmentUpdate;
import io.github.rollserve.v1.EvaluatePopulationRequest;
import io.github.rollserve.v1.EvaluatePopulationResponse;
import io.github.rollserve.v1.EvaluateRequest;
import io.github.rollserve.v1.EvaluateResponse;
import io.github.rollserve.v1.GetSamplerRequest;
import io.github.rollserve.v1.SamplerServiceGrpc;
import io.github.rollserve.v1.UpdateAgentRequest;
import io.github.rollserve.v1.UpdateAgentResponse;
import io.github.rollserve.v1.UpdateEnvRequest;
import io.grpc.Channel;
import io.grpc.MethodDescriptor;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Objects;
import java.util.Optional;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.Executor;
import java.util.concurrent.atomic.AtomicReference;
import java.util.function.Function;

/**
 * A client of a sampler on a server: it sends agents and environments, and receives episodes. Threads can share it.
 *
 * <p>All methods throw a {@link RollserveException} if the call fails; its subclasses say what the caller can do. A
 * thread that is interrupted while it waits gets a {@link CancelledException}, and its call is cancelled. An update
 * that fails changes nothing on the server. A sampling call that fails or is cancelled uses up the indices of the
 * episodes that it may have delivered, if it continued the sampler's own sequence; a fragment call leaves the rows
 * where they were.
 *
 * <p>Calls sample with the agent and the environment that this client set, or fail with a {@link PreconditionException}
 * ({@link Reason#UNEXPECTED_VERSION}) if another client has updated them since, unless
 * {@link ConnectionOptions#withShared(boolean)} is set. What this client has not set, or what a call names by its
 * version, may be anybody's.
 */
public final class Sampler implements AutoCloseable {
    private static final MethodDescriptor<EvaluateRequest, EvaluateResponse> EVALUATE = evaluateMethod();
    /** How long a server may make environments, while it can be reached. */
    private static final Duration MAKING_TIME = Duration.ofMinutes(10);

    private final Connection connection;
    private final Duration timeout;
    private final Duration makingTimeout;
    private final SampleStreams<EpisodeBatch> streams;

    private Sampler(Connection connection, Duration timeout, Duration makingTimeout) {
        this.connection = connection;
        this.timeout = timeout;
        this.makingTimeout = makingTimeout;
        this.streams = new SampleStreams<>(connection, timeout, BatchKind.ONE_AGENT);
    }

    /**
     * Returns the default sampler of a server, without encryption. The first call opens the connection.
     *
     * @param target the server's address, such as {@code 127.0.0.1:50051} or any name that gRPC knows
     * @return the sampler
     * @throws InvalidArgumentException if the target cannot be used
     */
    public static Sampler connect(String target) {
        return connect(target, new ConnectionOptions());
    }

    /**
     * Returns a sampler of a server. The first call opens the connection.
     *
     * @param target the server's address
     * @param options the sampler's name, TLS, tokens and timeouts
     * @return the sampler
     * @throws InvalidArgumentException if the target or an option cannot be used
     */
    public static Sampler connect(String target, ConnectionOptions options) {
        Duration timeout = Objects.requireNonNull(options, "options").timeout();
        return new Sampler(Connection.to(target, options), timeout, timeout.plus(MAKING_TIME));
    }

    /**
     * Returns this sampler with another timeout: the same connection, and the same versions of this client.
     *
     * @param time the time of calls with one answer, and the time without progress of all others
     * @return a view of this sampler; closing it closes this one, too
     */
    @CheckReturnValue
    public Sampler withTimeout(Duration time) {
        Duration timeout = Timeouts.positive("timeout", time);
        return new Sampler(connection, timeout, timeout);
    }

    /**
     * Returns the sampling calls for an environment with many agents. All other calls are the same for one.
     *
     * @return a view of this sampler, with its timeout
     */
    public MultiAgentSampler multiAgent() {
        return new MultiAgentSampler(new SampleStreams<>(connection, timeout, BatchKind.MANY_AGENTS));
    }

    /**
     * Makes calls in a thread of their own. A future that is cancelled, or completed in another way such as by
     * {@link CompletableFuture#orTimeout}, interrupts the thread and so cancels the call that runs:
     *
     * <pre>{@code
     * CompletableFuture<EpisodeBatch> next = sampler.async(each -> each.obtainSamples(10_000));
     * learn(batch); // meanwhile
     * batch = next.join();
     * }</pre>
     *
     * @param <T> the type of the result
     * @param calls makes one call or more with this sampler, and returns a result
     * @return the result; of a call that fails, the {@link RollserveException}
     */
    public <T> CompletableFuture<T> async(Function<? super Sampler, ? extends T> calls) {
        return async(calls, task -> {
            Thread thread = new Thread(task, "rollserve-call");
            thread.setDaemon(true);
            thread.start();
        });
    }

    /**
     * Makes calls in a thread of an executor; see {@link #async(Function)}.
     *
     * @param <T> the type of the result
     * @param calls makes one call or more with this sampler, and returns a result
     * @param executor runs the calls, which block their thread, in another thread than the caller's
     * @return the result; of a call that fails, the {@link RollserveException}
     */
    public <T> CompletableFuture<T> async(Function<? super Sampler, ? extends T> calls, Executor executor) {
        Objects.requireNonNull(calls, "calls");
        return AsyncCall.start(() -> calls.apply(this), Objects.requireNonNull(executor, "executor"));
    }

    /** Closes the connection. Calls that are running, and later ones, throw a {@link CancelledException}. */
    @Override
    public void close() {
        connection.close();
    }

    /**
     * Returns the channel of the connection, with its token, for RPCs that this class has no method for:
     * {@code SamplerServiceGrpc.newBlockingStub(sampler.channel())}. Errors of such RPCs are gRPC's.
     *
     * @return the channel
     */
    public Channel channel() {
        return connection.channel();
    }

    /**
     * Gives all workers a new agent, or new parameters or settings for the present one.
     *
     * @param agent an agent, parameters or a change
     * @return the new policy version, once every worker has it
     */
    public long updateAgent(AgentUpdate agent) {
        Objects.requireNonNull(agent, "agent");
        return update(UpdateAgentRequest.newBuilder().setAllWorkers(AgentMessages.of(agent)));
    }

    /**
     * Gives all workers a new agent, or new parameters or settings, unless each worker's agent is already, to the last
     * bit, what the update would make of it.
     *
     * @param agent an agent, parameters or a change
     * @return the new policy version; the current one if nothing was done
     */
    public long updateAgentIfDifferent(AgentUpdate agent) {
        Objects.requireNonNull(agent, "agent");
        return update(
            UpdateAgentRequest.newBuilder().setAllWorkers(AgentMessages.of(agent)).setSkipIfIdentical(true));
    }

    /**
     * Gives each worker an agent of its own, or an update of its agent.
     *
     * @param agents one update for each worker, in the order of their indices; empty to leave the worker's agent as it
     *     is
     * @return the new policy version, once every worker has it
     */
    public long updateAgentPerWorker(List<? extends Optional<? extends AgentUpdate>> agents) {
        UpdateAgentRequest.Builder request = UpdateAgentRequest.newBuilder();
        for (Optional<? extends AgentUpdate> agent : Arguments.list("agents", agents)) {
            request.getPerWorkerBuilder().addUpdates(agent.isPresent()
                ? AgentMessages.of(agent.get())
                : io.github.rollserve.v1.AgentUpdate.getDefaultInstance());
        }
        return update(request);
    }

    private long update(UpdateAgentRequest.Builder request) {
        connection.own().expectIn(request.setSampler(name()));
        UpdateAgentResponse response =
            connection.answer(SamplerServiceGrpc.getUpdateAgentMethod(), request.build(), timeout, timeout);
        connection.own().setAgent(response.getPolicyVersion(), response.getEnvironmentVersion());
        return response.getPolicyVersion();
    }

    /**
     * Replaces the environments of all workers by one without arguments.
     *
     * @param id the id of the environment, such as {@code CartPole-v1}
     * @return the version and the spaces of the new environments, once every worker has them
     */
    public EnvUpdated updateEnv(String id) {
        return updateEnv(new EnvSpec(id));
    }

    /**
     * Replaces or changes the environments of all workers.
     *
     * @param env a specification, a change, or updates for each row of a worker
     * @return the version and the spaces of the new environments, once every worker has them
     */
    public EnvUpdated updateEnv(EnvUpdate env) {
        Objects.requireNonNull(env, "env");
        return update(UpdateEnvRequest.newBuilder().setAllWorkers(EnvMessages.of(env)));
    }

    /**
     * Gives each worker environments of its own, or an update of them. The spaces of all workers have to be equal.
     *
     * @param envs one update for each worker, in the order of their indices; empty to leave the worker's environments
     *     as they are
     * @return the version and the spaces of the new environments, once every worker has them
     */
    public EnvUpdated updateEnvPerWorker(List<? extends Optional<? extends EnvUpdate>> envs) {
        UpdateEnvRequest.Builder request = UpdateEnvRequest.newBuilder();
        for (Optional<? extends EnvUpdate> env : Arguments.list("envs", envs)) {
            request.getPerWorkerBuilder().addUpdates(env.isPresent()
                ? EnvMessages.of(env.get())
                : EnvironmentUpdate.getDefaultInstance());
        }
        return update(request);
    }

    /**
     * Calls a method of the workers' environments of the current version, which are made for the call.
     *
     * @param method the name of the method, which the server's operator has to allow
     * @param arguments the arguments: values that JSON can hold
     * @return the values, as JSON has them (maps, lists, texts, {@link Long}, {@link Double}, {@link Boolean} and
     *     null): one for each element of {@link SamplerStatus#envs()}
     */
    public List<Object> callEnvironments(String method, Object... arguments) {
        return call(CallEnvironmentsRequest.newBuilder(), method, arguments);
    }

    /**
     * Calls a method of the workers' environments of a version; see {@link #callEnvironments(String, Object...)}.
     *
     * @param envVersion the version of the environments
     * @param method the name of the method
     * @param arguments the arguments
     * @return the values: one for each element that {@link SamplerStatus#envs()} has at this version
     */
    public List<Object> callEnvironments(long envVersion, String method, Object... arguments) {
        return call(CallEnvironmentsRequest.newBuilder().setEnvironmentVersion(envVersion), method, arguments);
    }

    private List<Object> call(CallEnvironmentsRequest.Builder request, String method, Object[] arguments) {
        Objects.requireNonNull(arguments, "arguments");
        request.setSampler(name()).setMethod(Objects.requireNonNull(method, "method"));
        for (int i = 0; i < arguments.length; i++) {
            request.addArgumentsJson(Json.value("arguments[" + i + "]", arguments[i]));
        }
        connection.own().expectIn(request);
        CallEnvironmentsResponse response =
            connection.answer(SamplerServiceGrpc.getCallEnvironmentsMethod(), request.build(), timeout, makingTimeout);
        List<Object> values = new ArrayList<>(); // which can be null
        response.getValuesJsonList().forEach(value -> values.add(Json.readValue("values_json", value)));
        return Collections.unmodifiableList(values);
    }

    private EnvUpdated update(UpdateEnvRequest.Builder request) {
        connection.own().expectIn(request.setSampler(name()));
        EnvUpdated updated = EnvUpdated.from(
            connection.answer(SamplerServiceGrpc.getUpdateEnvMethod(), request.build(), timeout, makingTimeout));
        connection.own().setEnv(updated.envVersion());
        return updated;
    }

    /** {@return the state of the sampler and of its workers} */
    public SamplerStatus status() {
        GetSamplerRequest request = GetSamplerRequest.newBuilder().setSampler(name()).build();
        return SamplerStatus.from(
            connection.answer(SamplerServiceGrpc.getGetSamplerMethod(), request, timeout, timeout));
    }

    /**
     * Samples whole episodes with at least a number of steps in all: the fewest, in the order of their indices.
     *
     * @param numSteps the least number of steps
     * @return the episodes, with the account
     */
    public EpisodeBatch obtainSamples(long numSteps) {
        return obtainSamples(numSteps, new SamplingOptions());
    }

    /**
     * Samples whole episodes with at least a number of steps in all; see {@link #obtainSamples(long)}.
     *
     * @param numSteps the least number of steps
     * @param options options of the call
     * @return the episodes, with the account
     */
    public EpisodeBatch obtainSamples(long numSteps, SamplingOptions options) {
        return streams.join(streams.samples(numSteps, options));
    }

    /**
     * Samples an exact number of episodes on each worker: first all of worker 0, then all of worker 1, and so on.
     *
     * @param numEpisodesPerWorker the number of episodes of each worker
     * @return the episodes, with the account
     */
    public EpisodeBatch obtainExactEpisodes(long numEpisodesPerWorker) {
        return obtainExactEpisodes(numEpisodesPerWorker, new SamplingOptions());
    }

    /**
     * Samples an exact number of episodes on each worker; see {@link #obtainExactEpisodes(long)}.
     *
     * @param numEpisodesPerWorker the number of episodes of each worker
     * @param options options of the call
     * @return the episodes, with the account
     */
    public EpisodeBatch obtainExactEpisodes(long numEpisodesPerWorker, SamplingOptions options) {
        return streams.join(streams.exactEpisodes(numEpisodesPerWorker, options));
    }

    /**
     * Samples an exact number of steps, equally many of each row; episodes continue from call to call. Each segment is
     * a fragment: the part of an episode that this call delivers.
     *
     * @param numSteps the number of steps, a multiple of the number of rows of all workers
     * @return the fragments, with the account
     */
    public EpisodeBatch obtainFragments(long numSteps) {
        return obtainFragments(numSteps, new FragmentOptions());
    }

    /**
     * Samples an exact number of steps; see {@link #obtainFragments(long)}.
     *
     * @param numSteps the number of steps, a multiple of the number of rows of all workers
     * @param options options of the call
     * @return the fragments, with the account
     */
    public EpisodeBatch obtainFragments(long numSteps, FragmentOptions options) {
        return streams.join(streams.fragments(numSteps, options));
    }

    /**
     * Streams what {@link #obtainSamples(long)} returns, message by message. An episode may continue in the next
     * message.
     *
     * @param numSteps the least number of steps
     * @return the stream of the call, which begins at once
     */
    public SampleStream<EpisodeBatch> streamSamples(long numSteps) {
        return streamSamples(numSteps, new SamplingOptions());
    }

    /**
     * Streams what {@link #obtainSamples(long, SamplingOptions)} returns, message by message.
     *
     * @param numSteps the least number of steps
     * @param options options of the call
     * @return the stream of the call, which begins at once
     */
    public SampleStream<EpisodeBatch> streamSamples(long numSteps, SamplingOptions options) {
        return streams.samples(numSteps, options).begin();
    }

    /**
     * Streams what {@link #obtainExactEpisodes(long, SamplingOptions)} returns, message by message.
     *
     * @param numEpisodesPerWorker the number of episodes of each worker
     * @param options options of the call
     * @return the stream of the call, which begins at once
     */
    public SampleStream<EpisodeBatch> streamExactEpisodes(long numEpisodesPerWorker, SamplingOptions options) {
        return streams.exactEpisodes(numEpisodesPerWorker, options).begin();
    }

    /**
     * Streams what {@link #obtainFragments(long, FragmentOptions)} returns, message by message. A fragment may continue
     * in the next message.
     *
     * @param numSteps the number of steps, a multiple of the number of rows of all workers
     * @param options options of the call
     * @return the stream of the call, which begins at once
     */
    public SampleStream<EpisodeBatch> streamFragments(long numSteps, FragmentOptions options) {
        return streams.fragments(numSteps, options).begin();
    }

    /**
     * Lets the caller act in all rows of the sampler's environments, step by step, in place of its agent.
     *
     * <p>Rows are reset in the step that ends an episode. The same seed and the same actions give the same episodes,
     * with any number of workers and after any crash. The token needs the scope {@code drive}.
     *
     * @return the session, which begins at once
     */
    public Session drive() {
        return drive(new DriveOptions());
    }

    /**
     * Lets the caller act in all rows of the sampler's environments; see {@link #drive()}.
     *
     * @param options options of the session
     * @return the session, which begins at once
     */
    public Session drive(DriveOptions options) {
        Objects.requireNonNull(options, "options");
        io.github.rollserve.v1.SamplingOptions.Builder sampling = options.sampling().toWire(connection.options());
        connection.own().expectIn(sampling);
        // No agent of the sampler acts.
        sampling.clearExpectedPolicyVersion().setAcceptJoined(false).setReturnSpaces(true);
        DriveSpec spec = options.toWire().toBuilder().setSampler(name()).setOptions(sampling).build();
        return session(DriveEnvironmentsRequest.newBuilder().setSpec(spec).build(), options);
    }

    /**
     * Goes on with a session that another client has begun with {@link DriveOptions#withLease(Duration)}, at the same
     * step. That client loses it. Rounds that it may not have got come again.
     *
     * <p>The session's methods throw an {@link InvalidArgumentException} with {@link Reason#SESSION_NOT_FOUND} if it
     * has ended, or belongs to another client.
     *
     * @param token the session's token
     * @param options those that it was begun with: the infos, the blackhole, the ready rows and the times count
     * @return the session, which goes on at once
     */
    public Session resumeSession(String token, DriveOptions options) {
        DriveEnvironmentsRequest.Builder first = DriveEnvironmentsRequest.newBuilder();
        first.getResumptionBuilder().setSampler(name()).setToken(Objects.requireNonNull(token, "token"));
        return session(first.build(), Objects.requireNonNull(options, "options"));
    }

    private Session session(DriveEnvironmentsRequest first, DriveOptions options) {
        boolean isRecorded = !options.sampling().toWire(connection.options()).getBlackhole();
        Duration time = options.sampling().timeoutOr(timeout);
        return new Session(
            connection, name(), first, options.toWire(), isRecorded, time, options.sampling().startDeadline());
    }

    /**
     * Evaluates the agent on a number of episodes, in environments that only evaluations use. It uses and changes
     * nothing of the sampler's own, such as its sequence or its environments. Without a seed, every evaluation plays
     * the same episodes.
     *
     * @param numEpisodes the number of episodes
     * @return the result
     */
    public Evaluation evaluate(int numEpisodes) {
        return evaluate(numEpisodes, new EvaluationOptions());
    }

    /**
     * Evaluates the agent on a number of episodes; see {@link #evaluate(int)}.
     *
     * @param numEpisodes the number of episodes
     * @param options options of the call
     * @return the result
     */
    public Evaluation evaluate(int numEpisodes, EvaluationOptions options) {
        Objects.requireNonNull(options, "options");
        EvaluateRequest.Builder request =
            EvaluateRequest.newBuilder().setSampler(name()).setEpisodeCount(numEpisodes).setOptions(options.toWire());
        options.setDelivery(request, connection.options());
        connection.own().expectIn(request.getOptionsBuilder());
        List<EpisodeBatch> batches = new ArrayList<>();
        List<MultiAgentBatch> multiAgentBatches = new ArrayList<>();
        AtomicReference<io.github.rollserve.v1.Evaluation> result = new AtomicReference<>();
        new EvaluationCall<EvaluateResponse>(
            connection, request.getOptionsBuilder(), options.timeoutOr(timeout), options.startDeadline(),
            response -> response.hasBeginning() ? response.getBeginning() : null,
            response -> response.hasProgress() ? response.getProgress() : null)
            .run(
                callOptions -> {
                    batches.clear(); // a repeated call delivers all episodes again
                    multiAgentBatches.clear();
                    return Attempt.start(channel(), EVALUATE, callOptions, request.build());
                },
                response -> {
                    if (response.hasBatch()) {
                        batches.add(BatchDecoder.decode(response.getBatch(), 0));
                    } else if (response.hasMultiAgentBatch()) {
                        multiAgentBatches.add(MultiAgentDecoder.decode(response.getMultiAgentBatch()));
                    } else if (response.hasEvaluation()) {
                        result.set(response.getEvaluation());
                    }
                });
        io.github.rollserve.v1.Evaluation evaluation = checkEnd(result.get());
        boolean hasMany = evaluation.hasAgentReturns();
        return Evaluation.from(
            evaluation,
            request.hasEpisodes() && !hasMany
                ? Optional.of(Joining.joinedWithAccount(batches, evaluation.getAccount(), 0))
                : Optional.empty(),
            request.hasEpisodes() && hasMany
                ? Optional.of(Joining.joinedManyWithAccount(multiAgentBatches, evaluation.getAccount(), 0))
                : Optional.empty());
    }

    /**
     * Evaluates K parameter sets of the agent, the members of a population, on a number of episodes each.
     *
     * @param parameters parameters with one more axis in front, of size K; those that are left out are the agent's own
     * @param numEpisodes the number of episodes of each member
     * @param options options of the call
     * @return the result
     */
    public PopulationEvaluation evaluatePopulation(
        Parameters parameters, int numEpisodes, EvaluationOptions options) {
        Objects.requireNonNull(options, "options");
        EvaluatePopulationRequest.Builder request = EvaluatePopulationRequest.newBuilder()
            .setSampler(name())
            .setParameters(AgentMessages.of(parameters))
            .setEpisodeCount(numEpisodes)
            .setOptions(options.toWire())
            .setDifferentEpisodes(options.hasDifferentEpisodes());
        connection.own().expectIn(request.getOptionsBuilder());
        AtomicReference<io.github.rollserve.v1.PopulationEvaluation> result = new AtomicReference<>();
        new EvaluationCall<EvaluatePopulationResponse>(
            connection, request.getOptionsBuilder(), options.timeoutOr(timeout), options.startDeadline(),
            response -> response.hasBeginning() ? response.getBeginning() : null,
            response -> response.hasProgress() ? response.getProgress() : null)
            .run(
                callOptions -> Attempt.start(
                    channel(), SamplerServiceGrpc.getEvaluatePopulationMethod(), callOptions, request.build()),
                response -> {
                    if (response.hasEvaluation()) {
                        result.set(response.getEvaluation());
                    }
                });
        return PopulationEvaluation.from(checkEnd(result.get()));
    }

    private static <T> T checkEnd(T result) {
        if (result == null) {
            throw Errors.malformed("the stream ended without its evaluation", null);
        }
        return result;
    }

    private String name() {
        return connection.options().sampler();
    }

    private static MethodDescriptor<EvaluateRequest, EvaluateResponse> evaluateMethod() {
        MethodDescriptor<EvaluateRequest, EvaluateResponse> method = SamplerServiceGrpc.getEvaluateMethod();
        return method.toBuilder(
            method.getRequestMarshaller(),
            new AliasingMarshaller<>(method.getResponseMarshaller(), EvaluateResponse.parser())).build();
    }
}
