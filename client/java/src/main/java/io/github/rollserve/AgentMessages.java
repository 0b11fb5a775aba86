package io.github.rollserve;

import io.github.rollserve.v1.BernoulliHead;
import io.github.rollserve.v1.CategoricalHead;
import io.github.rollserve.v1.DiagonalGaussianHead;
import io.github.rollserve.v1.MultiCategoricalHead;
import io.github.rollserve.v1.SeparateValue;
import io.github.rollserve.v1.SharedValue;
import io.github.rollserve.v1.SquashedGaussianHead;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Objects;
import java.util.function.DoubleConsumer;

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
            message.setPolicies(policies.toWire());
        } else {
            message.setParameters(of((Parameters) update));
        }
        return message.build();
    }

    static io.github.rollserve.v1.Parameters of(Parameters parameters) {
        return io.github.rollserve.v1.Parameters.newBuilder()
            .addAllTensors(Tensors.toWire(Objects.requireNonNull(parameters, "parameters").tensors()))
            .build();
    }

    private static io.github.rollserve.v1.Agent of(Agent agent) {
        io.github.rollserve.v1.Agent.Builder message = io.github.rollserve.v1.Agent.newBuilder();
        if (agent instanceof MlpAgent mlp) {
            message.setMlp(of(mlp));
        } else if (agent instanceof OnnxAgent onnx) {
            message.setOnnx(onnx.toWire());
        } else if (agent instanceof PythonAgent python) {
            message.setPython(python.toWire());
        } else if (agent instanceof ConstantAgent constant) {
            message.setConstant(constant.toWire());
        } else {
            message.setRandom(((RandomAgent) agent).toWire());
        }
        return message.build();
    }

    static io.github.rollserve.v1.ActionMask of(ActionMask mask) {
        io.github.rollserve.v1.ActionMask.Builder message = io.github.rollserve.v1.ActionMask.newBuilder();
        if (Objects.requireNonNull(mask, "mask") instanceof ActionMask.Info info) {
            return message.setInfo(info.name()).build();
        }
        return message.setObservation(((ActionMask.Observation) mask).leaf()).build();
    }

    private static io.github.rollserve.v1.MlpAgent of(MlpAgent agent) {
        Map<String, Tensor> tensors = agent.parameters().tensors();
        io.github.rollserve.v1.MlpAgent.Builder message =
            agent.settings().toBuilder().setParameters(of(agent.parameters()));
        setHead(message, agent.head(), !tensors.containsKey("log_std"));
        setCore(message, tensors);
        setLayers(message, tensors);
        setValue(message, tensors);
        if (tensors.keySet().stream().anyMatch(name -> name.endsWith("/norm/weight"))) {
            message.getLayerNormBuilder();
        } else {
            message.clearLayerNorm();
        }
        if (tensors.containsKey("observation/mean")) {
            message.getNormalizationBuilder();
        } else if (message.hasNormalization()) {
            throw Errors.invalid("normalization", "a parameter 'observation/mean' beside it", "none of that name");
        }
        return message.build();
    }

    private static void setHead(
        io.github.rollserve.v1.MlpAgent.Builder message, MlpAgent.Head head, boolean predicted) {
        if (head instanceof MlpAgent.DiagonalGaussian gaussian) {
            DiagonalGaussianHead.Builder wire = message.getDiagonalGaussianBuilder();
            wire.setPredictedLogStd(predicted);
            setBounds(gaussian.minLogStd(), wire::setMinLogStd, gaussian.maxLogStd(), wire::setMaxLogStd);
        } else if (head instanceof MlpAgent.SquashedGaussian gaussian) {
            SquashedGaussianHead.Builder wire = message.getSquashedGaussianBuilder();
            wire.setPredictedLogStd(predicted);
            setBounds(gaussian.minLogStd(), wire::setMinLogStd, gaussian.maxLogStd(), wire::setMaxLogStd);
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

    /** Sets bounds; infinite ones stand for none. */
    static void setBounds(double low, DoubleConsumer setLow, double high, DoubleConsumer setHigh) {
        if (low != Double.NEGATIVE_INFINITY) {
            setLow.accept(low);
        }
        if (high != Double.POSITIVE_INFINITY) {
            setHigh.accept(high);
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
