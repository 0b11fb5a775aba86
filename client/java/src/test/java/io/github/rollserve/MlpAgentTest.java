package io.github.rollserve;

import static org.junit.jupiter.api.Assertions.assertEquals;
import static org.junit.jupiter.api.Assertions.assertFalse;
import static org.junit.jupiter.api.Assertions.assertNotEquals;
import static org.junit.jupiter.api.Assertions.assertThrows;
import static org.junit.jupiter.api.Assertions.assertTrue;

import io.github.rollserve.v1.Activation;
import io.github.rollserve.v1.ObservationNormalization;
import io.github.rollserve.v1.UpdateAgentRequest;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import org.junit.jupiter.api.Test;

class MlpAgentTest {
    private static final Space BOX =
        new Space.Box(DataType.FLOAT32, List.of(2, 3), Tensor.scalar(-1.0), Tensor.scalar(1.0));

    @Test
    void initialAgentFitsItsSpaces() {
        Map<String, Space> spaces = new LinkedHashMap<>();
        spaces.put("a", BOX);
        spaces.put("b", new Space.Discrete(4, 0));
        MlpAgent agent = MlpAgent.initial(new Space.Dict(spaces), BOX, new int[] {8}, 1);
        io.github.rollserve.v1.MlpAgent sent = sent(agent);
        assertEquals(List.of(10, 8, 6), sent.getLayerSizesList());
        assertFalse(sent.getDiagonalGaussian().getPredictedLogStd());
        assertEquals(agent, MlpAgent.initial(new Space.Dict(spaces), BOX, new int[] {8}, 1));
        assertEquals(agent.hashCode(), MlpAgent.initial(new Space.Dict(spaces), BOX, new int[] {8}, 1).hashCode());
        assertNotEquals(agent, MlpAgent.initial(new Space.Dict(spaces), BOX, new int[] {8}, 2));
        assertNotEquals(agent, agent.withActivation(MlpAgent.Activation.RELU));
        Map<String, Tensor> predicted = new LinkedHashMap<>(agent.parameters().tensors());
        predicted.remove("log_std");
        assertTrue(sent(new MlpAgent(new Parameters(predicted), agent.head()))
            .getDiagonalGaussian().getPredictedLogStd());
        assertThrows(
            InvalidArgumentException.class, () -> MlpAgent.initial(BOX, new Space.Dict(spaces), new int[] {8}, 1));
    }

    @Test
    void agentSaysWhatItsParametersAre() {
        io.github.rollserve.v1.MlpAgent sent = sent(new MlpAgent(
            new Parameters(Map.of(
                "0/weight", zeros(4, 16), "0/bias", zeros(4),
                "core/weight_ih", zeros(64, 5), "core/weight_hh", zeros(64, 16),
                "value/0/weight", zeros(7, 5), "value/0/norm/weight", zeros(7), "value/1/weight", zeros(1, 7))),
            new MlpAgent.EpsilonGreedy(0.25)).withActivation(MlpAgent.Activation.RELU));
        assertEquals(List.of(5, 4), sent.getLayerSizesList());
        assertEquals(Activation.ACTIVATION_RELU, sent.getActivation());
        assertEquals(16, sent.getLstm().getSize());
        assertEquals(List.of(7), sent.getSeparateValue().getHiddenSizesList());
        assertTrue(sent.hasLayerNorm() && !sent.getLayerNorm().hasEpsilon());
        assertEquals(0.25, sent.getEpsilonGreedy().getEpsilon());
        assertEquals("0/bias", sent.getParameters().getTensors(0).getName());
    }

    @Test
    void agentNormalizesWhenItsParametersHaveMoments() {
        MlpAgent plain = MlpAgent.initial(BOX, BOX, new int[] {8}, 1);
        assertFalse(sent(plain).hasNormalization());
        Map<String, Tensor> parameters = new LinkedHashMap<>(plain.parameters().tensors());
        parameters.put("observation/mean", Tensor.of(new double[6]));
        parameters.put("observation/variance", Tensor.of(new double[6]));
        MlpAgent agent = new MlpAgent(new Parameters(parameters), plain.head());
        assertTrue(sent(agent).hasNormalization());
        assertFalse(sent(agent).getNormalization().hasEpsilon() || sent(agent).getNormalization().hasClip());
        ObservationNormalization constants = sent(agent.withNormalization(0.5, 3)).getNormalization();
        assertEquals(0.5, constants.getEpsilon());
        assertEquals(3, constants.getClip());
    }

    @Test
    void agentsHaveActionMasks() {
        ActionMask info = new ActionMask.Info("legal");
        var sent = io.github.rollserve.v1.ActionMask.newBuilder().setInfo("legal").build();
        MlpAgent mlp = MlpAgent.initial(BOX, BOX, new int[] {8}, 1).withActionMask(new ActionMask.Observation("mask"));
        List<io.github.rollserve.v1.Agent> agents = sent(
            new RandomAgent().withActionMask(info),
            new ConstantAgent(Columns.plain(Tensor.scalar(1))).withActionMask(info),
            new OnnxAgent(new byte[0], OnnxAgent.Head.CATEGORICAL).withActionMask(info),
            new PythonAgent("name").withActionMask(info),
            mlp, new RandomAgent());
        assertEquals(sent, agents.get(0).getRandom().getActionMask());
        assertEquals(sent, agents.get(1).getConstant().getActionMask());
        assertEquals(sent, agents.get(2).getOnnx().getActionMask());
        assertEquals(sent, agents.get(3).getPython().getActionMask());
        assertEquals("mask", agents.get(4).getMlp().getActionMask().getObservation());
        assertFalse(agents.get(5).getRandom().hasActionMask());
    }

    @Test
    void updatesFailWhenTheyCannotBeSent() {
        MlpAgent.Head head = new MlpAgent.Categorical();
        Map<String, AgentUpdate> updates = Map.of(
            "parameters", new MlpAgent(Parameters.NONE, head),
            "parameters['0/weight']", new MlpAgent(new Parameters(Map.of("0/weight", zeros(3))), head),
            "parameters['core/weight_hh']", new MlpAgent(new Parameters(Map.of("core/weight_hh", zeros(5, 2))), head),
            "normalization",
            new MlpAgent(new Parameters(Map.of("0/weight", zeros(3, 2))), head).withNormalization(1, 1));
        try (ScriptedServer server = new ScriptedServer(); Sampler sampler = server.connect()) {
            updates.forEach((field, update) -> assertEquals(field,
                assertThrows(InvalidArgumentException.class, () -> sampler.updateAgent(update)).field()));
            assertEquals(List.of(), server.requests);
            PythonAgent python = new PythonAgent("name");
            assertEquals("kwargs", assertThrows(
                InvalidArgumentException.class, () -> python.withKwargs(Map.of("x", Double.NaN))).field());
        }
    }

    private static io.github.rollserve.v1.MlpAgent sent(MlpAgent agent) {
        return sent(new AgentUpdate[] {agent}).get(0).getMlp();
    }

    /** Returns the agents that the server receives. */
    private static List<io.github.rollserve.v1.Agent> sent(AgentUpdate... agents) {
        try (ScriptedServer server = new ScriptedServer(); Sampler sampler = server.connect()) {
            for (AgentUpdate agent : agents) {
                sampler.updateAgent(agent);
            }
            return server.requests.stream()
                .map(request -> ((UpdateAgentRequest) request).getAllWorkers().getAgent())
                .toList();
        }
    }

    private static Tensor zeros(int... shape) {
        return Tensor.of(new float[(int) Tensor.product(shape)], shape);
    }
}
