#pragma once

#include <cstdint>
#include <memory>
#include <utility>

#include "connection.h"
#include "encoding.h"
#include "failures.h"
#include "rollserve/stream.h"
#include "stream_state.h"

namespace rollserve::internal {

/// Return the limits of a call with such options.
template <class Options>
TimeLimits limits_of(const Connection& connection, const Options& options) {
  if (options.deadline && *options.deadline < Milliseconds::zero()) {
    raise_invalid("deadline", "a time of at least 0", text_of(*options.deadline));
  }
  return TimeLimits(connection.timeout_of(options.timeout), options.deadline);
}

/// Return the request for whole episodes with a number of steps.
v1::ObtainSamplesRequest samples_request(Connection& connection, std::int64_t num_steps,
                                         const SamplingOptions& options);

/// Return the request for an exact number of episodes of each worker.
v1::ObtainExactEpisodesRequest exact_episodes_request(Connection& connection, std::int64_t num_episodes_per_worker,
                                                      const SamplingOptions& options);

/// Return the request for fragments.
v1::ObtainSamplesRequest fragments_request(Connection& connection, std::int64_t num_steps,
                                           const FragmentOptions& options);

/// Throw an InvalidArgumentError for options of a call that returns no batch.
void check_joinable(const SamplingOptions& options);

/// Start a call, and return the state of its stream.
///
/// @tparam Batch EpisodeBatch or MultiAgentBatch.
template <class Batch>
std::unique_ptr<StreamState<Batch>> started(const std::shared_ptr<Connection>& connection, SamplingRequest request,
                                            const SamplingOptions& options) {
  return std::make_unique<StreamState<Batch>>(connection, std::move(request), limits_of(*connection, options),
                                              options.cancellation);
}

}  // namespace rollserve::internal
