import io.github.rollserve.Parameters;
import io.github.rollserve.Tensor;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Random;
import java.util.TreeMap;

/** A multilayer perceptron with hidden layers of tanh, which handles one input at a time, and its own gradients. */
final class Network {
    private final List<Layer> layers = new ArrayList<>();
    private int numUpdates;

    /** Values that are learned, the sum of their gradients, and Adam's averages. */
    private record Learned(float[] values, float[] gradient, float[] first, float[] second) {
        Learned(float[] values) {
            this(values, new float[values.length], new float[values.length], new float[values.length]);
        }
    }

    private static final class Layer {
        final Learned weight; // (outputs, inputs)
        final Learned bias; // (outputs)
        final float[] output;
        float[] input;

        Layer(float[] weight, float[] bias) {
            this.weight = new Learned(weight);
            this.bias = new Learned(bias);
            this.output = new float[bias.length];
        }

        int numInputs() {
            return weight.values().length / output.length;
        }
    }

    /** Creates a network with random weights. */
    Network(Random random, int... sizes) {
        for (int i = 0; i + 1 < sizes.length; i++) {
            float[] weight = new float[sizes[i + 1] * sizes[i]];
            for (int j = 0; j < weight.length; j++) {
                weight[j] = (float) (random.nextGaussian() / Math.sqrt(sizes[i]));
            }
            layers.add(new Layer(weight, new float[sizes[i + 1]]));
        }
    }

    /** Creates a network with the parameters of an agent. */
    Network(Parameters parameters) {
        Map<String, Tensor> tensors = parameters.tensors();
        for (int i = 0; tensors.containsKey(i + "/weight"); i++) {
            layers.add(new Layer(floats(tensors.get(i + "/weight")), floats(tensors.get(i + "/bias"))));
        }
    }

    static float[] floats(Tensor tensor) {
        float[] values = new float[tensor.size()];
        tensor.floats().get(values);
        return values;
    }

    /** Returns the parameters, as an agent has them. */
    Parameters parameters() {
        Map<String, Tensor> tensors = new TreeMap<>();
        for (int i = 0; i < layers.size(); i++) {
            Layer layer = layers.get(i);
            tensors.put(i + "/weight", Tensor.of(layer.weight.values(), layer.output.length, layer.numInputs()));
            tensors.put(i + "/bias", Tensor.of(layer.bias.values()));
        }
        return new Parameters(tensors);
    }

    /** Returns the output for an input; it is valid until the next call. */
    float[] forward(float[] input) {
        float[] values = input;
        for (Layer layer : layers) {
            layer.input = values;
            float[] weight = layer.weight.values();
            boolean isLast = layer == layers.get(layers.size() - 1);
            for (int j = 0; j < layer.output.length; j++) {
                float sum = layer.bias.values()[j];
                for (int k = 0; k < values.length; k++) {
                    sum += weight[j * values.length + k] * values[k];
                }
                layer.output[j] = isLast ? sum : (float) Math.tanh(sum);
            }
            values = layer.output;
        }
        return values;
    }

    /** Adds the gradients of the parameters, from the gradient by the last output of {@code forward}. */
    void backward(float... outputGradient) {
        float[] gradient = outputGradient;
        for (int i = layers.size() - 1; i >= 0; i--) {
            Layer layer = layers.get(i);
            float[] before = new float[layer.numInputs()];
            for (int j = 0; j < gradient.length; j++) {
                layer.bias.gradient()[j] += gradient[j];
                for (int k = 0; k < before.length; k++) {
                    layer.weight.gradient()[j * before.length + k] += gradient[j] * layer.input[k];
                    before[k] += gradient[j] * layer.weight.values()[j * before.length + k];
                }
            }
            for (int k = 0; k < before.length; k++) { // the input comes from tanh, whose derivative is 1 - tanh²
                before[k] *= 1 - layer.input[k] * layer.input[k];
            }
            gradient = before;
        }
    }

    /**
     * Makes a step of Adam (https://arxiv.org/abs/1412.6980) with the mean of some gradients, whose norm is limited to
     * 0.5, and sets the gradients to 0.
     */
    void improve(double rate, int count) {
        numUpdates++;
        List<Learned> all = layers.stream().flatMap(layer -> List.of(layer.weight, layer.bias).stream()).toList();
        double squares = 0;
        for (Learned learned : all) {
            for (float gradient : learned.gradient()) {
                squares += (double) gradient * gradient;
            }
        }
        double scale = Math.min(1, 0.5 * count / (Math.sqrt(squares) + 1e-8)) / count;
        double firstRate = rate / (1 - Math.pow(0.9, numUpdates));
        double secondScale = 1 / (1 - Math.pow(0.999, numUpdates));
        for (Learned learned : all) {
            for (int i = 0; i < learned.values().length; i++) {
                float gradient = (float) (scale * learned.gradient()[i]);
                learned.gradient()[i] = 0;
                learned.first()[i] += 0.1f * (gradient - learned.first()[i]);
                learned.second()[i] += 0.001f * (gradient * gradient - learned.second()[i]);
                double root = Math.sqrt(learned.second()[i] * secondScale);
                learned.values()[i] -= (float) (firstRate * learned.first()[i] / (root + 1e-5));
            }
        }
    }
}
