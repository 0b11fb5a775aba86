#include "records.h"

#include <utility>

#include "failures.h"
#include "tensors.h"
#include "transforms.h"

namespace rollserve {

namespace internal {

namespace {

double seconds_of(const google::protobuf::Duration& duration) {
  return static_cast<double>(duration.seconds()) + 1e-9 * duration.nanos();
}

Summary summary_of(const v1::Summary& message) {
  Summary summary;
  summary.mean = message.mean();
  if (message.has_standard_deviation()) summary.standard_deviation = message.standard_deviation();
  if (message.has_confidence_low()) summary.confidence_low = message.confidence_low();
  if (message.has_confidence_high()) summary.confidence_high = message.confidence_high();
  return summary;
}

WorkerAccount account_of(const v1::WorkerAccount& message) {
  WorkerAccount account;
  account.worker_index = message.worker_index();
  account.num_simulated_steps = message.simulated_step_count();
  account.num_steps = message.step_count();
  account.num_episodes = message.episode_count();
  account.sampling_seconds = seconds_of(message.sampling());
  account.encoding_seconds = seconds_of(message.encoding());
  account.num_missing_steps = message.missing_step_count();
  return account;
}

EpisodeFailure failure_of(const v1::EpisodeFailure& message) {
  EpisodeFailure failure;
  failure.episode_index = message.episode_index();
  failure.worker_index = message.worker_index();
  failure.num_attempts = message.attempt_count();
  failure.skipped = message.skipped();
  failure.text = message.text();
  return failure;
}

Array array_of_space(const char* field, v1::Tensor& tensor) {
  try {
    return array_of(tensor, TensorUse::Other);
  } catch (const Malformed& violation) {
    throw Malformed(std::string(field) + "." + violation.what());
  }
}

BoxSpace space_of(v1::BoxSpace& message) {
  BoxSpace box;
  box.data_type = static_cast<DataType>(message.data_type());
  box.shape.assign(message.shape().begin(), message.shape().end());
  box.low = array_of_space("low", *message.mutable_low());
  box.high = array_of_space("high", *message.mutable_high());
  return box;
}

MultiDiscreteSpace space_of(v1::MultiDiscreteSpace& message) {
  MultiDiscreteSpace space;
  space.data_type = static_cast<DataType>(message.data_type());
  space.nvec = array_of_space("nvec", *message.mutable_nvec());
  space.start = array_of_space("start", *message.mutable_start());
  return space;
}

EnvSpec env_of(const v1::Environment& message) {
  EnvSpec env(message.id(), message.kwargs_json());
  for (const v1::Wrapper& wrapper : message.wrappers()) env.wrappers.push_back({wrapper.name(), wrapper.kwargs_json()});
  if (message.has_task()) env.task = Task{message.task().method(), message.task().argument_json()};
  env.reset_options_json = message.reset_options_json();
  env.vectorization = static_cast<Vectorization>(message.vectorization());
  env.num_rows = message.row_count();
  env.num_episodes_per_row = message.episodes_per_row();
  for (const v1::Transform& transform : message.transforms()) {
    if (auto known = transform_of(transform)) env.transforms.push_back(std::move(*known));
  }
  env.text_info_bytes = message.text_info_bytes();
  env.multi_agent = static_cast<MultiAgentApi>(message.multi_agent());
  env.global_state = message.global_state();
  return env;
}

WorkerStatus worker_of(const v1::Worker& message) {
  WorkerStatus worker;
  worker.worker_index = message.worker_index();
  worker.health = static_cast<WorkerHealth>(message.health());
  worker.num_rows = message.row_count();
  worker.num_simulated_steps = message.simulated_step_count();
  worker.process_id = message.process_id();
  worker.host = message.host();
  worker.num_restarts = message.restart_count();
  worker.last_failure = message.last_failure();
  return worker;
}

Counters counters_of(const v1::Counters& message) {
  Counters counters;
  counters.num_completed_calls = message.completed_call_count();
  counters.num_failed_calls = message.failed_call_count();
  counters.num_cancelled_calls = message.cancelled_call_count();
  counters.num_steps = message.step_count();
  counters.num_episodes = message.episode_count();
  counters.num_simulated_steps = message.simulated_step_count();
  counters.message_bytes = message.message_bytes();
  counters.uptime_seconds = seconds_of(message.uptime());
  counters.num_worker_restarts = message.worker_restart_count();
  counters.num_env_failures = message.environment_failure_count();
  counters.num_retried_episodes = message.retried_episode_count();
  counters.num_failed_episodes = message.failed_episode_count();
  counters.num_straggler_episodes = message.straggler_episode_count();
  counters.num_non_finite_steps = message.non_finite_step_count();
  return counters;
}

}  // namespace

Account account_of(const v1::Account& message) {
  Account account;
  account.num_steps = message.step_count();
  account.num_episodes = message.episode_count();
  account.num_simulated_steps = message.simulated_step_count();
  account.num_carried_steps = message.carried_step_count();
  account.num_kept_steps = message.kept_step_count();
  account.num_superseded_steps = message.superseded_step_count();
  account.num_cancelled_steps = message.cancelled_step_count();
  account.num_lost_steps = message.lost_step_count();
  account.num_idle_steps = message.idle_step_count();
  account.num_prefetched_steps = message.prefetched_step_count();
  account.num_discarded_steps = message.discarded_step_count();
  account.num_discarded_episodes = message.discarded_episode_count();
  account.num_missing_steps = message.missing_step_count();
  account.num_retried_episodes = message.retried_episode_count();
  account.num_straggler_episodes = message.straggler_episode_count();
  account.num_reassigned_episodes = message.reassigned_episode_count();
  account.num_failed_episodes = message.failed_episode_count();
  account.num_broken_off_episodes = message.broken_off_episode_count();
  account.num_non_finite_steps = message.non_finite_step_count();
  account.shared_message_bytes = message.shared_message_bytes();
  account.seed = message.seed();
  account.first_episode_index = message.first_episode_index();
  account.row_step_count = message.row_step_count();
  account.policy_version = message.policy_version();
  account.env_version = message.environment_version();
  account.queued_seconds = seconds_of(message.queued());
  account.waiting_seconds = seconds_of(message.waiting());
  account.sending_seconds = seconds_of(message.sending());
  account.elapsed_seconds = seconds_of(message.elapsed());
  account.dropped_infos.insert(message.dropped_infos().begin(), message.dropped_infos().end());
  account.retry_reasons.insert(message.retry_reasons().begin(), message.retry_reasons().end());
  for (const auto& failure : message.episode_failures()) account.episode_failures.push_back(failure_of(failure));
  for (const auto& worker : message.workers()) account.workers.push_back(account_of(worker));
  return account;
}

Evaluation evaluation_of(const v1::Evaluation& message) {
  Evaluation evaluation;
  evaluation.returns.assign(message.returns().begin(), message.returns().end());
  evaluation.lengths.assign(message.lengths().begin(), message.lengths().end());
  evaluation.terminated.assign(message.terminated().begin(), message.terminated().end());
  evaluation.truncated.assign(message.truncated().begin(), message.truncated().end());
  evaluation.return_summary = summary_of(message.return_summary());
  evaluation.length_summary = summary_of(message.length_summary());
  evaluation.policy_version = message.policy_version();
  evaluation.env_version = message.environment_version();
  evaluation.seed = message.seed();
  evaluation.first_episode_index = message.first_episode_index();
  evaluation.reproducibility = static_cast<Reproducibility>(message.reproducibility());
  evaluation.account = account_of(message.account());
  if (message.has_agent_returns()) evaluation.agent_returns = agent_returns_of(message.agent_returns());
  return evaluation;
}

PopulationEvaluation evaluation_of(const v1::PopulationEvaluation& message) {
  const auto num_returns = std::uint64_t{message.member_count()} * message.episode_count();
  if (static_cast<std::uint64_t>(message.returns_size()) != num_returns) {
    throw Malformed("evaluation.returns", std::to_string(num_returns) + ", one for each episode of each member",
                    std::to_string(message.returns_size()));
  }
  PopulationEvaluation evaluation;
  evaluation.returns.assign(message.returns().begin(), message.returns().end());
  evaluation.lengths.assign(message.lengths().begin(), message.lengths().end());
  evaluation.num_members = message.member_count();
  evaluation.num_episodes = message.episode_count();
  evaluation.num_steps = message.step_count();
  evaluation.policy_version = message.policy_version();
  evaluation.env_version = message.environment_version();
  evaluation.seed = message.seed();
  evaluation.first_episode_index = message.first_episode_index();
  evaluation.reproducibility = static_cast<Reproducibility>(message.reproducibility());
  evaluation.account = account_of(message.account());
  return evaluation;
}

Space space_of(v1::Space& message) {
  switch (message.kind_case()) {
    case v1::Space::kBox:
      return {space_of(*message.mutable_box())};
    case v1::Space::kDiscrete:
      return {DiscreteSpace{message.discrete().n(), message.discrete().start()}};
    case v1::Space::kMultiDiscrete:
      return {space_of(*message.mutable_multi_discrete())};
    case v1::Space::kMultiBinary: {
      const auto& shape = message.multi_binary().shape();
      return {MultiBinarySpace{Shape(shape.begin(), shape.end())}};
    }
    case v1::Space::kDict: {
      DictSpace dict;
      for (v1::NamedSpace& named : *message.mutable_dict()->mutable_spaces()) {
        dict.spaces.push_back({named.name(), space_of(*named.mutable_space())});
      }
      return {std::move(dict)};
    }
    case v1::Space::kTuple: {
      TupleSpace tuple;
      for (v1::Space& space : *message.mutable_tuple()->mutable_spaces()) tuple.spaces.push_back(space_of(space));
      return {std::move(tuple)};
    }
    default:
      throw Malformed("space", "a kind of space that this client knows", "another one");
  }
}

EnvUpdated env_updated_of(v1::UpdateEnvResponse& message) {
  EnvUpdated updated;
  updated.env_version = message.environment_version();
  updated.observation_space = space_of(*message.mutable_observation_space());
  updated.action_space = space_of(*message.mutable_action_space());
  updated.reproducibility = static_cast<Reproducibility>(message.reproducibility());
  updated.num_rows = message.row_count();
  updated.num_episodes_per_row = message.episodes_per_row();
  updated.agents.assign(message.agents().begin(), message.agents().end());
  return updated;
}

Status status_of(v1::GetSamplerResponse& message) {
  Status status;
  status.sampler = message.sampler();
  status.server_version = message.server_version();
  for (const auto& env : message.environments()) status.envs.push_back(env_of(env));
  status.env_version = message.environment_version();
  status.observation_space = space_of(*message.mutable_observation_space());
  status.action_space = space_of(*message.mutable_action_space());
  status.agent_kinds.assign(message.agent_kinds().begin(), message.agent_kinds().end());
  status.policy_version = message.policy_version();
  status.policy_age_seconds = seconds_of(message.policy_age());
  status.reproducibility = static_cast<Reproducibility>(message.reproducibility());
  status.num_episodes_per_row = message.episodes_per_row();
  status.seed = message.seed();
  status.next_episode_index = message.next_episode_index();
  for (const auto& worker : message.workers()) status.workers.push_back(worker_of(worker));
  status.counters = counters_of(message.counters());
  status.min_healthy_workers = message.min_healthy_worker_count();
  status.num_running_calls = message.running_call_count();
  status.num_queued_calls = message.queued_call_count();
  status.agents.assign(message.agents().begin(), message.agents().end());
  status.policies.insert(message.policies().begin(), message.policies().end());
  status.owner = message.owner();
  return status;
}

}  // namespace internal

std::vector<double> PopulationEvaluation::mean_returns() const {
  std::vector<double> means(num_members);
  for (std::size_t i = 0; i < returns.size(); ++i) means[i / num_episodes] += returns[i] / num_episodes;
  return means;
}

std::size_t Status::num_workers() const noexcept {
  std::size_t count = 0;
  for (const WorkerStatus& worker : workers) count += worker.health == WorkerHealth::Leaving ? 0 : 1;
  return count;
}

}  // namespace rollserve
