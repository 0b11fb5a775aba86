#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "connection.h"
#include "resumption.h"
#include "rollserve/episode_batch.h"
#include "rollserve/multi_agent_batch.h"
#include "rpc.h"

namespace rollserve::internal {

/// The state of a sampling stream, over all RPCs that deliver it.
///
/// @tparam Batch EpisodeBatch or MultiAgentBatch.
template <class Batch>
class StreamState {
 public:
  /// Start with the first call's request.
  StreamState(std::shared_ptr<Connection> connection, SamplingRequest request, const TimeLimits& limits,
              const std::optional<Cancellation>& cancellation);
  ~StreamState();

  /// Return the next batch, or nothing after the last one.
  std::optional<Batch> next();
  /// Return the rest of the stream as one batch, with the account.
  Batch join();
  /// Return the account after the end, otherwise nothing.
  const std::optional<Account>& account() const { return final_account_; }
  /// Whether the stream has ended with an error.
  bool has_failed() const { return error_ != nullptr; }
  /// Return the steps that the call has simulated so far, as far as the client knows.
  std::uint64_t num_simulated_steps() const { return num_simulated_steps_; }
  /// Return the episodes that have ended so far, as far as the client knows.
  std::uint64_t num_ended_episodes() const { return std::max(num_ended_episodes_, resumption_.num_episodes()); }
  /// Return what the server has told about the call.
  const std::vector<std::string>& warnings() const { return warnings_; }
  /// End the call, from any thread.
  void cancel() noexcept { control_->cancel("the stream was closed"); }

 private:
  std::optional<Batch> next_batch();
  std::optional<Batch> step();
  void receive();
  void start();
  std::optional<Batch> read(v1::ObtainSamplesResponse& response);
  void begin(const v1::Beginning& beginning);

  std::shared_ptr<Connection> connection_;
  std::shared_ptr<CallControl> control_;
  TimeLimits limits_;
  Resumption resumption_;
  Interruptions interruptions_;
  bool updates_agent_;
  bool blackhole_;
  std::unique_ptr<Rpc> rpc_;
  std::deque<v1::ObtainSamplesResponse> unread_;
  std::uint64_t num_rows_ = 0;
  std::uint64_t num_received_steps_ = 0;
  std::uint64_t num_simulated_steps_ = 0;
  std::uint64_t num_ended_episodes_ = 0;  // by the server's progress
  std::vector<std::string> warnings_;
  std::optional<Account> account_;        // of the present call
  std::optional<Account> final_account_;  // of the stream, once it has ended
  std::exception_ptr error_;              // how the stream has failed
};

}  // namespace rollserve::internal
