#include "rollserve/stream.h"

#include <algorithm>
#include <utility>
#include <variant>

#include "decoding.h"
#include "failures.h"
#include "joining.h"
#include "records.h"
#include "stream_state.h"

namespace rollserve {

namespace internal {

namespace {

const char* rpc_of(const v1::ObtainSamplesRequest&) { return "ObtainSamples"; }

const char* rpc_of(const v1::ObtainExactEpisodesRequest&) { return "ObtainExactEpisodes"; }

/// Return the batch of a response; throw an InvalidArgumentError if it is one of the other kind.
///
/// @param batch only says which kind is expected.
EpisodeBatch batch_in(v1::ObtainSamplesResponse& response, std::uint64_t num_rows, const EpisodeBatch*) {
  if (!response.has_batch()) {
    raise_invalid("environment", "one with one agent (call multi_agent() of the sampler first)",
                  "one with many agents");
  }
  return batch_of(*response.mutable_batch(), num_rows);
}

MultiAgentBatch batch_in(v1::ObtainSamplesResponse& response, std::uint64_t, const MultiAgentBatch*) {
  if (!response.has_multi_agent_batch()) {
    raise_invalid("environment", "one with many agents (call the sampler's own functions)", "one with one agent");
  }
  return batch_of(*response.mutable_multi_agent_batch());
}

}  // namespace

template <class Batch>
StreamState<Batch>::StreamState(std::shared_ptr<Connection> connection, SamplingRequest request,
                                const TimeLimits& limits, const std::optional<Cancellation>& cancellation)
    : connection_(std::move(connection)),
      control_(connection_->open_call(cancellation)),
      limits_(limits),
      resumption_(std::move(request)),
      interruptions_(connection_->contact(), limits_),
      updates_agent_(options_of(resumption_.call()).has_agent_update()),
      blackhole_(options_of(resumption_.call()).blackhole()) {
  // The call starts now, so that several streams that are opened one after the other run at the same time.
  start();
}

template <class Batch>
StreamState<Batch>::~StreamState() = default;

template <class Batch>
void StreamState<Batch>::start() {
  const auto rpc_with = [this](const auto& request) {
    return std::make_unique<Rpc>(*connection_, *control_, limits_.until, rpc_of(request), request.SerializeAsString());
  };
  rpc_ = std::visit(rpc_with, resumption_.call());
}

template <class Batch>
std::optional<Batch> StreamState<Batch>::next() {
  if (error_) std::rethrow_exception(error_);
  try {
    return next_batch();
  } catch (...) {
    rpc_.reset();
    error_ = std::current_exception();
    throw;
  }
}

template <class Batch>
std::optional<Batch> StreamState<Batch>::next_batch() {
  try {
    while (!final_account_) {
      if (control_->is_cancelled()) control_->raise_cancelled();
      if (auto batch = step()) return batch;
    }
    return std::nullopt;
  } catch (const Malformed& violation) {
    raise_malformed(violation.what());
  }
}

template <class Batch>
Batch StreamState<Batch>::join() {
  if (blackhole_) {
    raise_invalid("blackhole", "false for a call that returns a batch (read a stream to its end)", "true");
  }
  std::vector<Batch> batches;
  while (auto batch = next()) batches.push_back(std::move(*batch));
  return join_batches(std::move(batches), *final_account_);
}

/// Read the next response, and return the part of its batch that was not received before, if there is any.
template <class Batch>
std::optional<Batch> StreamState<Batch>::step() {
  if (unread_.empty()) {
    receive();
    return std::nullopt;
  }
  v1::ObtainSamplesResponse response = std::move(unread_.front());
  unread_.pop_front();
  return read(response);
}

/// Receive the next message, or the end of the stream, or make the call go on after an interruption.
template <class Batch>
void StreamState<Batch>::receive() {
  if (!rpc_) start();
  v1::ObtainSamplesResponse message;  // those of ObtainExactEpisodes have the same fields
  const auto outcome = rpc_->read(message, limits_.timeout);
  if (outcome == Rpc::Outcome::Message) {
    connection_->contact().was_made = true;
    if (!message.has_joined()) {
      unread_.push_back(std::move(message));
      return;
    }
    for (const std::string& serialized : message.joined().responses()) {
      if (!unread_.emplace_back().ParseFromString(serialized)) throw Malformed("a joined response cannot be read");
    }
    return;
  }
  if (control_->is_cancelled()) control_->raise_cancelled();
  if (outcome == Rpc::Outcome::Silence) interruptions_.raise_silence();
  if (rpc_->is_ok()) {
    if (!account_) throw Malformed("the stream ended without its account");
    rpc_.reset();
    final_account_ = resumption_.whole(std::move(*account_));
    return;
  }
  const Failure failure = rpc_->failure();
  rpc_.reset();
  interruptions_.pause(*control_, failure, resumption_.has_begun(), resumption_.possible());
  account_.reset();
  resumption_.prepare();
}

template <class Batch>
std::optional<Batch> StreamState<Batch>::read(v1::ObtainSamplesResponse& response) {
  switch (response.content_case()) {
    case v1::ObtainSamplesResponse::kBeginning:
      begin(response.beginning());
      return std::nullopt;
    case v1::ObtainSamplesResponse::kBatch:
    case v1::ObtainSamplesResponse::kMultiAgentBatch: {
      auto fresh = resumption_.take(batch_in(response, num_rows_, static_cast<const Batch*>(nullptr)));
      interruptions_.wait_for("");
      if (fresh) {
        interruptions_.advance();
        num_received_steps_ += fresh->num_steps();
        num_simulated_steps_ = std::max(num_simulated_steps_, num_received_steps_);
      }
      return fresh;
    }
    case v1::ObtainSamplesResponse::kProgress: {
      const v1::Progress& progress = response.progress();
      num_simulated_steps_ = std::max(num_simulated_steps_, progress.simulated_step_count());
      num_ended_episodes_ = std::max(num_ended_episodes_, progress.ended_episode_count());
      interruptions_.wait_for(progress.waiting_for());
      if (!progress.warning().empty()) {
        warnings_.push_back(progress.warning());
        connection_->config().warn(progress.warning());
      }
      return std::nullopt;
    }
    case v1::ObtainSamplesResponse::kAccount:
      account_ = account_of(response.account());
      num_simulated_steps_ = account_->num_simulated_steps;
      return std::nullopt;
    default:
      return std::nullopt;  // content of a kind that only later clients know
  }
}

template <class Batch>
void StreamState<Batch>::begin(const v1::Beginning& beginning) {
  if (updates_agent_ && !resumption_.has_begun()) {
    if (!beginning.agent_updated()) {
      throw ServerError(mismatch_text("agent", "a server that knows agents of calls (call update_agent instead)",
                                      "one of an earlier version, which samples with the agent that is there"),
                        {StatusCode::Unimplemented, "", "agent", ""});
    }
    connection_->own_versions().set_agent(beginning.policy_version(), beginning.environment_version());
  }
  resumption_.begin(beginning);
  num_rows_ = beginning.row_count();
}

template class StreamState<EpisodeBatch>;
template class StreamState<MultiAgentBatch>;

}  // namespace internal

template <class Batch>
BasicStream<Batch>::BasicStream(std::unique_ptr<internal::StreamState<Batch>> state) : state_(std::move(state)) {}

template <class Batch>
BasicStream<Batch>::BasicStream(BasicStream&&) noexcept = default;

template <class Batch>
BasicStream<Batch>& BasicStream<Batch>::operator=(BasicStream&&) noexcept = default;

template <class Batch>
BasicStream<Batch>::~BasicStream() = default;

template <class Batch>
Optional<Batch> BasicStream<Batch>::next() {
  return state_->next();
}

template <class Batch>
Batch BasicStream<Batch>::join() {
  return state_->join();
}

template <class Batch>
const Account& BasicStream<Batch>::account() const& {
  if (!state_->account()) {
    internal::raise_invalid("account", "a stream that was read to its end, until next() returns nothing",
                            state_->has_failed() ? "one that has failed" : "one that goes on");
  }
  return *state_->account();
}

template <class Batch>
std::uint64_t BasicStream<Batch>::num_simulated_steps() const noexcept {
  return state_->num_simulated_steps();
}

template <class Batch>
std::uint64_t BasicStream<Batch>::num_ended_episodes() const noexcept {
  return state_->num_ended_episodes();
}

template <class Batch>
const std::vector<std::string>& BasicStream<Batch>::warnings() const& noexcept {
  return state_->warnings();
}

template <class Batch>
void BasicStream<Batch>::cancel() noexcept {
  state_->cancel();
}

template class BasicStream<EpisodeBatch>;
template class BasicStream<MultiAgentBatch>;

}  // namespace rollserve
