#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "rollserve/account.h"
#include "rollserve/episode_batch.h"
#include "rollserve/multi_agent_batch.h"

/// @file
/// Streams of batches.

namespace rollserve {

namespace internal {
template <class Batch>
class StreamState;
}

/// The batches of a sampling call as they arrive: a Stream or a MultiAgentStream.
///
///     for (const rollserve::EpisodeBatch& part : sampler.stream_samples(10'000)) std::cout << part.text() << '\n';
///
/// Each batch can be used alone; concatenate() and joined() of its class make whole episodes of several.
/// If the connection or the server is lost, the stream goes on where it was once both are back. It ends with the last
/// error if no new data has arrived for its timeout since then.
///
/// A stream that is destroyed before its end cancels its call. One thread at a time may read a stream; any may cancel
/// it.
///
/// @tparam Batch EpisodeBatch, or MultiAgentBatch for environments with many agents.
template <class Batch>
class BasicStream {
 public:
  /// A position in the batches that are still to come.
  class Iterator {
   public:
    using iterator_category = std::input_iterator_tag;  ///< Batches can be read once.
    using value_type = Batch;                           ///< What the iterator delivers.
    using difference_type = std::ptrdiff_t;             ///< Not used.
    using pointer = const Batch*;                       ///< A batch.
    using reference = const Batch&;                     ///< A batch.

    /// Make the position behind the last batch.
    Iterator() = default;
    /// Return the batch.
    reference operator*() const& { return *batch_; }
    /// Return the batch, of a position that is a temporary.
    Batch operator*() && { return std::move(*batch_); }
    /// Return the batch.
    pointer operator->() const& { return &*batch_; }
    /// @cond
    pointer operator->() const&& = delete;
    /// @endcond
    /// Read the next batch; throws as next().
    Iterator& operator++() {
      batch_ = stream_->next();
      return *this;
    }
    /// Read the next batch; throws as next().
    void operator++(int) { ++*this; }
    /// Whether both iterators are behind the last batch, or neither is.
    friend bool operator==(const Iterator& a, const Iterator& b) {
      return a.batch_.has_value() == b.batch_.has_value();
    }
    /// Whether one of the iterators is behind the last batch.
    friend bool operator!=(const Iterator& a, const Iterator& b) { return !(a == b); }

   private:
    friend class BasicStream;
    explicit Iterator(BasicStream* stream) : stream_(stream) { ++*this; }

    BasicStream* stream_ = nullptr;
    std::optional<Batch> batch_;
  };

  /// Take over another stream.
  BasicStream(BasicStream&&) noexcept;
  /// Cancel the call of this stream, and take over another stream.
  BasicStream& operator=(BasicStream&&) noexcept;
  /// Cancel the call, unless it is over.
  ~BasicStream();

  /// Return the next batch, or nothing after the last one.
  ///
  /// @throws Error as the subclasses say; every later call throws it again.
  Optional<Batch> next();

  /// Return the rest of the stream as one batch of whole episodes or fragments, with the account.
  ///
  /// @throws Error as next(); ServerError also for messages that do not fit together, or not to the account.
  Batch join();

  /// Return the account of the call, after next() has returned nothing.
  ///
  /// @throws InvalidArgumentError before the end of the stream.
  const Account& account() const&;

  /// Return the number of steps that the call has simulated so far, as far as the client knows.
  std::uint64_t num_simulated_steps() const noexcept;

  /// Return the number of episodes that have ended so far, as far as the client knows: at least the episodes whose ends
  /// it has received, and including episodes that will not be delivered.
  std::uint64_t num_ended_episodes() const noexcept;

  /// Return what the server has told about the call so far, such as that no episode ends.
  const std::vector<std::string>& warnings() const& noexcept;

  /// End the call: next() throws a CancelledError, also one that is waiting. Any thread may cancel.
  void cancel() noexcept;

  /// Read the first of the batches that are still to come; throws as next().
  Iterator begin() & { return Iterator(this); }
  /// Return the position behind the last batch.
  Iterator end() const noexcept { return {}; }

  /// @cond
  const Account& account() const&& = delete;  // these would outlive the stream
  const std::vector<std::string>& warnings() const&& = delete;
  explicit BasicStream(std::unique_ptr<internal::StreamState<Batch>> state);
  /// @endcond

 private:
  std::unique_ptr<internal::StreamState<Batch>> state_;
};

extern template class BasicStream<EpisodeBatch>;
extern template class BasicStream<MultiAgentBatch>;

/// The batches of a call in an environment with one agent.
using Stream = BasicStream<EpisodeBatch>;
/// The batches of a call in an environment with many agents.
using MultiAgentStream = BasicStream<MultiAgentBatch>;

}  // namespace rollserve
