#include "call_control.h"

#include <algorithm>

#include "failures.h"

namespace rollserve::internal {

void CallControl::cancel(const std::string& owner) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!cancelled_owner_.empty()) return;
  cancelled_owner_ = owner;
  if (context_ != nullptr) context_->TryCancel();
  changed_.notify_all();
}

bool CallControl::is_cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !cancelled_owner_.empty();
}

void CallControl::raise_cancelled() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  raise({"the " + cancelled_owner_ + " was closed", {StatusCode::Cancelled, "", "", ""}});
}

void CallControl::sleep(Milliseconds time) {
  std::unique_lock<std::mutex> lock(mutex_);
  changed_.wait_for(lock, time, [this] { return !cancelled_owner_.empty(); });
}

void CallControl::attach(grpc::ClientContext& context) {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = &context;
  if (!cancelled_owner_.empty()) context.TryCancel();
}

void CallControl::detach() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  context_ = nullptr;
}

std::shared_ptr<CallControl> OpenCalls::open() {
  auto control = std::make_shared<CallControl>();
  const std::lock_guard<std::mutex> lock(mutex_);
  if (closed_) control->cancel("sampler");
  const auto is_over = [](const auto& call) { return call.expired(); };
  calls_.erase(std::remove_if(calls_.begin(), calls_.end(), is_over), calls_.end());
  calls_.push_back(control);
  return control;
}

void OpenCalls::close() noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  closed_ = true;
  for (const auto& call : calls_) {
    if (const auto control = call.lock()) control->cancel("sampler");
  }
}

}  // namespace rollserve::internal
