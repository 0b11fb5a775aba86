#include "arguments.h"

#include <openssl/evp.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>

#include "policies.h"
#include "transforms.h"

namespace conformance {

namespace {

using rollserve::Array;
using rollserve::DataType;

/// Return the value of a name.
template <class T>
T named(const std::map<std::string, T>& values, const std::string& name) {
  const auto found = values.find(name);
  if (found == values.end()) throw Unsupported("no '" + name + "'");
  return found->second;
}

std::string decoded(const std::string& base64) {
  std::string bytes(base64.size() / 4 * 3, '\0');
  const auto* from = reinterpret_cast<const unsigned char*>(base64.data());
  const int size =
      EVP_DecodeBlock(reinterpret_cast<unsigned char*>(bytes.data()), from, static_cast<int>(base64.size()));
  if (static_cast<std::size_t>(size) != bytes.size()) throw std::invalid_argument("expected base64, got another text");
  bytes.resize(bytes.size() - static_cast<std::size_t>(std::count(base64.begin(), base64.end(), '=')));
  return bytes;
}

DataType data_type_of(const std::string& name) {
  for (int number = 1; number <= 12; ++number) {
    if (rollserve::name_of(DataType(number)) == name) return DataType(number);
  }
  throw Unsupported("no type '" + name + "'");
}

Array array_of(const Json& json) {
  const std::string bytes = decoded(json.at("base64"));
  Array array = Array::zeros(data_type_of(json.at("dtype")), json.at("shape").get<rollserve::Shape>());
  const auto to = array.mutable_bytes();
  if (to.size() != bytes.size()) throw std::invalid_argument("expected bytes for " + array.text());
  if (!bytes.empty()) std::memcpy(to.data(), bytes.data(), bytes.size());
  return array;
}

}  // namespace

rollserve::Columns columns_of(const Json& json) {
  rollserve::Columns columns;
  for (const auto& [name, array] : json.items()) columns.set(name, array_of(array));
  return columns;
}

namespace {

/// Take the source of an action mask.
void take_mask(Fields& agent, rollserve::ActionMask& mask) {
  if (!agent.has("action_mask")) return;
  Fields fields(agent.take("action_mask"));
  if (fields.has("info")) {
    mask = rollserve::InfoMask{fields.take("info")};
  } else {
    mask = rollserve::ObservationMask{fields.take("observation")};
  }
  fields.finish();
}

rollserve::MlpAgent mlp_of(Fields fields) {
  using rollserve::Activation;
  using rollserve::Head;
  rollserve::MlpAgent agent;
  agent.parameters = columns_of(fields.take("parameters"));
  agent.head = named<Head>({{"categorical", Head::Categorical},
                            {"diagonal_gaussian", Head::DiagonalGaussian},
                            {"multi_categorical", Head::MultiCategorical}},
                           fields.take("head"));
  agent.activation = named<Activation>({{"tanh", Activation::Tanh},
                                        {"relu", Activation::Relu},
                                        {"elu", Activation::Elu},
                                        {"gelu", Activation::Gelu},
                                        {"gelu_tanh", Activation::GeluTanh},
                                        {"silu", Activation::Silu}},
                                       fields.take("activation"));
  fields.take("layer_sizes");  // the client reads them off the parameters
  fields.read("normalization_epsilon", agent.normalization_epsilon);
  fields.read("normalization_clip", agent.normalization_clip);
  take_mask(fields, agent.action_mask);
  fields.finish();
  return agent;
}

rollserve::OnnxAgent onnx_of(Fields fields) {
  using rollserve::OnnxHead;
  rollserve::OnnxAgent agent;
  agent.model = decoded(fields.take("model"));
  agent.head = named<OnnxHead>({{"categorical", OnnxHead::Categorical},
                                {"diagonal_gaussian", OnnxHead::DiagonalGaussian},
                                {"squashed_gaussian", OnnxHead::SquashedGaussian},
                                {"actions", OnnxHead::Actions}},
                               fields.take("head"));
  fields.read("inputs", agent.inputs);
  fields.read("outputs", agent.outputs);
  fields.read("infos", agent.infos);
  take_mask(fields, agent.action_mask);
  fields.finish();
  return agent;
}

rollserve::PolicyUpdate agent_of(Fields fields) {
  const std::string kind = fields.take("kind");
  if (kind == "mlp") return mlp_of(std::move(fields));
  if (kind == "onnx") return onnx_of(std::move(fields));
  if (kind == "python") {
    rollserve::PythonAgent agent;
    fields.read("name", agent.name);
    fields.read_text("kwargs", agent.kwargs_json);
    agent.parameters = columns_of(fields.take_object("parameters"));
    take_mask(fields, agent.action_mask);
    fields.finish();
    return agent;
  }
  if (kind == "constant") {
    rollserve::ConstantAgent agent{columns_of(fields.take("action"))};
    take_mask(fields, agent.action_mask);
    fields.finish();
    return agent;
  }
  if (kind == "random") {
    rollserve::RandomAgent agent;
    take_mask(fields, agent.action_mask);
    fields.finish();
    return agent;
  }
  throw Unsupported("no agent of kind '" + kind + "'");
}

/// Take the options that calls that sample and evaluations have in common.
template <class Options>
void take_common(Fields& from, Options& to) {
  if (from.has("seed")) to.seed = std::stoull(from.take("seed").get<std::string>());
  from.read("first_episode_index", to.first_episode_index);
  from.read("max_episode_length", to.max_episode_length);
  from.read("policy_version", to.policy_version);
  from.read("min_policy_version", to.min_policy_version);
  from.read("environment_version", to.env_version);
  from.read("skip_failed_episodes", to.skip_failed_episodes);
  from.read("deterministic", to.exploration.deterministic);
  from.read("temperatures", to.exploration.temperatures);
  from.read("noise_scales", to.exploration.noise_scales);
  from.read("epsilons", to.exploration.epsilons);
}

}  // namespace

rollserve::Config config_of(Fields connect) {
  using rollserve::Compression;
  rollserve::Config config;
  if (connect.has("timeout_seconds")) {
    config.timeout = std::chrono::milliseconds(std::llround(1000 * connect.take("timeout_seconds").get<double>()));
  }
  connect.read("ca", config.ca);
  connect.read("token", config.token);
  connect.read("max_message_bytes", config.max_message_bytes);
  for (const std::string name : connect.take_object("compression")) {
    config.compression.push_back(named<Compression>({{"lz4", Compression::Lz4}, {"zstd", Compression::Zstd}}, name));
  }
  connect.finish();
  return config;
}

rollserve::EnvUpdate take_env(Fields& operation) {
  using rollserve::Vectorization;
  if (!operation.has("id")) {
    rollserve::EnvChange change;
    operation.read_text("kwargs", change.kwargs_json);
    return change;
  }
  rollserve::EnvSpec env;
  operation.read("id", env.id);
  operation.read_text("kwargs", env.kwargs_json);
  for (Json& wrapper : operation.take_object("wrappers")) {
    Fields fields(std::move(wrapper));
    rollserve::Wrapper& added = env.wrappers.emplace_back();
    fields.read("name", added.name);
    fields.read_text("kwargs", added.kwargs_json);
    fields.finish();
  }
  if (operation.has("task")) {
    Fields fields(operation.take("task"));
    env.task.emplace();
    fields.read("method", env.task->method);
    fields.read_text("argument", env.task->argument_json);
    fields.finish();
  }
  operation.read_text("reset_options", env.reset_options_json);
  if (operation.has("vectorization")) {
    env.vectorization = named<Vectorization>({{"rows", Vectorization::Rows}, {"native", Vectorization::Native}},
                                             operation.take("vectorization"));
  }
  operation.read("num_rows", env.num_rows);
  if (operation.has("multi_agent")) {
    using rollserve::MultiAgentApi;
    env.multi_agent = named<MultiAgentApi>({{"parallel", MultiAgentApi::Parallel}, {"aec", MultiAgentApi::Aec}},
                                           operation.take("multi_agent"));
  }
  operation.read("global_state", env.global_state);
  for (Json& transform : operation.take_object("transforms")) {
    env.transforms.push_back(transform_of(Fields(std::move(transform))));
  }
  return env;
}

rollserve::AgentUpdate take_agent(Fields& from) {
  if (from.has("policies")) return take_policies(from);
  return std::visit([](auto content) -> rollserve::AgentUpdate { return content; }, take_policy(from));
}

rollserve::PolicyUpdate take_policy(Fields& from) {
  if (from.has("agent")) return agent_of(Fields(from.take("agent")));
  if (from.has("change")) return agent_change_of(Fields(from.take("change")));
  return columns_of(from.take("parameters"));
}

rollserve::AgentChange agent_change_of(Fields change) {
  rollserve::AgentChange agent;
  change.read_text("kwargs", agent.kwargs_json);
  agent.parameters = columns_of(change.take_object("parameters"));
  change.finish();
  return agent;
}

rollserve::SamplingOptions sampling_options_of(Fields options) {
  rollserve::SamplingOptions sampling;
  take_common(options, sampling);
  options.read("expected_num_workers", sampling.expected_num_workers);
  options.read("return_states", sampling.return_states);
  options.read("return_last_values", sampling.return_last_values);
  options.read("return_last_states", sampling.return_last_states);
  if (options.has("return_returns_before")) options.take("return_returns_before");  // which the client always asks for
  options.read("prefetch", sampling.prefetch);
  if (options.has("plain_frames")) sampling.frames_once = !options.take("plain_frames").get<bool>();
  options.read("deliver", sampling.deliver);
  if (options.has("count")) sampling.count_agent_steps = options.take("count") == "agent_steps";
  for (const char* update : {"agent", "parameters", "change", "policies"}) {
    if (options.has(update)) sampling.agent = take_agent(options);
  }
  options.finish();
  return sampling;
}

rollserve::DriveOptions take_drive_options(Fields& operation) {
  const auto sampling = sampling_options_of(Fields(operation.take_object("options")));
  rollserve::DriveOptions options;
  options.seed = sampling.seed;
  options.max_episode_length = sampling.max_episode_length;
  options.env_version = sampling.env_version;
  options.agent_infos = columns_of(operation.take_object("agent_infos"));
  operation.read("fragment_length", options.fragment_length);
  operation.read("infos", options.infos);
  operation.read("record", options.record);
  operation.read("min_ready", options.min_ready);
  double lease_seconds = 0;
  operation.read("lease_seconds", lease_seconds);
  options.lease = std::chrono::milliseconds(std::llround(1000 * lease_seconds));
  return options;
}

rollserve::EvaluationOptions evaluation_options_of(Fields options) {
  rollserve::EvaluationOptions evaluation;
  take_common(options, evaluation);
  options.finish();
  return evaluation;
}

}  // namespace conformance
