#include "call_control.h"

#include <grpcpp/client_context.h>

#include <algorithm>

#include "failures.h"
#include "rollserve/cancellation.h"

namespace rollserve {

namespace internal {

void CallControl::cancel(const std::string& cause) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!cause_.empty()) return;
  cause_ = cause;
  if (context_ != nullptr) context_->TryCancel();
  changed_.notify_all();
}

bool CallControl::is_cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !cause_.empty();
}

void CallControl::raise_cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  raise({cause_, {StatusCode::Cancelled, "", "", ""}});
}

void CallControl::sleep(Milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, time, [this] { return !cause_.empty(); });
}

void CallControl::attach(grpc::ClientContext& context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = &context;
  if (!cause_.empty()) context.TryCancel();
}

void CallControl::detach() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = nullptr;
}

void CallGroup::add(const std::shared_ptr<CallControl>& call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (is_cancelled_) call->cancel(cause_);
  const auto is_over = [](const auto& each) { return each.expired(); };
  calls_.erase(std::remove_if(calls_.begin(), calls_.end(), is_over), calls_.end());
  calls_.push_back(call);
}

void CallGroup::cancel() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  is_cancelled_ = true;
  for (const auto& each : calls_) {
    if (const auto call = each.lock()) call->cancel(cause_);
  }
}

bool CallGroup::is_cancelled() const noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  return is_cancelled_;
}

}  // namespace internal

Cancellation::Cancellation() : calls_(std::make_shared<internal::CallGroup>("the call was cancelled")) {}

void Cancellation::cancel() const noexcept { calls_->cancel(); }

bool Cancellation::is_cancelled() const noexcept { return calls_->is_cancelled(); }

}  // namespace rollserve
