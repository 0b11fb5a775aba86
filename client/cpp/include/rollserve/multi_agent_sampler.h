#pragma once

#include <cstdint>
#include <memory>

#include "rollserve/multi_agent_batch.h"
#include "rollserve/options.h"
#include "rollserve/stream.h"

/// @file
/// The sampling calls for environments with many agents.

namespace rollserve {

namespace internal {
class Connection;
}

/// The sampling calls of a Sampler whose environment has many agents: those of the sampler, with a MultiAgentBatch as
/// their result. Steps are the environment's. In an environment with one agent, they throw an InvalidArgumentError.
///
/// A view: calls throw a CancelledError once the sampler that returned it is closed.
class MultiAgentSampler {
 public:
  /// Sample whole episodes as Sampler::obtain_samples(), with at least `num_steps` steps of the environment in all, or
  /// with SamplingOptions::count_agent_steps, of all agents.
  MultiAgentBatch obtain_samples(std::int64_t num_steps, const SamplingOptions& options = {}) const;
  /// Sample an exact number of episodes on each worker, as Sampler::obtain_exact_episodes().
  MultiAgentBatch obtain_exact_episodes(std::int64_t num_episodes_per_worker,
                                        const SamplingOptions& options = {}) const;
  /// Sample exactly `num_steps` steps of the environments, as Sampler::obtain_fragments(). An agent's step whose reward
  /// comes later is in the fragment in which it comes.
  MultiAgentBatch obtain_fragments(std::int64_t num_steps, const FragmentOptions& options = {}) const;

  /// Stream what obtain_samples() returns, message by message; throws as Sampler::stream_samples().
  MultiAgentStream stream_samples(std::int64_t num_steps, const SamplingOptions& options = {}) const;
  /// Stream what obtain_exact_episodes() returns, message by message; throws as Sampler::stream_samples().
  MultiAgentStream stream_exact_episodes(std::int64_t num_episodes_per_worker,
                                         const SamplingOptions& options = {}) const;
  /// Stream what obtain_fragments() returns, message by message; throws as Sampler::stream_samples().
  MultiAgentStream stream_fragments(std::int64_t num_steps, const FragmentOptions& options = {}) const;

  /// @cond
  explicit MultiAgentSampler(std::shared_ptr<internal::Connection> connection);
  /// @endcond

 private:
  std::shared_ptr<internal::Connection> connection_;
};

}  // namespace rollserve
