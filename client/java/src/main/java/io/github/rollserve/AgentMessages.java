package io.github.rollserve;

import com.google.protobuf.UnsafeByteOperations;
import io.github.rollserve.v1.ActionsHead;
import io.github.rollserve.v1.BernoulliHead;
import io.github.rollserve.v1.CategoricalHead;
import io.github.rollserve.v1.DiagonalGaussianHead;
import io.github.rollserve.v1.LayerNorm;
import io.github.rollserve.v1.MultiCategoricalHead;
import io.github.rollserve.v1.ObservationNormalization;
import io.github.rollserve.v1.PolicyUpdates;
import io.github.rollserve.v1.SeparateValue;
import io.github.rollserve.v1.SharedValue;
import io.github.rollserve.v1.SquashedGaussianHead;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.function.Consumer;

/** Agents as the wire has them. */
final class AgentMessages {
    private AgentMessages() {}

    static io.github.rollserve.v1.AgentUpdate of(AgentUpdate update) {
        io.github.rollserve.v1.AgentUpdate.Builder message = io.github.rollserve.v1.AgentUpdate.newBuilder();
        if (update instanceof Agent agent) {
            message.setAgent(of(agent));
        } else if (update instanceof AgentChange change) {
            io.github.rollserve.v1.AgentChange.Builder wire = message.getChangeBuilder();
            wire.setKwargsJson(Json.object("kwargs", change.kwargs()));
            if (!change.parameters().tensors().isEmpty()) {
                wire.setParameters(of(change.parameters()));
            }
        } else if (update instanceof Policies policies) {
            PolicyUpdates.Builder wire = message.getPoliciesBuilder();
            policies.updates().forEach((name, policy) -> wire.putPolicies(name, of(policy)));
            policies.policyMap().ifPresent(map -> wire.setPolicyMap(map.toWire()));
        } else {
            message.setParameters(of((Parameters) update));
        }
        return message.build();
    }

    static io.github.rollserve.v1.Parameters of(Parameters parameters) {
        return io.github.rollserve.v1.Parameters.newBuilder()
            .addAllTensors(Tensors.toWire(parameters.tensors()))
            .build();
    }

    private static io.github.rollserve.v1.Agent of(Agent agent) {
        io.github.rollserve.v1.Agent.Builder message = io.github.rollserve.v1.Agent.newBuilder();
        if (agent instanceof MlpAgent mlp) {
            message.setMlp(of(mlp));
        } else if (agent instanceof OnnxAgent onnx) {
            message.setOnnx(of(onnx));
        } else if (agent instanceof PythonAgent python) {
            io.github.rollserve.v1.PythonAgent.Builder wire = message.getPythonBuilder()
                .setName(python.name())
                .setKwargsJson(Json.object("kwargs", python.kwargs()))
                .setParameters(of(python.parameters()));
            setMask(python.actionMask(), wire::setActionMask);
        } else if (agent instanceof ConstantAgent constant) {
            io.github.rollserve.v1.ConstantAgent.Builder wire =
                message.getConstantBuilder().addAllAction(Tensors.toWire(constant.action().tensors()));
            setMask(constant.actionMask(), wire::setActionMask);
        } else {
            setMask(((RandomAgent) agent).actionMask(), message.getRandomBuilder()::setActionMask);
        }
        return message.build();
    }

    private static void setMask(Optional<ActionMask> mask, Consumer<io.github.rollserve.v1.ActionMask> setter) {
        mask.ifPresent(source -> {
            io.github.rollserve.v1.ActionMask.Builder message = io.github.rollserve.v1.ActionMask.newBuilder();
            if (source instanceof ActionMask.Info info) {
                message.setInfo(info.name());
            } else {
                message.setObservation(((ActionMask.Observation) source).leaf());
            }
            setter.accept(message.build());
        });
    }

    private static io.github.rollserve.v1.OnnxAgent of(OnnxAgent agent) {
        io.github.rollserve.v1.OnnxAgent.Builder message = io.github.rollserve.v1.OnnxAgent.newBuilder()
            .setModel(UnsafeByteOperations.unsafeWrap(agent.model()))
            .putAllInputs(agent.inputs())
            .putAllOutputs(agent.outputs())
            .addAllInfos(agent.infos());
        setMask(agent.actionMask(), message::setActionMask);
        switch (agent.head()) {
            case CATEGORICAL -> message.setCategorical(CategoricalHead.getDefaultInstance());
            case DIAGONAL_GAUSSIAN ->
                message.setDiagonalGaussian(DiagonalGaussianHead.getDefaultInstance());
            case SQUASHED_GAUSSIAN ->
                message.setSquashedGaussian(SquashedGaussianHead.getDefaultInstance());
            case ACTIONS -> message.setActions(ActionsHead.getDefaultInstance());
        }
        return message.build();
    }

    private static io.github.rollserve.v1.MlpAgent of(MlpAgent agent) {
        Map<String, Tensor> tensors = agent.parameters().tensors();
        io.github.rollserve.v1.MlpAgent.Builder message = io.github.rollserve.v1.MlpAgent.newBuilder()
            .setActivationValue(agent.activation().ordinal() + 1)
            .setParameters(of(agent.parameters()));
        setHead(message, agent.head(), !tensors.containsKey("log_std"));
        setCore(message, tensors);
        setLayers(message, tensors);
        setValue(message, tensors);
        if (tensors.keySet().stream().anyMatch(name -> name.endsWith("/norm/weight"))) {
            LayerNorm.Builder norm = LayerNorm.newBuilder();
            agent.layerNormEpsilon().ifPresent(norm::setEpsilon);
            message.setLayerNorm(norm);
        }
        setNormalization(message, agent);
        setMask(agent.actionMask(), message::setActionMask);
        return message.build();
    }

    /** Sets the normalization if the parameters have the moments of observations. */
    private static void setNormalization(io.github.rollserve.v1.MlpAgent.Builder message, MlpAgent agent) {
        if (!agent.parameters().tensors().containsKey("observation/mean")) {
            if (agent.normalizationEpsilon().isPresent() || agent.normalizationClip().isPresent()) {
                String field = agent.normalizationEpsilon().isPresent() ? "normalizationEpsilon" : "normalizationClip";
                throw Errors.invalid(field, "a parameter 'observation/mean' beside it", "none of that name");
            }
            return;
        }
        ObservationNormalization.Builder normalization = message.getNormalizationBuilder();
        agent.normalizationEpsilon().ifPresent(normalization::setEpsilon);
        agent.normalizationClip().ifPresent(normalization::setClip);
    }

    private static void setHead(
        io.github.rollserve.v1.MlpAgent.Builder message, MlpAgent.Head head, boolean predicted) {
        if (head instanceof MlpAgent.DiagonalGaussian gaussian) {
            DiagonalGaussianHead.Builder wire = message.getDiagonalGaussianBuilder();
            wire.setPredictedLogStd(predicted);
            gaussian.minLogStd().ifPresent(wire::setMinLogStd);
            gaussian.maxLogStd().ifPresent(wire::setMaxLogStd);
        } else if (head instanceof MlpAgent.SquashedGaussian gaussian) {
            SquashedGaussianHead.Builder wire = message.getSquashedGaussianBuilder();
            wire.setPredictedLogStd(predicted);
            gaussian.minLogStd().ifPresent(wire::setMinLogStd);
            gaussian.maxLogStd().ifPresent(wire::setMaxLogStd);
        } else if (head instanceof MlpAgent.MultiCategorical) {
            message.setMultiCategorical(MultiCategoricalHead.getDefaultInstance());
        } else if (head instanceof MlpAgent.Bernoulli) {
            message.setBernoulli(BernoulliHead.getDefaultInstance());
        } else if (head instanceof MlpAgent.EpsilonGreedy greedy) {
            message.getEpsilonGreedyBuilder().setEpsilon(greedy.epsilon());
        } else if (head instanceof MlpAgent.Boltzmann boltzmann) {
            message.getBoltzmannBuilder().setTemperature(boltzmann.temperature());
        } else {
            message.setCategorical(CategoricalHead.getDefaultInstance());
        }
    }

    /** Sets the recurrent core, whose kind follows from the shape of {@code core/weight_hh}. */
    private static void setCore(io.github.rollserve.v1.MlpAgent.Builder message, Map<String, Tensor> tensors) {
        if (tensors.keySet().stream().noneMatch(name -> name.startsWith("core/"))) {
            return;
        }
        int[] shape = matrix(tensors, "core/weight_hh");
        if (shape[0] == 3 * shape[1]) {
            message.getGruBuilder().setSize(shape[1]);
        } else if (shape[0] == 4 * shape[1]) {
            message.getLstmBuilder().setSize(shape[1]);
        } else {
            String expected = "shape (3 H, H) of a GRU or (4 H, H) of an LSTM";
            throw Errors.invalid("parameters['core/weight_hh']", expected, tensors.get("core/weight_hh"));
        }
    }

    private static void setLayers(io.github.rollserve.v1.MlpAgent.Builder message, Map<String, Tensor> tensors) {
        List<int[]> layers = layers(tensors, "");
        if (layers.isEmpty()) {
            throw Errors.invalid("parameters", "a parameter '0/weight'", "none of that name");
        }
        // The only layer is behind the core, if there is one; the observation is then the core's input.
        boolean coreIsFirst = layers.size() == 1 && (message.hasGru() || message.hasLstm());
        message.addLayerSizes(coreIsFirst ? matrix(tensors, "core/weight_ih")[1] : layers.get(0)[1]);
        layers.forEach(shape -> message.addLayerSizes(shape[0]));
    }

    private static void setValue(io.github.rollserve.v1.MlpAgent.Builder message, Map<String, Tensor> tensors) {
        List<int[]> layers = layers(tensors, "value/");
        if (!layers.isEmpty()) {
            SeparateValue.Builder value = message.getSeparateValueBuilder();
            layers.subList(0, layers.size() - 1).forEach(shape -> value.addHiddenSizes(shape[0]));
        } else if (tensors.containsKey("value/weight")) {
            message.setSharedValue(SharedValue.getDefaultInstance());
        }
    }

    /** Returns the shapes (outputs, inputs) of consecutive layers. */
    private static List<int[]> layers(Map<String, Tensor> tensors, String prefix) {
        List<int[]> shapes = new ArrayList<>();
        while (tensors.containsKey(prefix + shapes.size() + "/weight")) {
            shapes.add(matrix(tensors, prefix + shapes.size() + "/weight"));
        }
        return shapes;
    }

    private static int[] matrix(Map<String, Tensor> tensors, String name) {
        Tensor tensor = tensors.get(name);
        if (tensor == null) {
            throw Errors.invalid("parameters", "a parameter '" + name + "'", "none of that name");
        }
        if (tensor.numAxes() != 2) {
            throw Errors.invalid("parameters['" + name + "']", "two axes", tensor);
        }
        return tensor.shape();
    }
}
