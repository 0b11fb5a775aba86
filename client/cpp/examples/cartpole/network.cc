#include "network.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

using rollserve::Array;

Parameter::Parameter(Array parameter_values)
    : array(std::move(parameter_values)),
      values(array.mutable_values<float>()),
      gradient(values.size()),
      first(values.size()),
      second(values.size()) {}

Network::Layer::Layer(Array weight_values, Array bias_values)
    : num_inputs(weight_values.row_size()),
      weight(std::move(weight_values)),
      bias(std::move(bias_values)),
      output(bias.values.size()) {}

Network::Network(const rollserve::Parameters& parameters) {
  for (int i = 0; parameters.contains(std::to_string(i) + "/weight"); ++i) {
    layers_.emplace_back(parameters.at(std::to_string(i) + "/weight"), parameters.at(std::to_string(i) + "/bias"));
  }
}

Network::Network(const std::vector<std::size_t>& sizes, std::mt19937_64& random) {
  for (std::size_t i = 1; i < sizes.size(); ++i) {
    std::normal_distribution<float> normal(0, 1 / std::sqrt(static_cast<float>(sizes[i - 1])));
    std::vector<float> weight(sizes[i] * sizes[i - 1]);
    std::generate(weight.begin(), weight.end(), [&] { return normal(random); });
    const rollserve::Shape shape = {static_cast<std::int64_t>(sizes[i]), static_cast<std::int64_t>(sizes[i - 1])};
    layers_.emplace_back(Array(std::move(weight), shape), Array(std::vector<float>(sizes[i])));
  }
}

const std::vector<float>& Network::forward(const float* input) {
  for (Layer& layer : layers_) {
    layer.input = input;
    const float* weight = layer.weight.values.data();
    for (std::size_t j = 0; j < layer.output.size(); ++j, weight += layer.num_inputs) {
      float sum = layer.bias.values[j];
      for (std::size_t k = 0; k < layer.num_inputs; ++k) sum += weight[k] * input[k];
      layer.output[j] = &layer == &layers_.back() ? sum : std::tanh(sum);
    }
    input = layer.output.data();
  }
  return layers_.back().output;
}

void Network::backward(std::vector<float> gradient) {
  for (auto layer = layers_.rbegin(); layer != layers_.rend(); ++layer) {
    std::vector<float> before(layer->num_inputs);
    for (std::size_t j = 0; j < gradient.size(); ++j) {
      layer->bias.gradient[j] += gradient[j];
      const float* weight = layer->weight.values.data() + j * layer->num_inputs;
      float* sums = layer->weight.gradient.data() + j * layer->num_inputs;
      for (std::size_t k = 0; k < layer->num_inputs; ++k) {
        sums[k] += gradient[j] * layer->input[k];
        before[k] += gradient[j] * weight[k];
      }
    }
    // The input is the output of the layer before, by tanh, whose derivative is 1 - tanh².
    for (std::size_t k = 0; k < before.size(); ++k) before[k] *= 1 - layer->input[k] * layer->input[k];
    gradient = std::move(before);
  }
}

void Network::improve(double rate, std::size_t count) {
  ++num_updates_;
  double squares = 0;
  for (const Layer& layer : layers_) {
    for (const Parameter* parameter : {&layer.weight, &layer.bias}) {
      for (const float g : parameter->gradient) squares += static_cast<double>(g) * g;
    }
  }
  const auto number = static_cast<double>(count);
  const double scale = std::min(1.0, 0.5 * number / (std::sqrt(squares) + 1e-8)) / number;
  const double first_rate = rate / (1 - std::pow(0.9, num_updates_));
  const double second_scale = 1 / (1 - std::pow(0.999, num_updates_));
  for (Layer& layer : layers_) {
    for (Parameter* p : {&layer.weight, &layer.bias}) {
      for (std::size_t i = 0; i < p->gradient.size(); ++i) {
        const float gradient = static_cast<float>(scale) * std::exchange(p->gradient[i], 0.0f);
        p->first[i] += 0.1f * (gradient - p->first[i]);
        p->second[i] += 0.001f * (gradient * gradient - p->second[i]);
        const double root = std::sqrt(p->second[i] * second_scale);
        p->values[i] -= static_cast<float>(first_rate * p->first[i] / (root + 1e-5));
      }
    }
  }
}
