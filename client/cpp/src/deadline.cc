#include "deadline.h"

#include <algorithm>
#include <cstdio>

namespace rollserve::internal {

namespace {

constexpr Milliseconds longest = std::chrono::hours(24 * 365 * 30);  // nanoseconds of more do not fit into 64 bits

}  // namespace

std::string text_of(Milliseconds time) {
  char text[32];
  std::snprintf(text, sizeof text, "%g s", static_cast<double>(time.count()) / 1000);
  return text;
}

Deadline::Deadline(std::optional<Milliseconds> time) {
  if (time && *time <= longest) until_ = std::chrono::steady_clock::now() + *time;
}

gpr_timespec Deadline::for_grpc() const {
  if (!until_) return gpr_inf_future(GPR_CLOCK_MONOTONIC);
  const auto remaining =
      std::chrono::duration_cast<std::chrono::nanoseconds>(*until_ - std::chrono::steady_clock::now());
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_nanos(remaining.count(), GPR_TIMESPAN));
}

std::optional<Milliseconds> Deadline::left() const {
  if (!until_) return std::nullopt;
  const auto remaining = std::chrono::ceil<Milliseconds>(*until_ - std::chrono::steady_clock::now());
  return std::max(remaining, Milliseconds::zero());
}

}  // namespace rollserve::internal
