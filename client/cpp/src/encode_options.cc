#include "encoding.h"
#include "failures.h"
#include "tensors.h"

namespace rollserve::internal {

namespace {

constexpr std::size_t max_agent_bytes = (4u << 20) - (4u << 10);  // what servers accept, less room for other options

/// Return how freely the agent acts; nothing for its own exploration.
std::optional<v1::Exploration> message_of(const Exploration& exploration) {
  v1::Exploration message;
  message.set_deterministic(exploration.deterministic);
  message.mutable_temperatures()->Add(exploration.temperatures.begin(), exploration.temperatures.end());
  message.mutable_noise_scales()->Add(exploration.noise_scales.begin(), exploration.noise_scales.end());
  message.mutable_epsilons()->Add(exploration.epsilons.begin(), exploration.epsilons.end());
  if (message.ByteSizeLong() == 0) return std::nullopt;
  return message;
}

v1::AgentUpdate agent_of_call(const SamplingOptions& options) {
  if (options.policy_version || options.min_policy_version || options.expected_policy_version ||
      options.expected_env_version) {
    raise_invalid("agent", "no version of the policy, and no expected version, beside an agent", "some");
  }
  v1::AgentUpdate update = internal::message_of(*options.agent);
  if (update.ByteSizeLong() > max_agent_bytes) {
    raise_invalid(
        "agent",
        "at most " + std::to_string(max_agent_bytes) + " bytes in a call that samples (call update_agent first)",
        std::to_string(update.ByteSizeLong()));
  }
  return update;
}

}  // namespace

void write_compressions(const std::vector<Compression>& codecs, google::protobuf::RepeatedField<int>& message) {
  for (const Compression codec : codecs) message.Add(static_cast<int>(codec));
}

v1::SamplingOptions message_of(const SamplingOptions& options, const Config& config) {
  v1::SamplingOptions message;
  if (options.agent) *message.mutable_agent_update() = agent_of_call(options);
  if (options.seed) message.set_seed(*options.seed);
  if (options.first_episode_index) message.set_first_episode_index(*options.first_episode_index);
  if (options.max_episode_length) message.set_max_episode_length(*options.max_episode_length);
  if (options.expected_policy_version) message.set_expected_policy_version(*options.expected_policy_version);
  if (options.expected_env_version) message.set_expected_environment_version(*options.expected_env_version);
  if (options.min_policy_version) message.set_min_policy_version(*options.min_policy_version);
  if (options.policy_version) message.set_policy_version(*options.policy_version);
  if (options.env_version) message.set_environment_version(*options.env_version);
  if (options.expected_num_workers) message.set_worker_count(*options.expected_num_workers);
  message.set_max_message_bytes(config.max_message_bytes);
  write_compressions(options.compression.value_or(config.compression), *message.mutable_accept_compression());
  message.set_accept_frame_stacks(options.frames_once);
  message.set_accept_joined(true);
  message.set_prefetch(options.prefetch);
  message.set_return_states(options.return_states);
  message.set_return_last_values(options.return_last_values);
  message.set_return_last_states(options.return_last_states);
  message.set_return_returns_before(true);  // 8 bytes for each segment that begins within its episode, else none
  message.set_blackhole(options.blackhole);
  message.set_skip_failed_episodes(options.skip_failed_episodes);
  for (const std::string& policy : options.deliver) message.add_deliver_policies(policy);
  message.set_count_agent_steps(options.count_agent_steps);
  if (auto exploration = message_of(options.exploration)) *message.mutable_exploration() = std::move(*exploration);
  return message;
}

v1::DriveSpec message_of(const DriveOptions& options, const Config& config) {
  SamplingOptions sampling;
  sampling.seed = options.seed;
  sampling.max_episode_length = options.max_episode_length;
  sampling.env_version = options.env_version;
  sampling.blackhole = !options.record;
  v1::DriveSpec message;
  message.set_sampler(config.sampler);
  *message.mutable_options() = message_of(sampling, config);
  message.mutable_options()->set_return_spaces(true);
  message.mutable_options()->set_accept_joined(false);
  message.set_fragment_length(options.fragment_length);
  Columns without_rows;
  for (const auto& [name, example] : options.agent_infos) {
    Shape shape = example.shape();
    shape.insert(shape.begin(), 0);
    without_rows.set(name, Array::zeros(example.data_type(), std::move(shape)));
  }
  write_named("agent_infos", without_rows, *message.mutable_agent_infos());
  message.set_return_infos(options.infos);
  message.set_min_ready_row_count(options.min_ready);
  message.set_lease_seconds(std::chrono::duration<double>(options.lease).count());
  return message;
}

v1::EvaluationOptions message_of(const EvaluationOptions& options) {
  v1::EvaluationOptions message;
  if (options.policy_version) message.set_policy_version(*options.policy_version);
  if (options.expected_policy_version) message.set_expected_policy_version(*options.expected_policy_version);
  if (options.expected_env_version) message.set_expected_environment_version(*options.expected_env_version);
  if (options.min_policy_version) message.set_min_policy_version(*options.min_policy_version);
  if (options.env) *message.mutable_environment() = message_of(*options.env);
  if (options.env_version) message.set_environment_version(*options.env_version);
  if (options.seed) message.set_seed(*options.seed);
  message.set_first_episode_index(options.first_episode_index);
  if (options.max_episode_length) message.set_max_episode_length(*options.max_episode_length);
  message.set_skip_failed_episodes(options.skip_failed_episodes);
  for (const PolicyMap& policy_map : options.policy_maps) *message.add_policy_maps() = message_of(policy_map);
  if (auto exploration = message_of(options.exploration)) *message.mutable_exploration() = std::move(*exploration);
  return message;
}

}  // namespace rollserve::internal
