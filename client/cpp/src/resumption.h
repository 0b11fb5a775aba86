#pragma once

#include <cstdint>
#include <optional>
#include <variant>

#include "rollserve/episode_batch.h"
#include "rollserve/multi_agent_batch.h"
#include "rollserve/v1/sampler_service.pb.h"

namespace rollserve::internal {

/// A request for a stream of batches.
using SamplingRequest = std::variant<v1::ObtainSamplesRequest, v1::ObtainExactEpisodesRequest>;

/// Return the options of a request.
v1::SamplingOptions& options_of(SamplingRequest& request);

/// Whether the episodes of a class are the same when they are requested again.
bool is_repeatable(v1::Reproducibility reproducibility);

/// The position of a stream, over all calls that deliver it, so that no step is delivered twice or left out.
///
/// The comment on Beginning in episode_batch.proto says which call delivers the rest.
class Resumption {
 public:
  /// Start with the first call's request.
  explicit Resumption(SamplingRequest request) : first_(request), call_(std::move(request)) {}

  /// Return the request of the present call.
  SamplingRequest& call() { return call_; }
  /// Whether the stream's beginning is known.
  bool has_begun() const { return beginning_.has_value(); }
  /// Return the number of episodes whose last steps were received.
  std::uint64_t num_episodes() const { return num_episodes_; }
  /// Whether the stream's beginning is known and its episodes can be requested again.
  bool possible() const;

  /// Record the first message of a call.
  void begin(const v1::Beginning& beginning);
  /// Record a batch, and return the part of it that was not received before, if there is any.
  ///
  /// @tparam Batch EpisodeBatch or MultiAgentBatch.
  /// @throws Malformed for a call that leaves out the rest of an episode after its first part.
  template <class Batch>
  std::optional<Batch> take(Batch batch);
  /// Make the call one that delivers what has not been received: all of it, if the stream has not begun.
  void prepare();
  /// Return the account of the whole stream, for the account of its last call.
  Account whole(Account account) const;

 private:
  /// What earlier calls of a stream delivered: whole episodes, their steps, those that count for the number that the
  /// stream needs, and the episodes between them that were skipped because they had failed.
  struct Delivered {
    std::uint64_t episodes = 0;
    std::uint64_t steps = 0;
    std::uint64_t counted = 0;
    std::uint64_t failed = 0;
  };

  std::uint64_t find_position(std::uint64_t step_count);
  void continue_in(v1::SamplingOptions& options, bool expects_workers) const;

  const SamplingRequest first_;
  SamplingRequest call_;
  std::optional<v1::Beginning> beginning_;
  int num_resumptions_ = 0;
  // Whole episodes that were received: their number, their steps, and the index and steps of the last one.
  std::uint64_t num_episodes_ = 0;
  std::uint64_t num_steps_ = 0;
  std::uint64_t last_index_ = 0;
  std::uint64_t num_last_steps_ = 0;
  std::uint64_t num_agent_steps_ = 0;  // steps of all agents, and those in the last one
  std::uint64_t num_last_agent_steps_ = 0;
  // The episode that was received in part: its index and steps. For fragments, the steps of all episodes that were
  // received after the last whole one.
  std::uint64_t partial_index_ = 0;
  std::uint64_t num_partial_steps_ = 0;
  std::uint64_t num_partial_agent_steps_ = 0;
  // The present call: the steps that were received before, their episode, and what was delivered before the call.
  std::uint64_t num_steps_to_skip_ = 0;
  std::uint64_t index_to_skip_ = 0;
  std::uint64_t num_agent_steps_again_ = 0;  // in batches of the call that were received before as a whole
  Delivered before_;
};

}  // namespace rollserve::internal
