#pragma once

#include <memory>

/// @file
/// Cancellation of calls from other threads.

namespace rollserve {

namespace internal {
class CallGroup;
class Connection;
}  // namespace internal

/// A handle that ends calls, of one thread or several: each call whose options have it, or a copy of it, throws a
/// CancelledError, also one that begins later. Thread-safe. A program of C++20 cancels it by a std::stop_callback.
class Cancellation {
 public:
  /// Make a handle that is not cancelled.
  Cancellation();
  /// End the calls. An update that the server has accepted by then stays.
  void cancel() const noexcept;
  /// Return whether cancel() was called, on the handle or a copy of it.
  bool is_cancelled() const noexcept;

 private:
  friend class internal::Connection;
  std::shared_ptr<internal::CallGroup> calls_;
};

}  // namespace rollserve
