package io.github.rollserve;

import static io.github.rollserve.ScriptedServer.BROKEN;
import static io.github.rollserve.ScriptedServer.OVER;
import static io.github.rollserve.ScriptedServer.SILENT;
import static io.github.rollserve.ScriptedServer.failure;
import static io.github.rollserve.Wire.named;
import static io.github.rollserve.Wire.segments;
import static io.github.rollserve.Wire.tensor;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertSame;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rollserve.ScriptedServer.Turn;
import io.github.rollserve.v1.DriveEnvironmentsRequest;
import io.github.rollserve.v1.DriveEnvironmentsResponse;
import io.github.rollserve.v1.DriveSpec;
import io.github.rollserve.v1.DrivenActions;
import io.github.rollserve.v1.DrivenRows;
import io.grpc.Status;
import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.List;
import java.util.Map;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.TimeUnit;
import java.util.function.UnaryOperator;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;
import org.junit.jupiter.api.function.Executable;

@Timeout(60)
class SessionTest {
    private static final Columns INFOS = new Columns(Map.of("pair", Tensor.of(new float[6], 3, 2)));

    @Test
    void sessionActsAndReturnsWhatIsRecorded() {
        DrivenRows ended = rows(4).toBuilder()
            .setEpisodeIndices(0, 7)
            .addRewards(2.5)
            .addEndedRows(0)
            .addTerminated(true)
            .addTruncated(false)
            .addLastObservations(observations(8))
            .setEnvironmentSeeds(0, Long.MIN_VALUE)
            .addInfos(named("speed", tensor(DataType.FLOAT64, new Number[] {0.5})))
            .build();
        DrivenRows others = rows(2, 3).toBuilder().addRewards(1).addRewards(-1).build();
        try (ScriptedServer server = ScriptedServer.driven(
                new Turn(beginning(3), step(0, rows(1, 2), rows(3))),
                new Turn(step(1, others, ended)),
                new Turn(batch("0:0+1", "1:0+1"), batch("2:0+1."), round()),
                new Turn(step(2, rows(1, 2), rows(3))),
                new Turn(OVER, batch("0:1+1", "1:1+1"), round(), account(5)));
            Sampler sampler = server.connect();
            Session session = sampler.drive(new DriveOptions()
                .withSeed(5).withFragmentLength(16).withMaxEpisodeLength(9).withReturnInfos(true)
                .withAgentInfo("pair", DataType.FLOAT32, 2))) {
            assertEquals(3, session.numRows());
            assertEquals(new Space.Discrete(9, 0), session.observationSpace());
            assertEquals(List.of("gear", "flags"), List.copyOf(((Space.Dict) session.actionSpace()).spaces().keySet()));
            DrivenStep step = session.observe();
            assertEquals(Tensor.of(new long[] {1, 2, 3}), step.observations().plain());
            assertEquals(Tensor.of(new double[3]), step.rewards());
            assertEquals(0, step.lastObservations().plain().numRows());
            assertTrue(session.account().isEmpty());

            step = session.step(actions(0, 1, 2), new StepOptions().withAgentInfos(INFOS));
            assertEquals(1, step.number());
            assertEquals(Tensor.of(new double[] {1, -1, 2.5}), step.rewards());
            assertArrayEquals(new boolean[] {false, false, true}, step.ended());
            assertArrayEquals(new boolean[] {false, false, true}, step.terminated());
            assertArrayEquals(new boolean[3], step.truncated());
            assertEquals(Tensor.of(new long[] {8}), step.lastObservations().plain());
            assertArrayEquals(new long[] {0, 0, 7}, step.episodeIndices());
            assertArrayEquals(new long[] {0, 0, Long.MIN_VALUE}, step.envSeeds());
            assertEquals(Tensor.of(new double[] {0, 0, 0.5}), step.infos().get("speed"));
            assertArrayEquals(new boolean[] {false, false, true}, step.infos().mask("speed").orElseThrow());

            EpisodeBatch batch = session.batch();
            assertArrayEquals(new int[] {1, 1, 1}, batch.lengths());
            assertThrows(PreconditionException.class, session::batch);
            session.step(actions(1, 1, 1), new StepOptions().withAgentInfos(INFOS).withIdle(step.ended()));
            assertEquals(5, session.end().numSteps());
            assertEquals(5, session.account().orElseThrow().numSteps());
            assertArrayEquals(new long[] {1, 1}, session.batch().firstSteps());
            assertThrows(
                PreconditionException.class,
                () -> session.step(actions(1, 1, 1), new StepOptions().withAgentInfos(INFOS)));

            assertEquals(4, server.requests.size());
            DriveSpec spec = request(server, 0).getSpec();
            assertEquals(16, spec.getFragmentLength());
            assertEquals(List.of(0L, 2L), spec.getAgentInfos(0).getTensor().getShapeList());
            assertFalse(spec.getOptions().hasExpectedPolicyVersion());
            assertTrue(request(server, 2).hasFragmentEnd());
            DrivenActions actions = request(server, 3).getActions();
            assertEquals(1, actions.getStep());
            assertEquals(List.of(false, false, true), actions.getIdleList());
            assertEquals(2, actions.getActionsCount());
        }
    }

    @Test
    void actionsOfAnotherFormAreRefusedAndTheSessionGoesOn() {
        try (ScriptedServer server = ScriptedServer.driven(
                new Turn(beginning(2), step(0, rows(1, 2))), new Turn(step(1, rows(3, 4))));
            Sampler sampler = server.connect();
            Session session = sampler.drive()) {
            Tensor gears = Tensor.of(new long[2]);
            Tensor flags = actions(0, 0).get("flags");
            StepOptions none = new StepOptions();
            checkRefused("actions['flags']", session, actions(0), none);
            checkRefused("actions['gear']", session, columns(Tensor.of(new int[2]), flags), none);
            checkRefused("actions['flags']", session, columns(gears, gears), none);
            checkRefused("actions", session, Columns.plain(gears), none);
            checkRefused("idle", session, actions(0, 0), none.withIdle(true));
            checkRefused("agentInfos", session, actions(0, 0), none.withAgentInfos(actions(0, 0)));
            assertEquals(1, session.step(actions(0, 1)).number());
            assertEquals(2, server.requests.size());
        }
    }

    private static void checkRefused(String field, Session session, Columns actions, StepOptions options) {
        checkRefused(field, () -> session.step(actions, options));
    }

    @Test
    void sessionThatHasFailedStaysSo() {
        String field = "actions.actions['gear'][0]";
        try (ScriptedServer server = ScriptedServer.driven(
                new Turn(beginning(2), step(0, rows(1, 2))),
                new Turn(failure(Status.Code.INVALID_ARGUMENT, "INVALID_VALUE", field)));
            Sampler sampler = server.connect();
            Session session = sampler.drive()) {
            InvalidArgumentException error =
                assertThrows(InvalidArgumentException.class, () -> session.step(actions(9, 9)));
            assertEquals(field, error.field());
            assertSame(error, assertThrows(RollserveException.class, session::observe));
            assertSame(error, assertThrows(RollserveException.class, () -> session.step(actions(0, 0))));
            assertSame(error, assertThrows(RollserveException.class, session::batch));
            assertSame(error, assertThrows(RollserveException.class, session::end));
            assertTrue(session.account().isEmpty());
        }
    }

    @Test
    void sessionWithALeaseGoesOnAfterItsStreamBreaks() {
        DriveEnvironmentsResponse.Builder fourth = DriveEnvironmentsResponse.newBuilder();
        fourth.getRoundBuilder().setRoundNumber(4);
        try (ScriptedServer server = ScriptedServer.driven(
                new Turn(lasting(1), step(0, rows(1))),
                // With the part of a round that is lost.
                new Turn(step(1, rows(2)), batch("0:0+1"), fourth.build(), batch("0:1+1")),
                new Turn(BROKEN)).then(
                new Turn(lasting(1), step(1, rows(2))),
                new Turn(step(2, rows(3))),
                new Turn(batch("0:1+1"), round(), account(2)),
                new Turn(BROKEN)); // behind the account
            Sampler sampler = server.connect();
            Session session = sampler.drive(new DriveOptions().withLease(Duration.ofMinutes(1)))) {
            assertEquals("token-7", session.token());
            session.step(actions(0));
            assertEquals(2, session.step(actions(1)).number());
            assertEquals(2, session.end().numSteps());
            assertArrayEquals(new long[] {0, 1}, session.batch().firstSteps());

            assertEquals(7, server.requests.size());
            assertEquals(60, request(server, 0).getSpec().getLeaseSeconds());
            assertEquals("token-7", request(server, 3).getResumption().getToken());
            assertEquals(5, request(server, 3).getResumption().getRoundCount());
            assertEquals(request(server, 2), request(server, 4));
            assertFalse(request(server, 5).getSessionEnd().getHasAccount());
            assertTrue(request(server, 6).getSessionEnd().getHasAccount());
        }
    }

    @Test
    void sessionIsTakenUpByItsToken() {
        try (ScriptedServer server = ScriptedServer.driven(
                new Turn(lasting(2), step(5, rows(1, 2))),
                new Turn(step(6, rows(3, 4))),
                new Turn(failure(Status.Code.NOT_FOUND, "SESSION_NOT_FOUND", "resumption.token")));
            Sampler sampler = server.connect();
            Session session = sampler.resumeSession("token-7", new DriveOptions())) {
            assertEquals(6, session.step(actions(0, 1)).number());
            InvalidArgumentException error =
                assertThrows(InvalidArgumentException.class, () -> session.step(actions(0, 1)));
            assertEquals(Reason.SESSION_NOT_FOUND, error.reason());
            assertEquals("token-7", request(server, 0).getResumption().getToken());
            assertEquals(5, request(server, 1).getActions().getStep());
        }
    }

    @Test
    void rowsDoNotWaitForEachOther() {
        try (ScriptedServer server = ScriptedServer.driven(
                new Turn(lasting(4), step(0, ready(0, 2, 3))),
                new Turn(step(1, ready(0, 0, 1))),
                new Turn(BROKEN)).then(
                new Turn(lasting(4), step(3, ready(0, 0, 1), ready(1, 2, 3))),
                new Turn(),
                new Turn(step(4, ready(1, 0, 1))));
            Sampler sampler = server.connect();
            Session session = sampler.drive(new DriveOptions().withMinReady(2).withLease(Duration.ofMinutes(1)))) {
            assertEquals(4, session.numRows());
            DrivenStep step = session.recv();
            assertArrayEquals(new int[] {2, 3}, step.rows());
            assertEquals(Tensor.of(new long[] {2, 3}), step.observations().plain());
            checkRefused("rows[0]", () -> session.send(actions(0, 1), new SendOptions().withRows(0, 2)));
            checkRefused("rows[1]", () -> session.send(actions(0, 1), new SendOptions().withRows(2, 2)));
            checkRefused("actions['flags']", () -> session.send(actions(0, 1), new SendOptions().withRows(2)));
            checkRefused("step", () -> session.step(actions(0, 1)));
            session.send(actions(0, 1), new SendOptions().withRows(3, 2));
            checkRefused("rows[0]", () -> session.send(actions(0, 1))); // which have acted
            assertArrayEquals(new int[] {0, 1}, session.recv().rows());
            session.send(actions(1, 1));
            DrivenStep news = session.recv();
            assertArrayEquals(new int[] {2, 3}, news.rows());
            assertArrayEquals(new long[] {1, 1}, news.rowSteps());
            assertEquals(4, session.recv().number());

            assertEquals(2, request(server, 0).getSpec().getMinReadyRowCount());
            assertEquals(List.of(3L, 2L), request(server, 1).getActions().getRowsList());
            assertEquals(List.of(0L, 0L), request(server, 1).getActions().getRowStepCountsList());
            assertEquals(request(server, 1), request(server, 4));
            assertEquals(request(server, 2), request(server, 5));
        }
    }

    private static void checkRefused(String field, Executable call) {
        assertEquals(field, assertThrows(InvalidArgumentException.class, call).field());
    }

    @Test
    void sessionEndsWithItsTimesInterruptsAndClose() throws InterruptedException {
        try (ScriptedServer server = ScriptedServer.driven(
                new Turn(beginning(2), step(0, rows(1, 2))), new Turn(SILENT));
            Sampler sampler = server.connect()) {
            DriveOptions options = new DriveOptions();
            try (Session session = sampler.drive(options.withTimeout(Duration.ofMillis(200)))) {
                DeadlineException silence = assertThrows(DeadlineException.class, () -> session.step(actions(0, 0)));
                assertEquals(Reason.NO_PROGRESS, silence.reason());
            }
            try (Session session = sampler.drive(options.withDeadline(Duration.ofMillis(500)))) {
                DeadlineException late = assertThrows(DeadlineException.class, () -> session.step(actions(0, 0)));
                assertEquals(Reason.NONE, late.reason());
            }
            try (Session session = sampler.drive()) {
                session.observe();
                CompletableFuture.delayedExecutor(50, TimeUnit.MILLISECONDS).execute(session::close);
                assertThrows(CancelledException.class, () -> session.step(actions(0, 0)));
            }
            try (Session session = sampler.drive()) {
                session.observe();
                Thread.currentThread().interrupt();
                assertThrows(CancelledException.class, () -> session.step(actions(0, 0)));
                assertTrue(Thread.interrupted());
            }
        }
    }

    @Test
    void malformedStepsAreErrorsOfTheServer() {
        checkMalformed("workers", rows -> rows.addEpisodeIndices(1).addEnvironmentSeeds(1));
        checkMalformed("workers[0].rewards", rows -> rows.addRewards(1));
        checkMalformed("workers[0].environment_seeds", DrivenRows.Builder::clearEnvironmentSeeds);
        checkMalformed("workers[0].terminated", rows -> rows.addEndedRows(0).addTruncated(true));
        checkMalformed(
            "workers[0].ended_rows", rows -> rows.addEndedRows(2).addTerminated(true).addTruncated(true));
        checkMalformed("workers[0].observations['']", rows -> rows.setObservations(0, observations(1)));
    }

    private static void checkMalformed(String field, UnaryOperator<DrivenRows.Builder> change) {
        DrivenRows wrong = change.apply(rows(1, 2).toBuilder()).build();
        try (ScriptedServer server = ScriptedServer.driven(new Turn(beginning(2), step(0, wrong)));
            Sampler sampler = server.connect();
            Session session = sampler.drive()) {
            ServerException error = assertThrows(ServerException.class, session::observe);
            assertTrue(error.getMessage().contains(field + ": expected"), error.getMessage());
        }
    }

    private static DriveEnvironmentsRequest request(ScriptedServer server, int position) {
        return (DriveEnvironmentsRequest) server.requests.get(position);
    }

    /** Returns actions of a space with two leaves. */
    private static Columns actions(long... gears) {
        Tensor flags = Tensor.of(DataType.INT8, ByteBuffer.allocate(2 * gears.length), gears.length, 2);
        return columns(Tensor.of(gears), flags);
    }

    private static Columns columns(Tensor gears, Tensor flags) {
        return new Columns(Map.of("gear", gears, "flags", flags));
    }

    private static DriveEnvironmentsResponse beginning(int numRows) {
        DriveEnvironmentsResponse.Builder message = DriveEnvironmentsResponse.newBuilder();
        message.getBeginningBuilder().setRowCount(numRows).getObservationSpaceBuilder().getDiscreteBuilder().setN(9);
        var actions = message.getBeginningBuilder().getActionSpaceBuilder().getDictBuilder();
        actions.addSpacesBuilder().setName("gear").getSpaceBuilder().getDiscreteBuilder().setN(3);
        actions.addSpacesBuilder().setName("flags").getSpaceBuilder().getMultiBinaryBuilder().addShape(2);
        return message.build();
    }

    /** Returns the beginning of a session with a lease. */
    private static DriveEnvironmentsResponse lasting(int numRows) {
        DriveEnvironmentsResponse.Builder message = beginning(numRows).toBuilder();
        message.getBeginningBuilder().setSessionToken("token-7");
        return message.build();
    }

    /** Returns rows of a worker that have made a number of steps. */
    private static DrivenRows ready(long made, Integer... rows) {
        DrivenRows.Builder ready = rows(rows).toBuilder();
        for (int row : rows) {
            ready.addRows(row).addRowStepCounts(made);
        }
        return ready.build();
    }

    /** Returns the rows of a worker before the first step. */
    private static DrivenRows rows(Number... observations) {
        DrivenRows.Builder rows = DrivenRows.newBuilder().addObservations(observations(observations));
        for (int i = 0; i < observations.length; i++) {
            rows.addEpisodeIndices(0).addEnvironmentSeeds(0);
        }
        return rows.build();
    }

    private static io.github.rollserve.v1.NamedTensor observations(Number... values) {
        return named("", tensor(DataType.INT64, values));
    }

    private static DriveEnvironmentsResponse step(int number, DrivenRows... workers) {
        DriveEnvironmentsResponse.Builder message = DriveEnvironmentsResponse.newBuilder();
        message.getStepBuilder().setStep(number).addAllWorkers(List.of(workers));
        return message.build();
    }

    private static DriveEnvironmentsResponse batch(String... segments) {
        return DriveEnvironmentsResponse.newBuilder().setBatch(segments(segments)).build();
    }

    private static DriveEnvironmentsResponse round() {
        DriveEnvironmentsResponse.Builder message = DriveEnvironmentsResponse.newBuilder();
        message.getRoundBuilder();
        return message.build();
    }

    private static DriveEnvironmentsResponse account(int numSteps) {
        DriveEnvironmentsResponse.Builder message = DriveEnvironmentsResponse.newBuilder();
        message.getAccountBuilder().setStepCount(numSteps);
        return message.build();
    }
}
