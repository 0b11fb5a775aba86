#include "rollserve/multi_agent_sampler.h"

#include <utility>

#include "sampling_calls.h"

namespace rollserve {

MultiAgentSampler::MultiAgentSampler(std::shared_ptr<internal::Connection> connection)
    : connection_(std::move(connection)) {}

MultiAgentBatch MultiAgentSampler::obtain_samples(std::int64_t num_steps, const SamplingOptions& options) const {
  internal::check_joinable(options);
  return stream_samples(num_steps, options).join();
}

MultiAgentBatch MultiAgentSampler::obtain_exact_episodes(std::int64_t num_episodes_per_worker,
                                                         const SamplingOptions& options) const {
  internal::check_joinable(options);
  return stream_exact_episodes(num_episodes_per_worker, options).join();
}

MultiAgentBatch MultiAgentSampler::obtain_fragments(std::int64_t num_steps, const FragmentOptions& options) const {
  internal::check_joinable(options);
  return stream_fragments(num_steps, options).join();
}

MultiAgentStream MultiAgentSampler::stream_samples(std::int64_t num_steps, const SamplingOptions& options) const {
  return MultiAgentStream(internal::started<MultiAgentBatch>(
      connection_, internal::samples_request(*connection_, num_steps, options), options));
}

MultiAgentStream MultiAgentSampler::stream_exact_episodes(std::int64_t num_episodes_per_worker,
                                                          const SamplingOptions& options) const {
  return MultiAgentStream(internal::started<MultiAgentBatch>(
      connection_, internal::exact_episodes_request(*connection_, num_episodes_per_worker, options), options));
}

MultiAgentStream MultiAgentSampler::stream_fragments(std::int64_t num_steps, const FragmentOptions& options) const {
  return MultiAgentStream(internal::started<MultiAgentBatch>(
      connection_, internal::fragments_request(*connection_, num_steps, options), options));
}

}  // namespace rollserve
