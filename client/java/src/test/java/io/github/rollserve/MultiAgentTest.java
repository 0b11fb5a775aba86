package io.github.rollserve;

import static io.github.rollserve.ScriptedServer.BROKEN;
import static io.github.rollserve.ScriptedServer.OVER;
import static io.github.rollserve.ScriptedServer.oneStep;
import static io.github.rollserve.Wire.account;
import static io.github.rollserve.Wire.beginning;
import static io.github.rollserve.Wire.episodes;
import static io.github.rollserve.Wire.policy;
import static io.github.rollserve.Wire.response;
import static io.github.rollserve.Wire.tensor;
import static org.junit.jupiter.api.Assertions.assertArrayEquals;
import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import com.google.protobuf.TextFormat;
import io.github.rollserve.ScriptedServer.Call;
import io.github.rollserve.v1.Environment;
import io.github.rollserve.v1.EvaluateRequest;
import io.github.rollserve.v1.ObtainSamplesRequest;
import io.github.rollserve.v1.ObtainSamplesResponse;
import io.github.rollserve.v1.PolicyUpdates;
import io.github.rollserve.v1.UpdateAgentRequest;
import io.github.rollserve.v1.UpdateEnvRequest;
import java.util.Iterator;
import java.util.List;
import java.util.Map;
import java.util.OptionalDouble;
import org.junit.jupiter.api.Test;
import org.junit.jupiter.api.Timeout;

@Timeout(60)
class MultiAgentTest {
    /** The first three steps of episode 4, in which policy main acts for both agents. */
    private static ObtainSamplesResponse firstPart() {
        return response(episodes("4:0+3")
            .addPolicies(policy("main", "a@0,2=4:0+2", "b@1=4:0+1"))
            .setGlobalStates(tensor(DataType.FLOAT32, new Number[] {40, 41, 42}, 3, 1))
            .setLastGlobalStates(tensor(DataType.FLOAT32, new Number[] {43}, 1, 1)));
    }

    /** The rest of episode 4, and episode 5, in which policy other acts for agent b. */
    private static ObtainSamplesResponse secondPart() {
        return response(episodes("4:3+2.", "5:0+2.")
            .addPolicies(policy("main", "a@4=4:2+1.", "b@3=4:1+1.", "a@0=5:0+1."))
            .addPolicies(policy("other", "b@1=5:0+1.").addRewardsBefore(7))
            .setGlobalStates(tensor(DataType.FLOAT32, new Number[] {43, 44, 50, 51}, 4, 1))
            .setLastGlobalStates(tensor(DataType.FLOAT32, new Number[] {45, 52}, 2, 1)));
    }

    private static MultiAgentBatch obtain(
        int numEpisodes, int numSteps, io.github.rollserve.v1.MultiAgentBatch.Builder... batches) {
        ObtainSamplesResponse[] responses = new ObtainSamplesResponse[batches.length + 2];
        responses[0] = beginning();
        for (int i = 0; i < batches.length; i++) {
            responses[i + 1] = response(batches[i]);
        }
        responses[batches.length + 1] = account(numEpisodes, numSteps);
        try (ScriptedServer server = new ScriptedServer(new Call(OVER, responses));
            Sampler sampler = server.connect()) {
            return sampler.multiAgent().obtainSamples(numSteps);
        }
    }

    private static MultiAgentBatch twoEpisodes() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(OVER, beginning(), firstPart(), secondPart(), account(2, 7)));
            Sampler sampler = server.connect()) {
            return sampler.multiAgent().obtainSamples(7);
        }
    }

    @Test
    void episodesAreJoinedOverMessages() {
        MultiAgentBatch batch = twoEpisodes();
        assertEquals(List.of("a", "b"), batch.agents());
        assertArrayEquals(new long[] {4, 5}, batch.episodeIndices());
        assertArrayEquals(new long[] {0, 0}, batch.firstSteps());
        assertArrayEquals(new int[] {5, 2}, batch.lengths());
        assertArrayEquals(new boolean[] {true, true}, batch.terminated());
        assertArrayEquals(new boolean[] {false, false}, batch.truncated());
        assertArrayEquals(new long[] {5, 2}, batch.agentStepCounts());
        assertEquals(7, batch.numAgentSteps());
        assertEquals(7, batch.account().orElseThrow().numSteps());
        assertArrayEquals(
            new double[] {40, 41, 42, 43, 44, 50, 51}, batch.globalStates().orElseThrow().toDoubles());
        assertArrayEquals(new double[] {45, 52}, batch.lastGlobalStates().orElseThrow().toDoubles());
        assertEquals(
            "MultiAgentBatch(2 episodes, 7 environment steps, policies \"main\", \"other\")", batch.toString());
    }

    @Test
    void policiesHaveTheLivesInWhichTheyActed() {
        MultiAgentBatch batch = twoEpisodes();
        PolicyBatch main = batch.policies().get(0);
        assertEquals("main", main.policy());
        assertArrayEquals(new int[] {0, 1, 0}, main.agentPositions());
        assertArrayEquals(new long[] {0, 2, 4, 1, 3, 0}, main.envSteps());
        assertArrayEquals(new int[] {3, 2, 1}, main.batch().lengths());
        assertArrayEquals(new boolean[] {true, true, true}, main.batch().terminated());
        assertArrayEquals(new long[] {4, 4, 5}, main.batch().episodeIndices());
        assertArrayEquals(
            new double[] {400, 401, 402, 400, 401, 500}, main.batch().observations().plain().toDoubles());
        assertArrayEquals(new double[] {403, 402, 501}, main.batch().lastObservations().plain().toDoubles());
        EpisodeBatch other = batch.byPolicy().get("other");
        assertArrayEquals(new double[] {0}, other.returns());
        assertArrayEquals(new double[] {7}, other.episodeReturns()); // with the rewards before the first action
        assertEquals(List.of("main", "other"), List.copyOf(batch.byPolicy().keySet()));
    }

    @Test
    void agentsHaveTheirLivesWhateverPoliciesActed() {
        Map<String, EpisodeBatch> agents = twoEpisodes().byAgent();
        assertEquals(List.of("a", "b"), List.copyOf(agents.keySet()));
        assertArrayEquals(new int[] {3, 1}, agents.get("a").lengths());
        EpisodeBatch second = agents.get("b");
        assertArrayEquals(new int[] {2, 1}, second.lengths());
        assertArrayEquals(new long[] {4, 5}, second.episodeIndices());
        assertArrayEquals(new double[] {400, 401, 500}, second.observations().plain().toDoubles());
        assertArrayEquals(new double[] {1, 7}, second.episodeReturns());
    }

    @Test
    void jointStepsAreAlignedToTheEnvironment() {
        Map<String, AgentSteps> joint = twoEpisodes().joint();
        AgentSteps first = joint.get("a");
        assertArrayEquals(new boolean[] {true, false, true, false, true, true, false}, first.acted());
        assertArrayEquals(new double[] {400, 0, 401, 0, 402, 500, 0}, first.observations().plain().toDoubles());
        assertArrayEquals(new double[] {0, 0, 1, 0, 2, 0, 0}, first.rewards().toDoubles());
        assertArrayEquals(new boolean[] {false, false, false, false, true, true, false}, first.terminated());
        assertArrayEquals(new long[] {1, 0, 1, 0, 1, 1, 0}, first.policyVersions());
        AgentSteps second = joint.get("b");
        assertArrayEquals(new double[] {0, 0, 0, 1, 0, 0, 0}, second.actions().plain().toDoubles());
        assertArrayEquals(new boolean[] {false, true, false, true, false, false, true}, second.acted());
    }

    @Test
    void jointStepsOfFragmentsLeaveOutThoseOfEarlierOnes() {
        MultiAgentBatch batch = obtain(0, 2, episodes("4:3+2").addPolicies(policy("main", "a@2,4=4:1+2", "b@3=4:1+1")));
        assertArrayEquals(new int[] {2}, batch.lengths());
        AgentSteps first = batch.joint().get("a");
        assertArrayEquals(new boolean[] {false, true}, first.acted());
        assertArrayEquals(new double[] {0, 402}, first.observations().plain().toDoubles());
        assertArrayEquals(new int[] {2}, batch.byAgent().get("a").lengths());
    }

    @Test
    void livesOfOneAgentStayApart() {
        MultiAgentBatch batch = obtain(1, 3,
            episodes("4:0+2").addPolicies(policy("main", "a@0=4:0+1.", "a@1=4:0+1")),
            episodes("4:2+1.").addPolicies(policy("main", "a@2=4:1+1.")));
        assertArrayEquals(new int[] {1, 2}, batch.byPolicy().get("main").lengths());
        assertArrayEquals(new int[] {1, 2}, batch.byAgent().get("a").lengths());
    }

    @Test
    void streamContinuesWithinAnEpisodeWhenItBreaks() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, beginning(), firstPart()),
                new Call(OVER, beginning(),
                    response(episodes("4:0+2").addPolicies(policy("main", "a@0=4:0+1", "b@1=4:0+1"))),
                    response(episodes("4:2+3.", "5:0+2.")
                        .addPolicies(policy("main", "a@2,4=4:1+2.", "b@3=4:1+1.", "a@0=5:0+1."))
                        .addPolicies(policy("other", "b@1=5:0+1."))),
                    account(2, 7)));
            Sampler sampler = server.connect();
            SampleStream<MultiAgentBatch> stream =
                sampler.multiAgent().streamSamples(7, new SamplingOptions().withCountAgentSteps(true))) {
            Iterator<MultiAgentBatch> parts = stream.iterator();
            parts.next();
            MultiAgentBatch rest = parts.next();
            assertArrayEquals(new long[] {3, 0}, rest.firstSteps());
            assertArrayEquals(new int[] {2, 2}, rest.lengths());
            assertArrayEquals(new long[] {2, 2}, rest.agentStepCounts());
            PolicyBatch main = rest.policies().get(0);
            assertArrayEquals(new long[] {2, 1, 0}, main.batch().firstSteps());
            assertArrayEquals(new long[] {4, 3, 0}, main.envSteps());
            assertArrayEquals(new double[] {402, 401, 500}, main.batch().observations().plain().toDoubles());
            assertFalse(parts.hasNext());
            assertEquals(1, stream.account().orElseThrow().numResumptions());
            ObtainSamplesRequest request = (ObtainSamplesRequest) server.requests.get(1);
            assertEquals(4, request.getOptions().getFirstEpisodeIndex());
            assertEquals(7, request.getStepCount());
        }
    }

    @Test
    void streamNeedsFewerStepsOfAgentsAfterWholeEpisodes() {
        io.github.rollserve.v1.MultiAgentBatch.Builder whole =
            episodes("4:0+2.").setAgentStepCounts(0, 4).addPolicies(policy("main", "a@0,1=4:0+2."));
        io.github.rollserve.v1.MultiAgentBatch.Builder last =
            episodes("5:0+2.").setAgentStepCounts(0, 4).addPolicies(policy("main", "a@0,1=5:0+2."));
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, beginning(), response(whole)),
                new Call(BROKEN, beginning(), response(last)),
                new Call(OVER, beginning(), response(last), account(1, 2)));
            Sampler sampler = server.connect()) {
            MultiAgentBatch batch = sampler.multiAgent().obtainSamples(
                7, new SamplingOptions().withCountAgentSteps(true).withDeliver("main"));
            assertArrayEquals(new long[] {4, 4}, batch.agentStepCounts());
            assertEquals(4, batch.account().orElseThrow().numSteps());
            ObtainSamplesRequest rest = (ObtainSamplesRequest) server.requests.get(1);
            assertEquals(3, rest.getStepCount());
            assertEquals(5, rest.getOptions().getFirstEpisodeIndex());
            assertEquals(List.of("main"), rest.getOptions().getDeliverPoliciesList());
            // Only the account is missing: the last episode comes once more, which is needed for the same steps.
            assertEquals(3, ((ObtainSamplesRequest) server.requests.get(2)).getStepCount());
            assertEquals(5, ((ObtainSamplesRequest) server.requests.get(2)).getOptions().getFirstEpisodeIndex());
        }
    }

    @Test
    void callsForTheOtherNumberOfAgentsAreRefused() {
        try (ScriptedServer server = new ScriptedServer(oneStep(), new Call(OVER, beginning(), firstPart()));
            Sampler sampler = server.connect()) {
            assertEquals("environment", assertThrows(
                InvalidArgumentException.class, () -> sampler.multiAgent().obtainSamples(1)).field());
            assertEquals("environment", assertThrows(
                InvalidArgumentException.class, () -> sampler.obtainSamples(1)).field());
        }
    }

    @Test
    void malformedBatchesAreServerErrors() {
        assertThrows(ServerException.class, () ->
            obtain(1, 1, episodes("4:0+1.").addPolicies(policy("p", "c@0=4:0+1."))));
        assertThrows(ServerException.class, () ->
            obtain(1, 1, episodes("4:0+1.").addPolicies(policy("p", "a@0,1=4:0+1."))));
        assertThrows(ServerException.class, () -> obtain(1, 1, episodes("4:0+1.").clearAgentStepCounts()));
        assertThrows(ServerException.class, () -> obtain(1, 1, episodes("4:0+1.").addAgents("a")));
        assertThrows(ServerException.class, () -> obtain(1, 1,
            episodes("4:0+1.").setGlobalStates(tensor(DataType.FLOAT32, new Number[] {1}))));
        assertThrows(ServerException.class, () -> obtain(2, 1, episodes("4:0+1.")));
        assertThrows(ServerException.class, () -> obtain(2, 1,
            episodes("4:0+1.", "5:0+1.").setLengths(0, Integer.MAX_VALUE).setLengths(1, Integer.MAX_VALUE)));
    }

    @Test
    void updatesHavePoliciesAndTheirMap() throws TextFormat.ParseException {
        PolicyUpdates.Builder expected = PolicyUpdates.newBuilder();
        TextFormat.merge("""
            policies { key: "main" value { agent { random {} } } }
            policies { key: "bot" value { change { kwargs_json: '{"gain":2}' } } }
            policy_map {
                rules { name: "a" choices { policy: "main" weight: 1 } }
                rules { prefix: "b" choices { policy: "main" version: -1 weight: 0.2 }
                                    choices { policy: "bot" version: 3 weight: 1 } }
                rules { position: 2 choices { policy: "bot" weight: 1 } }
            }
            """, expected);
        PolicyMap map = new PolicyMap()
            .withAgent("a", "main")
            .withPrefix("b", new PolicyChoice("main", -1, 0.2), new PolicyChoice("bot", 3))
            .withPosition(2, "bot");
        try (ScriptedServer server = new ScriptedServer(); Sampler sampler = server.connect()) {
            sampler.updateAgent(new RandomAgent());
            sampler.updateAgent(
                new Policies(Map.of("main", new RandomAgent(), "bot", new AgentChange(Map.of("gain", 2))))
                    .withPolicyMap(map));
            UpdateAgentRequest update = (UpdateAgentRequest) server.requests.get(1);
            assertEquals(expected.build(), update.getAllWorkers().getPolicies());
            assertEquals(7, update.getExpectedPolicyVersion()); // policies that are left out stay as they are
            sampler.updateAgent(new Policies(Map.of("main", Parameters.NONE)));
            PolicyUpdates parameters =
                ((UpdateAgentRequest) server.requests.get(2)).getAllWorkers().getPolicies();
            assertFalse(parameters.hasPolicyMap());
            assertTrue(parameters.getPoliciesOrThrow("main").hasParameters());
        }
        assertEquals(
            "position", assertThrows(InvalidArgumentException.class, () -> map.withPosition(-1, "bot")).field());
    }

    @Test
    void environmentsHaveTheirInterfaceAndTheirAgents() {
        EnvSpec env = new EnvSpec("mpe/simple_spread-v3").withMultiAgent(MultiAgentApi.PARALLEL).withGlobalState(true);
        try (ScriptedServer server = new ScriptedServer(); Sampler sampler = server.connect()) {
            assertEquals(List.of("a", "b"), sampler.updateEnv(env).agents());
            Environment sent = ((UpdateEnvRequest) server.requests.get(0)).getAllWorkers().getEnvironment();
            assertEquals(1, sent.getMultiAgentValue());
            assertTrue(sent.getGlobalState());
            assertEquals(List.of(env), sampler.status().envs());
            assertEquals(List.of(), sampler.updateEnv(env.withMultiAgent(MultiAgentApi.NONE)).agents());
        }
    }

    @Test
    void evaluationsSummarizeAgentsAndPolicies() {
        try (ScriptedServer server = new ScriptedServer(
                new Call(BROKEN, beginning(), firstPart()),
                new Call(OVER, beginning(), firstPart(), secondPart(), account(2, 7)));
            Sampler sampler = server.connect()) {
            EvaluationOptions options = new EvaluationOptions()
                .withPolicyMaps(new PolicyMap().withPrefix("", "main"), new PolicyMap().withPrefix("", "old"))
                .withReturnEpisodes(true);
            Evaluation evaluation = sampler.evaluate(3, options);
            EvaluateRequest request = (EvaluateRequest) server.requests.get(1);
            assertEquals("old", request.getOptions().getPolicyMaps(1).getRules(0).getChoices(0).getPolicy());
            assertArrayEquals(new int[] {5, 2}, evaluation.multiAgentEpisodes().orElseThrow().lengths());
            assertTrue(evaluation.episodes().isEmpty());
            AgentReturns returns = evaluation.agentReturns().orElseThrow();
            assertArrayEquals(new double[] {1, Double.NaN}, returns.returns()[0]);
            assertArrayEquals(new int[] {0, 1}, returns.policyPositions()[2]);

            Evaluation.Summary first = returns.byAgent().get("a"); // of 1, 2, 4
            assertEquals(7.0 / 3, first.mean(), 1e-12);
            double margin = 4.302652729749458 * first.std().orElseThrow() / Math.sqrt(3); // t with 2 degrees of freedom
            assertEquals(7.0 / 3 - margin, first.confidenceLow().orElseThrow(), 1e-12);
            Evaluation.Summary second = returns.byAgent().get("b"); // of 5, 5
            assertEquals(new Evaluation.Summary(
                5, OptionalDouble.of(0), OptionalDouble.of(5), OptionalDouble.of(5)), second);
            assertEquals(
                List.of("main@3", "old@1"), returns.byPolicy().keySet().stream().map(Object::toString).toList());
            // Of the second episode, in which main acts for both, the mean counts: 1, 3.5, 4.
            assertEquals(8.5 / 3, returns.byPolicy().get(new PolicyVersion("main", 3)).mean(), 1e-12);
            assertEquals(5, returns.byPolicy().get(new PolicyVersion("old", 1)).mean());
            assertTrue(returns.byPolicy().get(new PolicyVersion("old", 1)).std().isEmpty());
        }
    }

    @Test
    void confidenceIntervalsHaveStudentsBounds() {
        Map<Integer, Double> bounds = Map.of(
            1, 12.706204736174659, 10, 2.2281388519862735, 19, 2.0930240544083105, 1000, 1.9623390808263312,
            1001, 1.9623367052792953);
        bounds.forEach((degrees, bound) -> {
            double[][] returns = new double[degrees + 1][1];
            for (int i = 0; i < returns.length; i += 2) {
                returns[i][0] = 1;
            }
            List<PolicyVersion> policies = List.of(new PolicyVersion("main", 1));
            Evaluation.Summary summary =
                new AgentReturns(List.of("a"), policies, returns, new int[returns.length][1]).byAgent().get("a");
            double half = (summary.confidenceHigh().orElseThrow() - summary.confidenceLow().orElseThrow()) / 2;
            assertEquals(bound, half / (summary.std().orElseThrow() / Math.sqrt(returns.length)), 1e-9);
        });
    }
}
