package io.github.rollserve;

import static io.github.rollserve.ScriptedServer.BROKEN;
import static io.github.rollserve.ScriptedServer.OVER;
import static io.github.rollserve.ScriptedServer.SILENT;
import static io.github.rollserve.ScriptedServer.failure;
import static io.github.rollserve.ScriptedServer.oneStep;
import static io.github.rollserve.Wire.account;
import static io.github.rollserve.Wire.beginning;
import static io.github.rollserve.Wire.progress;
import static io.github.rollserve.Wire.response;
import static io.github.rollserve.Wire.segments;
import static io.github.rollserve.Wire.tensor;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertInstanceOf;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.TextFormat;
import io.github.rollserve.ScriptedServer.Call;
import io.github.rollserve.v1.AgentUpdate;
import io.github.rollserve.v1.CallEnvironmentsRequest;
import io.github.rollserve.v1.Environment;
import io.github.rollserve.v1.EnvironmentUpdate;
import io.github.rollserve.v1.ObtainExactEpisodesRequest;
import io.github.rollserve.v1.ObtainSamplesRequest;
import io.github.rollserve.v1.ObtainSamplesResponse;
import io.github.rollserve.v1.Progress;
import io.github.rollserve.v1.Reproducibility;
import io.github.rollserve.v1.UpdateAgentRequest;
import io.github.rollserve.v1.UpdateEnvRequest;
import io.grpc.CallOptions;
import io.grpc.Channel;
import io.grpc.ClientCall;
import io.grpc.ClientInterceptor;
import io.grpc.ForwardingClientCall;
import io.grpc.Grpc;
import io.grpc.InsecureServerCredentials;
import io.grpc.Metadata;
import io.grpc.MethodDescriptor;
import io.grpc.Server;
import io.grpc.ServerServiceDefinition;
import io.grpc.Status;
import io.grpc.stub.ServerCallStreamObserver;
import io.grpc.stub.ServerCalls;
import java.io.ByteArrayInputStream;
import java.io.IOException;
import java.io.InputStream;
import java.lang.reflect.Method;
import java.lang.reflect.Modifier;
import java.net.ServerSocket;
import java.net.URISyntaxException;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.concurrent.CancellationException;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import java.util.concurrent.CountDownLatch;
import java.util.concurrent.TimeUnit;
import java.util.concurrent.atomic.AtomicInteger;
import java.util.logging.Handler;
import java.util.logging.LogRecord;
import java.util.logging.Logger;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.io.TempDir;

@Timeout(60)
class CallsTest {
    @Test
    void errorsHaveTheClassOfTheirReasonAndStatus() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(failure(Status.Code.PERMISSION_DENIED, "SCOPE_MISSING", "")),
                new Call(failure(Status.Code.INVALID_ARGUMENT, "INVALID_VALUE", "step_count")),
                new Call(failure(Status.Code.FAILED_PRECONDITION, "NO_AGENT", "")),
                new Call(failure(Status.Code.RESOURCE_EXHAUSTED, "SOME_NEW_REASON", "")),
                new Call(failure(Status.Code.INTERNAL, "ENV_FAILED", "")),
                new Call(failure(Status.Code.UNAVAILABLE, "TOO_FEW_WORKERS", "")));
            Sampler sampler = server.connect()) {
            AccessException access = assertThrows(AccessException.class, () -> sampler.obtainSamples(1));
            assertInstanceOf(InvalidArgumentException.class, access);
            assertEquals(Reason.SCOPE_MISSING, access.reason());
            InvalidArgumentException invalid =
                assertThrows(InvalidArgumentException.class, () -> sampler.obtainSamples(1));
            assertFalse(invalid instanceof AccessException);
            assertEquals("step_count", invalid.field());
            assertEquals("0123456789abcdef", invalid.requestId());
            assertEquals("it failed", invalid.getMessage());
            assertEquals(Status.Code.INVALID_ARGUMENT, invalid.code());
            assertEquals(Reason.NO_AGENT,
                assertThrows(PreconditionException.class, () -> sampler.obtainSamples(1)).reason());
            LimitException unknown = assertThrows(LimitException.class, () -> sampler.obtainSamples(1));
            assertEquals(Reason.UNRECOGNIZED, unknown.reason());
            assertEquals("SOME_NEW_REASON", unknown.reasonName());
            assertThrows(ServerException.class, () -> sampler.obtainSamples(1));
            assertThrows(UnavailableException.class, () -> sampler.obtainSamples(1));
            assertEquals(6, server.requests.size());
        }
    }

    @Test
    void callsEndAtTheirDeadlineAndTheirTimeout() {
        try (ScriptedServer server = new ScriptedServer(new Call(SILENT), new Call(SILENT));
            Sampler sampler = server.connect()) {
            Duration brief = Duration.ofMillis(100);
            DeadlineException passed = assertThrows(
                DeadlineException.class, () -> sampler.obtainSamples(1, new SamplingOptions().withDeadline(brief)));
            assertEquals(Reason.NONE, passed.reason());
            DeadlineException silent = assertThrows(
                DeadlineException.class, () -> sampler.obtainSamples(1, new SamplingOptions().withTimeout(brief)));
            assertEquals(Reason.NO_PROGRESS, silent.reason());
        }
    }

    @Test
    void callsAreCancelledWhenTheirThreadIsInterruptedOrTheirSamplerClosed() {
        try (ScriptedServer server = new ScriptedServer(
                oneStep(), new Call(SILENT, beginning()), new Call(SILENT, beginning()));
            Sampler sampler = server.connect()) {
            sampler.obtainSamples(1);
            Thread.currentThread().interrupt();
            assertThrows(CancelledException.class, () -> sampler.obtainSamples(1));
            assertTrue(Thread.interrupted());

            CompletableFuture<EpisodeBatch> running = sampler.async(each -> each.obtainSamples(1));
            CompletableFuture.delayedExecutor(200, TimeUnit.MILLISECONDS).execute(sampler::close);
            assertInstanceOf(
                CancelledException.class, assertThrows(CompletionException.class, running::join).getCause());
            assertThrows(CancelledException.class, () -> sampler.obtainSamples(1));
        }
    }

    @Test
    void futuresCancelTheirCallsWhenTheyAreCancelled() throws InterruptedException {
        CountDownLatch began = new CountDownLatch(1);
        CountDownLatch cancelled = new CountDownLatch(1);
        Call waiting = new Call(observer -> {
            ((ServerCallStreamObserver<?>) observer).setOnCancelHandler(cancelled::countDown);
            began.countDown();
        });
        try (ScriptedServer server = new ScriptedServer(oneStep(), waiting); Sampler sampler = server.connect()) {
            assertEquals(1, sampler.async(each -> each.obtainSamples(1)).join().numSteps());
            CompletableFuture<EpisodeBatch> future = sampler.async(each -> each.obtainSamples(1));
            began.await();
            assertTrue(future.cancel(true));
            cancelled.await();
            assertThrows(CancellationException.class, future::join);
        }
    }

    @Test
    void streamsBeginBeforeTheyAreRead() throws InterruptedException {
        CountDownLatch began = new CountDownLatch(1);
        Call call = new Call(observer -> began.countDown());
        try (ScriptedServer server = new ScriptedServer(call);
            Sampler sampler = server.connect();
            SampleStream<EpisodeBatch> stream = sampler.streamSamples(1)) {
            began.await();
            assertEquals(Optional.empty(), stream.account());
        }
    }

    @Test
    void interceptorsSeeAllCallsAndNoToken() {
        List<String> seen = new ArrayList<>();
        ClientInterceptor interceptor = new ClientInterceptor() {
            @Override
            public <Q, R> ClientCall<Q, R> interceptCall(
                MethodDescriptor<Q, R> method, CallOptions options, Channel next) {
                return new ForwardingClientCall.SimpleForwardingClientCall<>(next.newCall(method, options)) {
                    @Override
                    public void start(Listener<R> listener, Metadata headers) {
                        seen.add(method.getBareMethodName() + headers.keys());
                        headers.put(key("trace"), "7");
                        super.start(listener, headers);
                    }
                };
            }
        };
        try (ScriptedServer server = new ScriptedServer(oneStep(), oneStep());
            Sampler sampler = Sampler.connect(
                server.target(), new ConnectionOptions().withToken("secret").withInterceptors(interceptor))) {
            sampler.updateAgent(new RandomAgent());
            sampler.obtainSamples(1);
            assertEquals(List.of("UpdateAgent[]", "ObtainSamples[]"), seen);
            assertEquals("7", server.metadata.get(1).get(key("trace")));
            assertEquals("Bearer secret", server.metadata.get(1).get(key("authorization")));
        }
    }

    @Test
    void streamCountsEndedEpisodes() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(OVER, beginning(), progress(40, 9), response(segments("4:0+1.")), progress(50, 8),
                    account(1, 1)),
                new Call(OVER, beginning(), response(segments("4:0+1.", "5:0+1.")), account(2, 2)));
            Sampler sampler = server.connect();
            SampleStream<EpisodeBatch> reported = sampler.streamSamples(1)) {
            assertEquals(0, reported.numEndedEpisodes());
            reported.forEach(part -> { });
            assertEquals(9, reported.numEndedEpisodes()); // fewer only because some run again
            try (SampleStream<EpisodeBatch> received = sampler.streamSamples(2)) {
                received.iterator().next();
                assertEquals(2, received.numEndedEpisodes());
            }
        }
    }

    @Test
    void streamContinuesWithTheRawReturnsOfItsStepsWhenItBreaks() {
        Number[] raw = {0.5, 0.5, 0.5, 0.5};
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, beginning(),
                    response(segments("4:0+3").setRawRewards(tensor(DataType.FLOAT64, Arrays.copyOf(raw, 3))))),
                new Call(OVER, beginning(),
                    response(segments("4:0+2").setRawRewards(tensor(DataType.FLOAT64, Arrays.copyOf(raw, 2)))),
                    response(segments("4:2+4").setRawRewards(tensor(DataType.FLOAT64, raw)).addReturnsBefore(1)),
                    account(0, 6)));
            Sampler sampler = server.connect();
            SampleStream<EpisodeBatch> stream = sampler.streamSamples(6)) {
            Iterator<EpisodeBatch> parts = stream.iterator();
            parts.next();
            EpisodeBatch rest = parts.next();
            assertArrayEquals(new long[] {3}, rest.firstSteps());
            assertArrayEquals(new double[] {1.5}, rest.returnsBefore());
            assertEquals(3, rest.rawRewards().orElseThrow().numRows());
            assertArrayEquals(new double[] {3}, rest.episodeReturns());
        }
    }

    @Test
    void streamContinuesWithinAnEpisodeWhenItBreaks() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, beginning(), response(segments("4:0+3.", "6:0+2"))), // episode 5 failed, was skipped
                new Call(BROKEN),
                new Call(OVER, beginning(), response(segments("6:0+1")), response(segments("6:1+4.")), account(1, 5)));
            Sampler sampler = server.connect()) {
            EpisodeBatch batch = sampler.obtainSamples(
                8, new SamplingOptions().withExpectedPolicyVersion(1).withExpectedEnvVersion(2).withPrefetch(true));
            assertArrayEquals(new int[] {3, 5}, batch.lengths());
            assertArrayEquals(
                new double[] {400, 401, 402, 600, 601, 602, 603, 604}, batch.observations().plain().toDoubles());
            Account account = batch.account().orElseThrow();
            assertEquals(8, account.numSteps());
            assertEquals(1, account.numFailedEpisodes());
            assertEquals(2, account.numResumptions());
            ObtainSamplesRequest rest = (ObtainSamplesRequest) server.requests.get(2);
            assertEquals(5, rest.getStepCount());
            assertEquals(6, rest.getOptions().getFirstEpisodeIndex());
            assertEquals(1L << 63, rest.getOptions().getSeed());
            assertEquals("run", rest.getOptions().getSamplerRun());
            assertEquals(1, rest.getOptions().getPolicyVersion());
            assertFalse(rest.getOptions().hasExpectedPolicyVersion());
            assertFalse(rest.getOptions().hasExpectedEnvironmentVersion());
            assertFalse(rest.getOptions().getPrefetch());
        }
    }

    @Test
    void streamRepeatsItsLastEpisodeWhenOnlyTheAccountIsMissing() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, beginning(), response(segments("4:0+3.", "5:0+2."))),
                new Call(OVER, beginning(), response(segments("5:0+2.")), account(1, 2)));
            Sampler sampler = server.connect()) {
            assertArrayEquals(new int[] {3, 2}, sampler.obtainSamples(5).lengths());
            assertEquals(2, ((ObtainSamplesRequest) server.requests.get(1)).getStepCount());
        }
    }

    @Test
    void exactEpisodesAndFragmentsSkipWhatHasArrivedWhenTheyBreak() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, beginning(), response(segments("4:0+3."))),
                new Call(OVER, beginning(), response(segments("5:0+2.")), account(1, 2)),
                new Call(BROKEN, beginning(), response(segments("4:0+3"))),
                new Call(OVER, beginning(), response(segments("5:0+2")), account(0, 2)));
            Sampler sampler = server.connect()) {
            assertArrayEquals(new int[] {3, 2}, sampler.obtainExactEpisodes(2).lengths());
            ObtainExactEpisodesRequest exact = (ObtainExactEpisodesRequest) server.requests.get(1);
            assertEquals(1, exact.getSkipEpisodeCount());
            assertEquals(4, exact.getOptions().getFirstEpisodeIndex());
            assertEquals(3, exact.getOptions().getWorkerCount());
            assertArrayEquals(new int[] {3, 2}, sampler.obtainFragments(5).lengths());
            ObtainSamplesRequest fragments = (ObtainSamplesRequest) server.requests.get(3);
            assertEquals(3, fragments.getFragments().getSkipStepCount());
            assertEquals(5, fragments.getStepCount());
        }
    }

    @Test
    void streamsFailWhenTheyBreakAndCannotBeRepeated() {
        ObtainSamplesResponse.Builder ofWorkers = beginning().toBuilder();
        ofWorkers.getBeginningBuilder().setReproducibility(Reproducibility.REPRODUCIBILITY_WORKER);
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, ofWorkers.build()),
                new Call(failure(Status.Code.UNAVAILABLE, "WORKER_HUNG", ""), beginning()));
            Sampler sampler = server.connect()) {
            assertThrows(UnavailableException.class, () -> sampler.obtainSamples(5));
            assertThrows(UnavailableException.class, () -> sampler.obtainSamples(5));
            assertEquals(2, server.requests.size());
        }
    }

    @Test
    void callsGoOnWithTheNextServer() {
        List<Reason> reasons = List.of(Reason.SERVER_STOPPING, Reason.SAMPLER_TAKEN, Reason.JOURNAL_LOST);
        List<Call> calls = new ArrayList<>(List.of(oneStep()));
        for (Reason reason : reasons) {
            calls.addAll(List.of(new Call(failure(Status.Code.UNAVAILABLE, reason.name(), "")), oneStep()));
        }
        calls.addAll(List.of(new Call(ScriptedServer.RESET), oneStep()));
        calls.add(new Call(failure(Status.Code.UNAVAILABLE, "TOO_FEW_WORKERS", "")));
        try (ScriptedServer server = new ScriptedServer(calls.toArray(new Call[0]));
            Sampler sampler = server.connect()) {
            for (int i = 0; i < reasons.size() + 2; i++) {
                assertEquals(1, sampler.obtainSamples(1).numSteps());
            }
            UnavailableException raised =
                assertThrows(UnavailableException.class, () -> sampler.obtainSamples(1));
            assertEquals(Reason.TOO_FEW_WORKERS, raised.reason());
            assertEquals(calls.size(), server.requests.size());
        }
    }

    @Test
    void streamDeliversJoinedResponsesAndItsAccount() {
        ObtainSamplesResponse joined = ScriptedServer.joined(
            beginning(), response(segments("4:0+1.")), response(segments("5:0+2.")));
        try (ScriptedServer server = new ScriptedServer(new Call(OVER, joined, account(2, 3)));
            Sampler sampler = server.connect();
            SampleStream<EpisodeBatch> stream = sampler.streamSamples(3)) {
            List<Integer> steps = new ArrayList<>();
            for (EpisodeBatch part : stream) {
                steps.add(part.numSteps());
            }
            assertEquals(List.of(1, 2), steps);
            assertEquals(3, stream.account().orElseThrow().numSteps());
        }
    }

    @Test
    void callsEndWithAServerExceptionWhenAMessageCannotBeRead() throws IOException {
        MethodDescriptor<byte[], byte[]> method = MethodDescriptor.<byte[], byte[]>newBuilder()
            .setType(MethodDescriptor.MethodType.SERVER_STREAMING)
            .setFullMethodName("rollserve.v1.SamplerService/ObtainSamples")
            .setRequestMarshaller(new Bytes())
            .setResponseMarshaller(new Bytes())
            .build();
        ServerServiceDefinition service = ServerServiceDefinition.builder("rollserve.v1.SamplerService")
            .addMethod(method, ServerCalls.asyncServerStreamingCall((request, observer) -> {
                observer.onNext(new byte[] {1, 2, 3});
                observer.onCompleted();
            }))
            .build();
        Server server = Grpc.newServerBuilderForPort(0, InsecureServerCredentials.create())
            .addService(service).build().start();
        try (Sampler sampler = Sampler.connect("127.0.0.1:" + server.getPort())) {
            assertThrows(ServerException.class, () -> sampler.obtainSamples(1));
        } finally {
            server.shutdownNow();
        }
    }

    private static final class Bytes implements MethodDescriptor.Marshaller<byte[]> {
        @Override
        public InputStream stream(byte[] value) {
            return new ByteArrayInputStream(value);
        }

        @Override
        public byte[] parse(InputStream stream) {
            return new byte[0];
        }
    }

    @Test
    void callsExpectTheVersionsThatTheirClientHasSet() {
        try (ScriptedServer server = new ScriptedServer(oneStep(), oneStep(), oneStep());
            Sampler sampler = Sampler.connect(server.target(), new ConnectionOptions().withSampler("mine"))) {
            assertEquals(7, sampler.updateAgent(new RandomAgent()));
            sampler.obtainSamples(1);
            UpdateAgentRequest update = (UpdateAgentRequest) server.requests.get(0);
            ObtainSamplesRequest call = (ObtainSamplesRequest) server.requests.get(1);
            assertEquals(7, call.getOptions().getExpectedPolicyVersion());
            assertEquals(3, call.getOptions().getExpectedEnvironmentVersion());
            assertEquals(update.getClientId(), call.getOptions().getClientId());
            assertFalse(update.getClientId().isEmpty());
            assertEquals("mine", server.metadata.get(1).get(key("rollserve-sampler")));
            sampler.obtainSamples(1, new SamplingOptions().withPolicyVersion(2));
            assertFalse(((ObtainSamplesRequest) server.requests.get(2)).getOptions().hasExpectedPolicyVersion());
        }
    }

    @Test
    void updatesExpectTheVersionsThatTheyKeep() {
        try (ScriptedServer server = new ScriptedServer(); Sampler sampler = server.connect()) {
            sampler.updateEnv("CartPole-v1");
            sampler.updateAgent(new RandomAgent());
            Optional<RandomAgent> random = Optional.of(new RandomAgent());
            sampler.updateAgentPerWorker(List.of(random, random));
            UpdateAgentRequest whole = (UpdateAgentRequest) server.requests.get(2);
            assertFalse(whole.hasExpectedPolicyVersion()); // whole agents replace any
            sampler.updateAgentPerWorker(List.of(Optional.empty(), random));
            UpdateAgentRequest agents = (UpdateAgentRequest) server.requests.get(3);
            assertEquals(7, agents.getExpectedPolicyVersion());
            assertEquals(AgentUpdate.getDefaultInstance(), agents.getPerWorker().getUpdates(0));
            assertTrue(agents.getPerWorker().getUpdates(1).getAgent().hasRandom());
            sampler.updateAgent(new AgentChange(Map.of("gain", 2)));
            UpdateAgentRequest change = (UpdateAgentRequest) server.requests.get(4);
            assertEquals(7, change.getExpectedPolicyVersion());
            assertEquals("{\"gain\":2}", change.getAllWorkers().getChange().getKwargsJson());
            assertFalse(change.getAllWorkers().getChange().hasParameters());

            sampler.updateEnvPerWorker(List.of(Optional.of(new EnvSpec("CartPole-v1")), Optional.empty()));
            UpdateEnvRequest envs = (UpdateEnvRequest) server.requests.get(5);
            assertEquals(5, envs.getExpectedEnvironmentVersion());
            assertTrue(envs.getPerWorker().getUpdates(0).hasEnvironment());
            assertEquals(EnvironmentUpdate.getDefaultInstance(), envs.getPerWorker().getUpdates(1));
        }
    }

    @Test
    void callsOfEnvironmentsReturnTheirValues() {
        try (ScriptedServer server = new ScriptedServer(); Sampler sampler = server.connect()) {
            sampler.updateEnv("CartPole-v1");
            assertEquals(Arrays.asList(List.of(1L, 2.5), null), sampler.callEnvironments("level", 1, "a"));
            CallEnvironmentsRequest call = (CallEnvironmentsRequest) server.requests.get(1);
            assertEquals("level", call.getMethod());
            assertEquals(List.of("1", "\"a\""), call.getArgumentsJsonList());
            assertEquals(5, call.getExpectedEnvironmentVersion());
            assertFalse(call.getClientId().isEmpty() || call.hasEnvironmentVersion());
            sampler.callEnvironments(3, "level");
            CallEnvironmentsRequest earlier = (CallEnvironmentsRequest) server.requests.get(2);
            assertEquals(3, earlier.getEnvironmentVersion());
            assertFalse(earlier.hasExpectedEnvironmentVersion());
            assertEquals("arguments[1]", assertThrows(
                InvalidArgumentException.class, () -> sampler.callEnvironments("level", 1, Double.NaN)).field());
        }
    }

    @Test
    void environmentsHaveTheirTransforms() throws TextFormat.ParseException {
        Transform[] transforms = {
            new Transform.SignRewards(),
            new Transform.ClipRewards(Double.NEGATIVE_INFINITY, 2),
            new Transform.ScaleRewards(3, 4),
            new Transform.RescaleActions(-5, 1),
            new Transform.ClipActions(),
            new Transform.CastObservations(DataType.FLOAT64, "a"),
            new Transform.ScaleObservations(6, 7, "b"),
            new Transform.RescaleObservations(8, 9, "c", "d"),
            new Transform.CropObservations(1, 2, 3, 4, true, List.of("e")),
            new Transform.ResizeObservations(5, 6, true, List.of("f")),
            new Transform.GrayscaleObservations(true, false, List.of("g")),
            new Transform.FlattenObservations()};
        Environment.Builder expected = Environment.newBuilder().setId("CartPole-v1").setTextInfoBytes(64);
        TextFormat.merge("""
            transforms { sign_rewards {} }
            transforms { clip_rewards { high: 2 } }
            transforms { scale_rewards { factor: 3 offset: 4 } }
            transforms { rescale_actions { low: -5 high: 1 } }
            transforms { clip_actions {} }
            transforms { cast_observations { data_type: DATA_TYPE_FLOAT64 leaves: "a" } }
            transforms { scale_observations { factor: 6 offset: 7 leaves: "b" } }
            transforms { rescale_observations { low: 8 high: 9 leaves: ["c", "d"] } }
            transforms { crop_observations { top: 1 left: 2 height: 3 width: 4 channels_first: true leaves: "e" } }
            transforms { resize_observations { height: 5 width: 6 channels_first: true leaves: "f" } }
            transforms { grayscale_observations { keep_channel: true leaves: "g" } }
            transforms { flatten_observations {} }
            """, expected);
        try (ScriptedServer server = new ScriptedServer(); Sampler sampler = server.connect()) {
            EnvSpec env = new EnvSpec("CartPole-v1").withTextInfoBytes(64).withTransforms(transforms).withRows(0, 0);
            sampler.updateEnv(env);
            UpdateEnvRequest update = (UpdateEnvRequest) server.requests.get(0);
            assertEquals(expected.build(), update.getAllWorkers().getEnvironment());
            assertEquals(List.of(env), sampler.status().envs());
            assertEquals(List.of(transforms), sampler.status().envs().get(0).transforms());
        }
    }

    @Test
    void callsWithAnAgentFailWhenTheServerIgnoresIt() {
        ObtainSamplesResponse.Builder updated = beginning().toBuilder();
        updated.getBeginningBuilder().setAgentUpdated(true);
        try (ScriptedServer server = new ScriptedServer(
                new Call(OVER, updated.build(), response(segments("4:0+1.")), account(1, 1)), oneStep(), oneStep());
            Sampler sampler = server.connect()) {
            SamplingOptions options = new SamplingOptions().withAgent(new RandomAgent());
            sampler.obtainSamples(1, options);
            sampler.obtainSamples(1);
            ObtainSamplesRequest next = (ObtainSamplesRequest) server.requests.get(1);
            assertEquals(1, next.getOptions().getExpectedPolicyVersion());
            assertEquals(2, next.getOptions().getExpectedEnvironmentVersion());
            ServerException error = assertThrows(ServerException.class, () -> sampler.obtainSamples(1, options));
            assertEquals("agent", error.field());
        }
    }

    @Test
    void tokensAreReadForEachCallAndNeverSentInTheClear(@TempDir Path folder) throws IOException {
        Path file = folder.resolve("token");
        Files.writeString(file, "first\n");
        try (ScriptedServer server = new ScriptedServer(oneStep(), oneStep());
            Sampler sampler = Sampler.connect(server.target(), new ConnectionOptions().withTokenFile(file))) {
            sampler.obtainSamples(1);
            Files.writeString(file, "second");
            sampler.obtainSamples(1);
            assertEquals("Bearer first", server.metadata.get(0).get(key("authorization")));
            assertEquals("Bearer second", server.metadata.get(1).get(key("authorization")));
            Files.delete(file);
            assertEquals("tokenFile",
                assertThrows(InvalidArgumentException.class, () -> sampler.obtainSamples(1)).field());
        }
        ConnectionOptions token = new ConnectionOptions().withToken("secret");
        Sampler.connect("server.lab:50051", token.withTls()).close();
        for (String target : List.of("server.lab:50051", "dns:///server.lab:50051", "127.0.0.1.lab:50051")) {
            InvalidArgumentException error =
                assertThrows(InvalidArgumentException.class, () -> Sampler.connect(target, token));
            assertEquals("token", error.field());
            assertFalse(error.getMessage().contains("secret"));
        }
    }

    @Test
    void warningsReachTheListener() {
        ObtainSamplesResponse warning = ObtainSamplesResponse.newBuilder()
            .setProgress(Progress.newBuilder().setWarning("no episode ends")).build();
        Call call = new Call(OVER, beginning(), warning, response(segments("4:0+1.")), account(1, 1));
        Call evaluation = new Call(OVER, beginning(), warning, account(1, 1));
        List<String> warnings = new ArrayList<>();
        try (ScriptedServer server = new ScriptedServer(call, evaluation)) {
            ConnectionOptions options = new ConnectionOptions().withWarningListener(warnings::add);
            try (Sampler sampler = Sampler.connect(server.target(), options)) {
                sampler.obtainSamples(1);
                sampler.evaluate(1);
            }
        }
        assertEquals(List.of("no episode ends", "no episode ends"), warnings);
    }

    @Test
    void warningsAreLoggedByDefault() {
        ObtainSamplesResponse warning = ObtainSamplesResponse.newBuilder()
            .setProgress(Progress.newBuilder().setWarning("no episode ends")).build();
        List<String> logged = new ArrayList<>();
        Handler handler = new Handler() {
            @Override
            public void publish(LogRecord entry) {
                logged.add(entry.getLevel() + ": " + entry.getMessage());
            }

            @Override
            public void flush() {}

            @Override
            public void close() {}
        };
        Logger logger = Logger.getLogger("io.github.rollserve");
        logger.addHandler(handler);
        logger.setUseParentHandlers(false);
        try (ScriptedServer server = new ScriptedServer(
                new Call(OVER, beginning(), warning, response(segments("4:0+1.")), account(1, 1)));
            Sampler sampler = server.connect()) {
            sampler.obtainSamples(1);
        } finally {
            logger.removeHandler(handler);
            logger.setUseParentHandlers(true);
        }
        assertEquals(List.of("WARNING: no episode ends"), logged);
    }

    @Test
    void immutableOptionsAreMarkedAndNameTheirChangesWith() throws IOException, URISyntaxException {
        Path classes = Path.of(Sampler.class.getProtectionDomain().getCodeSource().getLocation().toURI());
        try (var files = Files.list(classes.resolve("io/github/rollserve"))) {
            for (Path file : files.filter(each -> each.toString().endsWith(".class")).toList()) {
                Class<?> type = loaded(file);
                boolean isMarked = type.isAnnotationPresent(CheckReturnValue.class);
                boolean isSetOfOptions = type.getSimpleName().endsWith("Options");
                assertTrue(isMarked || !isSetOfOptions, type.getName());
                for (Method method : type.getDeclaredMethods()) {
                    if (!Modifier.isPublic(method.getModifiers()) || method.getReturnType() != type) {
                        continue;
                    }
                    boolean isChange = method.getName().startsWith("with");
                    boolean isMarkedItself = method.isAnnotationPresent(CheckReturnValue.class);
                    assertTrue(isMarked || isMarkedItself || !isChange, method.toString());
                    assertTrue(
                        isChange || !isMarked || Modifier.isStatic(method.getModifiers()), method.toString());
                }
            }
        }
    }

    private static Class<?> loaded(Path file) {
        try {
            String name = file.getFileName().toString().replaceFirst("[.]class$", "");
            return Class.forName("io.github.rollserve." + name);
        } catch (ClassNotFoundException missing) {
            throw new AssertionError(missing);
        }
    }

    @Test
    void proxiesAreOnNoWayToLoopbackAddressesAndNamedOnOthers() {
        Map<String, String> settings =
            Map.of("https.proxyHost", "127.0.0.1", "https.proxyPort", "1", "http.nonProxyHosts", "none");
        settings.forEach(System::setProperty);
        try (ScriptedServer server = new ScriptedServer(oneStep());
            Sampler sampler = server.connect();
            Sampler other = Sampler.connect("server.invalid:50051")) {
            sampler.obtainSamples(1);
            UnavailableException error = assertThrows(UnavailableException.class, other::status);
            assertTrue(error.getMessage().contains("through the proxy of"), error.getMessage());
        } finally {
            settings.keySet().forEach(System::clearProperty);
        }
    }

    @Test
    void newConnectionsReachAServerThatIsBack() throws IOException {
        int port;
        try (ServerSocket socket = new ServerSocket(0)) {
            port = socket.getLocalPort();
        }
        try (Sampler early = Sampler.connect("127.0.0.1:" + port)) {
            for (int i = 0; i < 6; i++) { // each failure makes gRPC's next pause longer
                assertThrows(UnavailableException.class, early::status);
            }
            try (ScriptedServer server = new ScriptedServer(port, oneStep()); Sampler sampler = server.connect()) {
                sampler.obtainSamples(1);
            }
        }
    }

    @Test
    void eachCallConnectsAnewWhenTheServerIsAway() throws IOException {
        try (ServerSocket socket = new ServerSocket(0);
            Sampler sampler = Sampler.connect("127.0.0.1:" + socket.getLocalPort())) {
            AtomicInteger attempts = new AtomicInteger();
            Thread closing = new Thread(() -> {
                try {
                    while (true) {
                        socket.accept().close();
                        attempts.incrementAndGet();
                    }
                } catch (IOException closed) {
                    // the test is over
                }
            });
            closing.start();
            for (int i = 0; i < 1000 && attempts.get() < 12; i++) {
                assertThrows(UnavailableException.class, sampler::status);
            }
            assertTrue(attempts.get() >= 12, "gRPC's own pauses would take minutes");
        }
    }

    private static Metadata.Key<String> key(String name) {
        return Metadata.Key.of(name, Metadata.ASCII_STRING_MARSHALLER);
    }
}
