#include <cmath>
#include <random>

#include "encoding.h"
#include "failures.h"
#include "infos.h"
#include "tensors.h"

namespace rollserve {

using internal::raise_invalid;

namespace internal {

namespace {

bool is_gaussian(Head head) { return head == Head::DiagonalGaussian || head == Head::SquashedGaussian; }

template <class Gaussian>
void write_gaussian(const MlpAgent& agent, Gaussian& head) {
  head.set_predicted_log_std(!agent.parameters.contains("log_std"));
  if (agent.min_log_std) head.set_min_log_std(*agent.min_log_std);
  if (agent.max_log_std) head.set_max_log_std(*agent.max_log_std);
}

void write_head(const MlpAgent& agent, v1::MlpAgent& mlp) {
  if (!is_gaussian(agent.head) && (agent.min_log_std || agent.max_log_std)) {
    raise_invalid(agent.min_log_std ? "min_log_std" : "max_log_std", "a Gaussian head beside it", "another one");
  }
  if (agent.head != Head::EpsilonGreedy && agent.epsilon) {
    raise_invalid("epsilon", "the head EpsilonGreedy beside it", "another one");
  }
  if (agent.head != Head::Boltzmann && agent.temperature) {
    raise_invalid("temperature", "the head Boltzmann beside it", "another one");
  }
  switch (agent.head) {
    case Head::Categorical:
      mlp.mutable_categorical();
      return;
    case Head::DiagonalGaussian:
      return write_gaussian(agent, *mlp.mutable_diagonal_gaussian());
    case Head::SquashedGaussian:
      return write_gaussian(agent, *mlp.mutable_squashed_gaussian());
    case Head::MultiCategorical:
      mlp.mutable_multi_categorical();
      return;
    case Head::Bernoulli:
      mlp.mutable_bernoulli();
      return;
    case Head::EpsilonGreedy:
      mlp.mutable_epsilon_greedy()->set_epsilon(agent.epsilon.value_or(0));
      return;
    case Head::Boltzmann:
      mlp.mutable_boltzmann();
      if (agent.temperature) mlp.mutable_boltzmann()->set_temperature(*agent.temperature);
      return;
  }
  raise_invalid("head", "a member of Head", std::to_string(static_cast<int>(agent.head)));
}

struct Matrix {
  std::int64_t outputs;
  std::int64_t inputs;
};

Matrix matrix_of(const Parameters& parameters, const std::string& name) {
  const Array* array = parameters.find(name);
  if (array == nullptr) raise_invalid("parameters", "a parameter '" + name + "'", "none of that name");
  if (array->shape().size() != 2) raise_invalid("parameters['" + name + "']", "two axes", array->text());
  return {array->shape()[0], array->shape()[1]};
}

/// Return the weights of consecutive layers, from 0 on.
std::vector<Matrix> layers_of(const Parameters& parameters, const std::string& prefix) {
  std::vector<Matrix> layers;
  while (true) {
    const std::string name = prefix + std::to_string(layers.size()) + "/weight";
    if (!parameters.contains(name)) return layers;
    layers.push_back(matrix_of(parameters, name));
  }
}

bool has_prefix(const std::string& text, const std::string& prefix) { return text.rfind(prefix, 0) == 0; }

bool has_suffix(const std::string& text, const std::string& suffix) {
  return text.size() >= suffix.size() && text.compare(text.size() - suffix.size(), suffix.size(), suffix) == 0;
}

template <class Predicate>
bool any_name(const Parameters& parameters, Predicate predicate) {
  for (const auto& entry : parameters) {
    if (predicate(entry.first)) return true;
  }
  return false;
}

/// Write the recurrent core, whose kind follows from the shape of `core/weight_hh`.
void write_core(const MlpAgent& agent, v1::MlpAgent& mlp) {
  if (!any_name(agent.parameters, [](const auto& name) { return has_prefix(name, "core/"); })) return;
  const auto [outputs, size] = matrix_of(agent.parameters, "core/weight_hh");
  if (outputs == 3 * size) {
    mlp.mutable_gru()->set_size(static_cast<std::uint32_t>(size));
  } else if (outputs == 4 * size) {
    mlp.mutable_lstm()->set_size(static_cast<std::uint32_t>(size));
  } else {
    raise_invalid("parameters['core/weight_hh']", "shape (3 H, H) of a GRU or (4 H, H) of an LSTM",
                  text_of({outputs, size}));
  }
}

void write_layers(const MlpAgent& agent, v1::MlpAgent& mlp) {
  const auto layers = layers_of(agent.parameters, "");
  if (layers.empty()) raise_invalid("parameters", "a parameter '0/weight'", "none of that name");
  const bool is_behind_core = layers.size() == 1 && mlp.core_case() != v1::MlpAgent::CORE_NOT_SET;
  const auto inputs = is_behind_core ? matrix_of(agent.parameters, "core/weight_ih").inputs : layers[0].inputs;
  mlp.add_layer_sizes(static_cast<std::uint32_t>(inputs));
  for (const Matrix& layer : layers) mlp.add_layer_sizes(static_cast<std::uint32_t>(layer.outputs));
  const auto value_layers = layers_of(agent.parameters, "value/");
  if (!value_layers.empty()) {
    auto& value = *mlp.mutable_separate_value();
    for (std::size_t i = 0; i + 1 < value_layers.size(); ++i) {
      value.add_hidden_sizes(static_cast<std::uint32_t>(value_layers[i].outputs));
    }
  } else if (agent.parameters.contains("value/weight")) {
    mlp.mutable_shared_value();
  }
}

/// Write the moments that observations are normalized by, if the parameters have them.
void write_normalization(const MlpAgent& agent, v1::MlpAgent& mlp) {
  if (!agent.parameters.contains("observation/mean")) {
    if (!agent.normalization_epsilon && !agent.normalization_clip) return;
    raise_invalid(agent.normalization_epsilon ? "normalization_epsilon" : "normalization_clip",
                  "a parameter 'observation/mean' beside it", "none of that name");
  }
  auto& normalization = *mlp.mutable_normalization();
  if (agent.normalization_epsilon) normalization.set_epsilon(*agent.normalization_epsilon);
  if (agent.normalization_clip) normalization.set_clip(*agent.normalization_clip);
}

/// Write the action mask of a message that can have one, if the agent has one.
template <class Message>
void write_mask(const ActionMask& mask, Message& message) {
  if (const auto* info = std::get_if<InfoMask>(&mask)) message.mutable_action_mask()->set_info(info->info);
  if (const auto* leaf = std::get_if<ObservationMask>(&mask)) {
    message.mutable_action_mask()->set_observation(leaf->leaf);
  }
}

void write_agent(const RandomAgent& agent, v1::Agent& message) {
  write_mask(agent.action_mask, *message.mutable_random());
}

void write_agent(const ConstantAgent& agent, v1::Agent& message) {
  v1::ConstantAgent& constant = *message.mutable_constant();
  write_named("action", agent.action, *constant.mutable_action());
  write_mask(agent.action_mask, constant);
}

void write_agent(const MlpAgent& agent, v1::Agent& message) { *message.mutable_mlp() = message_of(agent); }

void write_agent(const OnnxAgent& agent, v1::Agent& message) {
  v1::OnnxAgent& onnx = *message.mutable_onnx();
  onnx.set_model(agent.model);
  onnx.mutable_inputs()->insert(agent.inputs.begin(), agent.inputs.end());
  onnx.mutable_outputs()->insert(agent.outputs.begin(), agent.outputs.end());
  for (const std::string& info : agent.infos) onnx.add_infos(info);
  write_mask(agent.action_mask, onnx);
  switch (agent.head) {
    case OnnxHead::Categorical:
      onnx.mutable_categorical();
      return;
    case OnnxHead::DiagonalGaussian:
      onnx.mutable_diagonal_gaussian();
      return;
    case OnnxHead::SquashedGaussian:
      onnx.mutable_squashed_gaussian();
      return;
    case OnnxHead::Actions:
      onnx.mutable_actions();
      return;
  }
  raise_invalid("head", "a member of OnnxHead", std::to_string(static_cast<int>(agent.head)));
}

void write_agent(const PythonAgent& agent, v1::Agent& message) {
  v1::PythonAgent& python = *message.mutable_python();
  python.set_name(agent.name);
  python.set_kwargs_json(agent.kwargs_json);
  write_named("parameters", agent.parameters, *python.mutable_parameters()->mutable_tensors());
  write_mask(agent.action_mask, python);
}

template <class Agent>
void write_update(const Agent& agent, v1::AgentUpdate& message) {
  write_agent(agent, *message.mutable_agent());
}

void write_update(const Parameters& parameters, v1::AgentUpdate& message) {
  write_named("parameters", parameters, *message.mutable_parameters()->mutable_tensors());
}

void write_update(const AgentChange& change, v1::AgentUpdate& message) {
  v1::AgentChange& written = *message.mutable_change();
  written.set_kwargs_json(change.kwargs_json);
  if (change.parameters.empty()) return;
  write_named("parameters", change.parameters, *written.mutable_parameters()->mutable_tensors());
}

void write_update(const Policies& policies, v1::AgentUpdate& message) {
  v1::PolicyUpdates& written = *message.mutable_policies();
  for (const auto& [name, update] : policies.updates) {
    v1::AgentUpdate& policy = (*written.mutable_policies())[name];
    std::visit([&policy](const auto& content) { write_update(content, policy); }, update);
  }
  if (policies.policy_map) *written.mutable_policy_map() = message_of(*policies.policy_map);
}

void write_agents(const AgentNamed& agent, v1::PolicyRule& rule) { rule.set_name(agent.name); }
void write_agents(const AgentsWithPrefix& agents, v1::PolicyRule& rule) { rule.set_prefix(agents.prefix); }
void write_agents(const AgentAt& agent, v1::PolicyRule& rule) { rule.set_position(agent.position); }

}  // namespace

v1::PolicyMap message_of(const PolicyMap& policy_map) {
  v1::PolicyMap message;
  for (const PolicyRule& rule : policy_map) {
    v1::PolicyRule& written = *message.add_rules();
    std::visit([&](const auto& agents) { write_agents(agents, written); }, rule.agents);
    for (const PolicyChoice& choice : rule.choices) {
      v1::PolicyChoice& added = *written.add_choices();
      added.set_policy(choice.policy);
      added.set_version(choice.version);
      added.set_weight(choice.weight);
    }
  }
  return message;
}

v1::MlpAgent message_of(const MlpAgent& agent) {
  v1::MlpAgent mlp;
  mlp.set_activation(static_cast<v1::Activation>(agent.activation));
  write_head(agent, mlp);
  write_core(agent, mlp);
  write_layers(agent, mlp);
  if (any_name(agent.parameters, [](const auto& name) { return has_suffix(name, "/norm/weight"); })) {
    mlp.mutable_layer_norm();
    if (agent.layer_norm_epsilon) mlp.mutable_layer_norm()->set_epsilon(*agent.layer_norm_epsilon);
  }
  write_normalization(agent, mlp);
  write_mask(agent.action_mask, mlp);
  write_named("parameters", agent.parameters, *mlp.mutable_parameters()->mutable_tensors());
  return mlp;
}

v1::AgentUpdate message_of(const AgentUpdate& update) {
  v1::AgentUpdate message;
  std::visit([&](const auto& content) { write_update(content, message); }, update);
  return message;
}

}  // namespace internal

namespace {

std::int64_t product(const Shape& shape) {
  std::int64_t size = 1;
  for (const std::int64_t length : shape) size *= length;
  return size;
}

/// Return the usual head for an action space.
Head head_for(const Space& actions) {
  if (std::holds_alternative<DiscreteSpace>(actions.kind)) return Head::Categorical;
  if (std::holds_alternative<MultiDiscreteSpace>(actions.kind)) return Head::MultiCategorical;
  if (std::holds_alternative<MultiBinarySpace>(actions.kind)) return Head::Bernoulli;
  if (const auto* box = std::get_if<BoxSpace>(&actions.kind)) {
    const DataType type = box->data_type;
    if (type == DataType::Float16 || type == DataType::Float32 || type == DataType::Float64) {
      return Head::DiagonalGaussian;
    }
  }
  raise_invalid("actions", "a Discrete, MultiDiscrete or MultiBinary space, or a Box of floats", "another space");
}

}  // namespace

std::int64_t Space::flat_size() const {
  if (const auto* box = std::get_if<BoxSpace>(&kind)) return product(box->shape);
  if (const auto* discrete = std::get_if<DiscreteSpace>(&kind)) return discrete->n;
  if (const auto* binary = std::get_if<MultiBinarySpace>(&kind)) return product(binary->shape);
  std::int64_t size = 0;
  if (const auto* multi = std::get_if<MultiDiscreteSpace>(&kind)) {
    for (const std::int64_t n : internal::integers_of(multi->nvec)) size += n;
  } else if (const auto* dict = std::get_if<DictSpace>(&kind)) {
    for (const NamedSpace& named : dict->spaces) size += named.space.flat_size();
  } else if (const auto* tuple = std::get_if<TupleSpace>(&kind)) {
    for (const Space& space : tuple->spaces) size += space.flat_size();
  }
  return size;
}

MlpAgent MlpAgent::initial(const Space& observations, const Space& actions,
                           const std::vector<std::int64_t>& hidden_sizes, std::uint64_t seed) {
  MlpAgent agent;
  agent.head = head_for(actions);
  std::vector<std::int64_t> sizes = hidden_sizes;
  sizes.push_back(actions.flat_size());
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  std::int64_t inputs = observations.flat_size();
  for (std::size_t layer = 0; layer < sizes.size(); ++layer) {
    const std::int64_t outputs = sizes[layer];
    if (outputs < 1) {
      raise_invalid("hidden_sizes[" + std::to_string(layer) + "]", "at least 1", std::to_string(outputs));
    }
    const bool is_last = layer + 1 == sizes.size();
    const double scale = (is_last ? 0.01 : 1.0) / std::sqrt(static_cast<double>(inputs));
    std::vector<float> weight(static_cast<std::size_t>(outputs * inputs));
    for (float& value : weight) value = static_cast<float>(scale * normal(random));
    const std::string prefix = std::to_string(layer) + "/";
    agent.parameters.set(prefix + "weight", Array(std::move(weight), {outputs, inputs}));
    agent.parameters.set(prefix + "bias", Array::zeros(DataType::Float32, {outputs}));
    inputs = outputs;
  }
  if (agent.head == Head::DiagonalGaussian) {
    agent.parameters.set("log_std", Array::zeros(DataType::Float32, {inputs}));
  }
  return agent;
}

}  // namespace rollserve
