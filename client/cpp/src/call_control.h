#pragma once

#include <grpcpp/client_context.h>

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "deadline.h"

namespace rollserve::internal {

/// What other threads can do to a call: cancel it, whatever it is doing. Thread-safe.
class CallControl {
 public:
  /// Cancel the call, and all later RPCs of it.
  ///
  /// @param owner what was closed, for the error: `stream` or `sampler`.
  void cancel(const std::string& owner) noexcept;
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
  std::string cancelled_owner_;  // empty if the call was not cancelled
  grpc::ClientContext* context_ = nullptr;
};

/// The calls of a sampler that are open. Thread-safe.
class OpenCalls {
 public:
  /// Return the control of a new call, which is cancelled at once if the sampler was closed.
  std::shared_ptr<CallControl> open();
  /// Cancel all calls, and later ones.
  void close() noexcept;

 private:
  std::mutex mutex_;
  bool closed_ = false;
  std::vector<std::weak_ptr<CallControl>> calls_;
};

}  // namespace rollserve::internal
