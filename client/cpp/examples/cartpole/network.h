#pragma once

#include <rollserve/agents.h>

#include <cstddef>
#include <random>
#include <vector>

/// The values of a parameter, the sum of their gradients, and Adam's averages.
struct Parameter {
  explicit Parameter(rollserve::Array parameter_values);

  rollserve::Array array;  // the owner of the values
  rollserve::Span<float> values;
  std::vector<float> gradient, first, second;
};

/// A multilayer perceptron with hidden layers of tanh, which handles one input at a time.
class Network {
 public:
  /// Make a network that shares the memory of an agent's parameters.
  explicit Network(const rollserve::Parameters& parameters);
  /// Make a network of some sizes, with weights of variance 1 / inputs.
  Network(const std::vector<std::size_t>& sizes, std::mt19937_64& random);

  /// Return the number of inputs.
  std::size_t num_inputs() const { return layers_.front().num_inputs; }
  /// Return the output for an input; it is valid until the next call.
  const std::vector<float>& forward(const float* input);
  /// Add the gradients of the parameters, from the gradient of the last output of forward().
  void backward(std::vector<float> gradient);
  /// Make a step of Adam (https://arxiv.org/abs/1412.6980) with the mean of `count` gradients, whose norm is limited to
  /// 0.5, and set the gradients to 0.
  void improve(double rate, std::size_t count);

 private:
  struct Layer {
    Layer(rollserve::Array weight_values, rollserve::Array bias_values);

    std::size_t num_inputs;
    Parameter weight;  // (outputs, inputs)
    Parameter bias;    // (outputs)
    const float* input = nullptr;
    std::vector<float> output;
  };

  std::vector<Layer> layers_;
  int num_updates_ = 0;
};
