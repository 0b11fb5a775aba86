#include "interruptions.h"

#include <algorithm>
#include <random>

#include "rpc_errors.h"

namespace rollserve::internal {

namespace {

/// Return a random part of a time, from a half to the whole, so that clients that lost a server together do not return
/// together.
Milliseconds jittered(Milliseconds time) {
  static thread_local std::minstd_rand random{std::random_device{}()};
  return std::chrono::duration_cast<Milliseconds>(std::uniform_real_distribution<double>(0.5, 1.0)(random) * time);
}

}  // namespace

void Interruptions::advance() {
  since_.reset();
  next_pause_ = first_pause;
}

void Interruptions::pause(CallControl& control, const Failure& ended_with, bool has_begun, bool can_repeat) {
  const Failure failure = explained(ended_with);
  if (!goes_on(failure, has_begun, can_repeat)) raise_final(failure);
  const auto now = std::chrono::steady_clock::now();
  if (!since_) since_ = now;
  const auto passed = std::chrono::duration_cast<Milliseconds>(now - *since_);
  if (passed >= limits_.timeout) raise_final(failure);
  Milliseconds pause = std::min(jittered(next_pause_), limits_.timeout - passed);
  if (const auto left = limits_.until.left()) pause = std::min(pause, *left);
  next_pause_ = std::min(2 * next_pause_, longest_pause);
  last_ = failure;
  control.sleep(pause);
  if (control.is_cancelled()) control.raise_cancelled();
}

bool Interruptions::goes_on(const Failure& failure, bool has_begun, bool can_repeat) const {
  const auto& [code, reason, field, request_id] = failure.details;
  if (code != StatusCode::Unavailable) return false;
  // The next server at the address need not have these reasons.
  const bool is_elsewhere = reason.empty() || reason == reason::SERVER_STOPPING || reason == reason::SAMPLER_TAKEN ||
                            reason == reason::JOURNAL_LOST;
  if (!has_begun) return contact_.was_made && is_elsewhere;
  // The server itself has tried again before it sends these, and has lost a worker each time.
  const bool is_final =
      reason == reason::WORKER_LOST_AGAIN || reason == reason::WORKER_HUNG || reason == reason::WORKER_OUT_OF_MEMORY;
  return can_repeat && !is_final;
}

void Interruptions::raise_final(const Failure& failure) const {
  const auto& details = failure.details;
  if (details.code == StatusCode::DeadlineExceeded && details.reason.empty() && limits_.deadline) {
    raise({"deadline: the call was not over after " + text_of(*limits_.deadline) + after(),
           {StatusCode::DeadlineExceeded, "", "deadline", ""}});
  }
  raise(failure);
}

/// Return a failure with what may be the cause where no connection could be made.
Failure Interruptions::explained(Failure failure) const {
  if (is_without_connection(failure) && !contact_.proxy_variable.empty()) {
    failure.message += " (through the proxy of " + contact_.proxy_variable + ")";
  }
  if (!contact_.was_made && is_closed_at_once(failure)) {
    failure.message +=
        ": the server closed the new connection. If it encrypts connections, give `ca`; if it asks for certificates, "
        "give `cert` and `key`, signed by an authority that it trusts and not expired";
  }
  return failure;
}

void Interruptions::raise_silence() const {
  raise({"timeout: no progress for " + text_of(limits_.timeout) + after(),
         {StatusCode::DeadlineExceeded, reason::NO_PROGRESS, "timeout", ""}});
}

std::string Interruptions::after() const {
  if (!waiting_for_.empty()) return "; the server waits for " + waiting_for_;
  return last_ ? "; an earlier attempt ended with: " + last_->message : "";
}

}  // namespace rollserve::internal
