package io.github.rollserve;

import com.google.protobuf.ByteString;
import com.google.protobuf.InvalidProtocolBufferException;
import com.google.protobuf.Message;
import com.google.rpc.BadRequest;
import io.github.rollserve.v1.CallEnvironmentsRequest;
import io.github.rollserve.v1.CallEnvironmentsResponse;
import io.github.rollserve.v1.DriveEnvironmentsRequest;
import io.github.rollserve.v1.DriveEnvironmentsResponse;
import io.github.rollserve.v1.EvaluateRequest;
import io.github.rollserve.v1.EvaluateResponse;
import io.github.rollserve.v1.GetSamplerRequest;
import io.github.rollserve.v1.GetSamplerResponse;
import io.github.rollserve.v1.ObtainExactEpisodesRequest;
import io.github.rollserve.v1.ObtainExactEpisodesResponse;
import io.github.rollserve.v1.ObtainSamplesRequest;
import io.github.rollserve.v1.ObtainSamplesResponse;
import io.github.rollserve.v1.SamplerServiceGrpc;
import io.github.rollserve.v1.UpdateAgentRequest;
import io.github.rollserve.v1.UpdateAgentResponse;
import io.github.rollserve.v1.UpdateEnvRequest;
import io.github.rollserve.v1.UpdateEnvResponse;
import io.grpc.Context;
import io.grpc.Contexts;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.Server;
import io.grpc.ServerCall;
import io.grpc.ServerCallHandler;
import io.grpc.ServerCredentials;
import io.grpc.ServerInterceptor;
import io.grpc.Status;
import io.grpc.protobuf.StatusProto;
import io.grpc.stub.StreamObserver;
import java.io.IOException;
import java.util.List;
import java.util.Queue;
import java.util.concurrent.ConcurrentLinkedQueue;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.function.Consumer;

/** A server on a real connection whose streams send what a test says: responses, and an end, for each call. */
final class ScriptedServer extends SamplerServiceGrpc.SamplerServiceImplBase implements AutoCloseable {
    static final End OVER = StreamObserver::onCompleted;
    static final End SILENT = observer -> { };
    static final End BROKEN = observer ->
        observer.onError(Status.UNAVAILABLE.withDescription("connection lost").asRuntimeException());
    static final End RESET = observer ->
        observer.onError(Status.CANCELLED.withDescription("CANCELLED").asRuntimeException());
    private static final Context.Key<Metadata> METADATA = Context.key("metadata");

    final List<Message> requests = new CopyOnWriteArrayList<>();
    final List<Metadata> metadata = new CopyOnWriteArrayList<>();
    private final List<Call> calls;
    private final Server server;
    private final Queue<List<Turn>> sessions = new ConcurrentLinkedQueue<>(); // the last one again and again

    /** How a call ends. */
    interface End extends Consumer<StreamObserver<?>> {}

    /** What the server does in one call of a stream. */
    record Call(End end, ObtainSamplesResponse... responses) {}

    /**
     * What the server does in a session at a request, or at the end of the requests. Without an end, the session goes
     * on.
     */
    record Turn(End end, DriveEnvironmentsResponse... responses) {
        Turn(DriveEnvironmentsResponse... responses) {
            this(SILENT, responses);
        }
    }

    /** Returns a server that does the same in each session. */
    static ScriptedServer driven(Turn... turns) {
        return new ScriptedServer().then(turns);
    }

    /** Adds what the server does in later streams of sessions. */
    ScriptedServer then(Turn... turns) {
        sessions.add(List.of(turns));
        return this;
    }

    ScriptedServer(Call... calls) {
        this(0, calls);
    }

    ScriptedServer(int port, Call... calls) {
        this(port, InsecureServerCredentials.create(), calls);
    }

    ScriptedServer(ServerCredentials credentials, Call... calls) {
        this(0, credentials, calls);
    }

    private ScriptedServer(int port, ServerCredentials credentials, Call... calls) {
        this.calls = List.of(calls);
        try {
            server = Grpc.newServerBuilderForPort(port, credentials)
                .addService(this)
                .intercept(keepMetadata())
                .build()
                .start();
        } catch (IOException error) {
            throw new IllegalStateException(error);
        }
    }

    private static ServerInterceptor keepMetadata() {
        return new ServerInterceptor() {
            @Override
            public <Q, R> ServerCall.Listener<Q> interceptCall(
                ServerCall<Q, R> call, Metadata headers, ServerCallHandler<Q, R> next) {
                return Contexts.interceptCall(Context.current().withValue(METADATA, headers), call, headers, next);
            }
        };
    }

    String target() {
        return "127.0.0.1:" + server.getPort();
    }

    Sampler connect() {
        return Sampler.connect(target());
    }

    @Override
    public void close() {
        server.shutdownNow();
    }

    /** Records a request, and returns its position among all. */
    private int record(Message request) {
        metadata.add(METADATA.get());
        requests.add(request);
        return requests.size() - 1;
    }

    @Override
    public void obtainSamples(ObtainSamplesRequest request, StreamObserver<ObtainSamplesResponse> observer) {
        Call call = calls.get(record(request));
        List.of(call.responses()).forEach(observer::onNext);
        call.end().accept(observer);
    }

    @Override
    public void obtainExactEpisodes(
        ObtainExactEpisodesRequest request, StreamObserver<ObtainExactEpisodesResponse> observer) {
        Call call = calls.get(record(request));
        for (ObtainSamplesResponse response : call.responses()) {
            try {
                observer.onNext(ObtainExactEpisodesResponse.parseFrom(response.toByteString()));
            } catch (InvalidProtocolBufferException error) {
                throw new IllegalStateException(error);
            }
        }
        call.end().accept(observer);
    }

    @Override
    public StreamObserver<DriveEnvironmentsRequest> driveEnvironments(
        StreamObserver<DriveEnvironmentsResponse> observer) {
        List<Turn> turns = sessions.size() > 1 ? sessions.remove() : sessions.element();
        return new StreamObserver<>() {
            private int next;

            @Override
            public void onNext(DriveEnvironmentsRequest request) {
                record(request);
                respond();
            }

            @Override
            public void onCompleted() {
                respond();
            }

            @Override
            public void onError(Throwable cancelled) { }

            private void respond() {
                Turn turn = turns.get(next++);
                List.of(turn.responses()).forEach(observer::onNext);
                turn.end().accept(observer);
            }
        };
    }

    /** Responds with the batches of the next call, and with its account as the one of an evaluation of two agents. */
    @Override
    public void evaluate(EvaluateRequest request, StreamObserver<EvaluateResponse> observer) {
        Call call = calls.get(record(request));
        for (ObtainSamplesResponse response : call.responses()) {
            EvaluateResponse.Builder same = EvaluateResponse.newBuilder();
            switch (response.getContentCase()) {
                case BEGINNING -> same.setBeginning(response.getBeginning());
                case PROGRESS -> same.setProgress(response.getProgress());
                case MULTI_AGENT_BATCH -> same.setMultiAgentBatch(response.getMultiAgentBatch());
                default -> same.getEvaluationBuilder()
                    .setAccount(response.getAccount())
                    .setAgentReturns(Wire.agentReturns());
            }
            observer.onNext(same.build());
        }
        call.end().accept(observer);
    }

    @Override
    public void updateAgent(UpdateAgentRequest request, StreamObserver<UpdateAgentResponse> observer) {
        record(request);
        observer.onNext(UpdateAgentResponse.newBuilder().setPolicyVersion(7).setEnvironmentVersion(3).build());
        observer.onCompleted();
    }

    @Override
    public void updateEnv(UpdateEnvRequest request, StreamObserver<UpdateEnvResponse> observer) {
        record(request);
        UpdateEnvResponse.Builder response = UpdateEnvResponse.newBuilder().setEnvironmentVersion(5);
        if (request.getAllWorkers().getEnvironment().getMultiAgentValue() != 0) {
            response.addAllAgents(List.of("a", "b"));
        }
        response.getObservationSpaceBuilder().getDiscreteBuilder().setN(4);
        response.getActionSpaceBuilder().getDiscreteBuilder().setN(2);
        observer.onNext(response.build());
        observer.onCompleted();
    }

    @Override
    public void callEnvironments(
        CallEnvironmentsRequest request, StreamObserver<CallEnvironmentsResponse> observer) {
        record(request);
        observer.onNext(CallEnvironmentsResponse.newBuilder().addValuesJson("[1, 2.5]").addValuesJson("null").build());
        observer.onCompleted();
    }

    /** Responds with the environments of all updates so far. */
    @Override
    public void getSampler(GetSamplerRequest request, StreamObserver<GetSamplerResponse> observer) {
        GetSamplerResponse.Builder response = GetSamplerResponse.newBuilder();
        response.getObservationSpaceBuilder().getDiscreteBuilder().setN(4);
        response.getActionSpaceBuilder().getDiscreteBuilder().setN(2);
        for (Message update : requests) {
            response.addEnvironments(((UpdateEnvRequest) update).getAllWorkers().getEnvironment());
        }
        observer.onNext(response.build());
        observer.onCompleted();
    }

    /** Ends a call with an error that has a reason, a field and a request id. */
    static End failure(Status.Code code, String reason, String field) {
        Metadata trailers = new Metadata();
        trailers.put(Metadata.Key.of("rollserve-reason", Metadata.ASCII_STRING_MARSHALLER), reason);
        trailers.put(Metadata.Key.of("rollserve-request-id", Metadata.ASCII_STRING_MARSHALLER), "0123456789abcdef");
        BadRequest.Builder request = BadRequest.newBuilder();
        request.addFieldViolationsBuilder().setField(field).setDescription("description");
        com.google.rpc.Status status = com.google.rpc.Status.newBuilder()
            .setCode(code.value())
            .setMessage("it failed")
            .addDetails(com.google.protobuf.Any.pack(request.build()))
            .build();
        return observer -> observer.onError(StatusProto.toStatusRuntimeException(status, trailers));
    }

    /** Returns what a call makes of batches, with a beginning before them and an account behind them. */
    static EpisodeBatch obtain(
        int numEpisodes, int numSteps, io.github.rollserve.v1.EpisodeBatch.Builder... batches) {
        ObtainSamplesResponse[] responses = new ObtainSamplesResponse[batches.length + 2];
        responses[0] = Wire.beginning();
        for (int i = 0; i < batches.length; i++) {
            responses[i + 1] = Wire.response(batches[i]);
        }
        responses[batches.length + 1] = Wire.account(numEpisodes, numSteps);
        try (ScriptedServer server = new ScriptedServer(new Call(OVER, responses));
            Sampler sampler = server.connect()) {
            return sampler.obtainSamples(numSteps);
        }
    }

    /** Returns a response that joins others. */
    static ObtainSamplesResponse joined(ObtainSamplesResponse... responses) {
        ObtainSamplesResponse.Builder message = ObtainSamplesResponse.newBuilder();
        for (ObtainSamplesResponse response : responses) {
            ByteString serialized = response.toByteString();
            message.getJoinedBuilder().addResponses(serialized);
        }
        return message.build();
    }

    /** A call that delivers one episode of one step. */
    static Call oneStep() {
        return new Call(OVER, Wire.beginning(), Wire.response(Wire.segments("4:0+1.")), Wire.account(1, 1));
    }
}
