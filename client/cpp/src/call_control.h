#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "deadline.h"

namespace grpc {
class ClientContext;
}

namespace rollserve::internal {

/// What other threads can do to a call: cancel it, whatever it is doing. Thread-safe.
class CallControl {
 public:
  /// Cancel the call, and all later RPCs of it.
  ///
  /// @param cause what was done, for the error, such as `the stream was closed`.
  void cancel(const std::string& cause) noexcept;
  /// Whether the call was cancelled.
  bool is_cancelled() const;
  /// Throw the CancelledError of a call that was cancelled.
  [[noreturn]] void raise_cancelled() const;
  /// Sleep, but no longer than until the call is cancelled.
  void sleep(Milliseconds time);

  /// Cancel an RPC with the call, from now on.
  void attach(grpc::ClientContext& context);
  /// End what attach() began.
  void detach() noexcept;

 private:
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::string cause_;  // empty if the call was not cancelled
  grpc::ClientContext* context_ = nullptr;
};

/// Calls that are cancelled together. Thread-safe.
class CallGroup {
 public:
  /// Make a group.
  ///
  /// @param cause what cancel() stands for, as CallControl::cancel() wants it.
  explicit CallGroup(std::string cause) : cause_(std::move(cause)) {}

  /// Add a call, which is cancelled at once if the group was.
  void add(const std::shared_ptr<CallControl>& call);
  /// Cancel all calls, and later ones.
  void cancel() noexcept;
  /// Whether the group was cancelled.
  bool is_cancelled() const noexcept;

 private:
  const std::string cause_;
  mutable std::mutex mutex_;
  bool is_cancelled_ = false;
  std::vector<std::weak_ptr<CallControl>> calls_;
};

}  // namespace rollserve::internal
