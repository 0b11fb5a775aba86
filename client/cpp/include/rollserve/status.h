#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "rollserve/environments.h"

/// @file
/// The state of a sampler and of its workers.

namespace rollserve {

/// Whether a worker accepts work; the numbers are those of the wire.
enum class WorkerHealth : int {
  Unspecified = 0,  ///< Not known to this client.
  Healthy = 1,      ///< The worker accepts work.
  Lost = 2,         ///< The worker is being replaced.
  Failed = 3,       ///< The worker was lost too often, and is given up until an hour is over.
  Leaving = 4,      ///< The worker was removed, and ends after the last call that started with it.
};

/// The state of a worker.
struct WorkerStatus {
  std::uint32_t worker_index = 0;                   ///< The worker's index, from 0.
  WorkerHealth health = WorkerHealth::Unspecified;  ///< Whether the worker accepts work.
  std::uint32_t num_rows = 0;                       ///< The number of environments that the worker steps at once.
  std::uint64_t num_simulated_steps = 0;            ///< The steps that the worker has simulated.
  std::uint32_t process_id = 0;                     ///< The process id; 0 for clients on another machine.
  std::string host;                                 ///< The machine; empty for clients on another machine.
  std::uint64_t num_restarts = 0;                   ///< The number of restarts and attempted restarts.
  std::string last_failure;                         ///< Why the worker was lost last; empty if it never was.
};

/// What a sampler has done since its start.
struct Counters {
  std::uint64_t num_completed_calls = 0;     ///< Sampling calls that completed.
  std::uint64_t num_failed_calls = 0;        ///< Sampling calls that ended with an error.
  std::uint64_t num_cancelled_calls = 0;     ///< Sampling calls that client, deadline or the server's stop ended.
  std::uint64_t num_steps = 0;               ///< Delivered steps.
  std::uint64_t num_episodes = 0;            ///< Delivered episodes.
  std::uint64_t num_simulated_steps = 0;     ///< Simulated steps.
  std::uint64_t message_bytes = 0;           ///< Bytes of delivered messages.
  double uptime_seconds = 0;                 ///< The age of the sampler.
  std::uint64_t num_worker_restarts = 0;     ///< Restarts of workers.
  std::uint64_t num_env_failures = 0;        ///< Errors that environments raised in episodes.
  std::uint64_t num_retried_episodes = 0;    ///< Episodes that ran again because something had failed.
  std::uint64_t num_failed_episodes = 0;     ///< Episodes that were skipped.
  std::uint64_t num_straggler_episodes = 0;  ///< Episodes that were started a second time because they took long.
  std::uint64_t num_non_finite_steps = 0;    ///< Delivered steps with a NaN or an infinity.
};

/// The state of a sampler.
struct Status {
  std::string sampler;                   ///< The sampler's name.
  std::string server_version;            ///< The version of the server's software.
  std::vector<EnvSpec> envs;             ///< One environment for all workers, one for each, or one for each row.
  std::int64_t env_version = 0;          ///< The version of the environments; 1 for the first.
  Space observation_space;               ///< The space of observations.
  Space action_space;                    ///< The space of actions.
  std::vector<std::string> agent_kinds;  ///< The kind of each worker's agent, or one for all; empty without one.
  std::int64_t policy_version = 0;       ///< The version of the policy; 0 before the first one.
  double policy_age_seconds = 0;         ///< How long ago the policy was set.
  Reproducibility reproducibility = Reproducibility::Unspecified;  ///< The class of the environments' episodes.
  std::uint32_t num_episodes_per_row = 0;  ///< The number of episodes of each row in a block; 0 unless class Block.
  std::uint64_t seed = 0;                  ///< The root seed of the sampler's own sequence.
  std::uint64_t next_episode_index = 0;    ///< The index in it of the episode that the next call starts with.
  std::vector<WorkerStatus> workers;       ///< The workers, in the order of their indices; behind them leaving ones.
  Counters counters;                       ///< Counters since the sampler's start.
  std::uint32_t min_healthy_workers = 0;   ///< The number of healthy workers that a call needs to start.
  std::uint32_t num_running_calls = 0;     ///< The sampling calls and evaluations that run.
  std::uint32_t num_queued_calls = 0;      ///< The sampling calls and evaluations that queue or are paused.
  std::vector<std::string> agents;         ///< The possible agents of an environment with many; empty for one agent.
  /// The current version of each policy by its name, where the agent is policies by name.
  std::map<std::string, std::int64_t> policies;
  std::string owner;  ///< The principal that created the sampler; empty for the default one.

  /// Return the number of workers for calls that begin now.
  std::size_t num_workers() const noexcept;
};

}  // namespace rollserve
