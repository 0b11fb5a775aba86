#pragma once

#include <grpc/support/time.h>

#include <chrono>
#include <optional>
#include <string>

namespace rollserve::internal {

using Milliseconds = std::chrono::milliseconds;

/// Return a time as text, such as `1.5 s`.
std::string text_of(Milliseconds time);

/// A point of time that something has to be over by; never, by default. Changes of the system's clock have no effect.
class Deadline {
 public:
  Deadline() = default;
  /// Make the deadline that is over after a time; more than clocks can count stands for never.
  explicit Deadline(std::optional<Milliseconds> time);

  /// Return the deadline as gRPC wants it.
  gpr_timespec for_grpc() const;
  /// Return the time that is left, at least 0; nothing for never.
  std::optional<Milliseconds> left() const;

 private:
  std::optional<std::chrono::steady_clock::time_point> until_;
};

}  // namespace rollserve::internal
