#pragma once

#include <atomic>
#include <chrono>
#include <optional>
#include <string>

#include "call_control.h"
#include "deadline.h"
#include "failures.h"

namespace rollserve::internal {

/// Whether a server has ever answered, which decides what calls do while it is away: without an answer ever, the
/// address may be wrong, so calls fail at once.
struct Contact {
  std::atomic<bool> was_made{false};  ///< Whether the server has ever answered.
  std::string proxy_variable;         ///< The environment variable that names the proxy on the way; empty without one.
};

/// The time limits of a call.
struct TimeLimits {
  Milliseconds timeout;                  ///< The time without progress.
  std::optional<Milliseconds> deadline;  ///< The time that the whole call may take.
  Deadline until;                        ///< When the whole call has to be over.

  TimeLimits(Milliseconds timeout_of_call, std::optional<Milliseconds> deadline_of_call)
      : timeout(timeout_of_call), deadline(deadline_of_call), until(deadline_of_call) {}
};

/// The interruptions of one call, over all attempts at it.
///
/// Only data that was not received before counts as progress: attempts end when the call's timeout has passed since the
/// first interruption without new data since.
class Interruptions {
 public:
  Interruptions(const Contact& contact, const TimeLimits& limits) : contact_(contact), limits_(limits) {}

  /// Record that new data has arrived.
  void advance();
  /// Record what the server says that the call waits for; empty for nothing.
  void wait_for(const std::string& text) { waiting_for_ = text; }
  /// Wait before the next attempt, or throw the client's error if there is none.
  ///
  /// @param control the call, which may be cancelled meanwhile.
  /// @param failure how the last attempt ended.
  /// @param has_begun whether the beginning of the call's stream has arrived.
  /// @param can_repeat whether a call that has begun can be made again.
  void pause(CallControl& control, const Failure& failure, bool has_begun, bool can_repeat);
  /// Throw the error of an attempt that made no progress for the call's timeout.
  [[noreturn]] void raise_silence() const;
  /// Return how the last attempt ended that was interrupted.
  const std::optional<Failure>& last() const { return last_; }

 private:
  bool goes_on(const Failure& failure, bool has_begun, bool can_repeat) const;
  [[noreturn]] void raise_final(const Failure& failure) const;
  std::string after() const;
  Failure explained(Failure failure) const;

  static constexpr Milliseconds first_pause{100};
  static constexpr Milliseconds longest_pause{1000};

  const Contact& contact_;
  const TimeLimits& limits_;
  std::optional<Failure> last_;
  std::string waiting_for_;
  std::optional<std::chrono::steady_clock::time_point> since_;
  Milliseconds next_pause_ = first_pause;
};

}  // namespace rollserve::internal
