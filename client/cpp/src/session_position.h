#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "rollserve/v1/sampler_service.pb.h"

namespace rollserve::internal {

/// Where the rows of a session are, over all its streams. One that is taken up again shows steps that the client may
/// have.
class SessionPosition {
 public:
  /// Start before the first step; `is_apart` says whether rows do not wait for each other.
  explicit SessionPosition(bool is_apart) : is_apart_(is_apart) {}

  /// Set the number of rows, once.
  void begin(std::size_t num_rows);
  /// Drop what a step shows again, and return whether anything is left. The rows of a worker step together.
  ///
  /// @throws Malformed for rows that do not exist, or without their counts.
  bool advance(v1::DrivenStep& step);
  /// Set the rows that are to act, and how many steps they have made; count one more for each.
  ///
  /// @throws InvalidArgumentError for a row that does not wait for actions.
  void ask(const std::vector<std::size_t>& rows, v1::DrivenActions& actions);
  /// Return whether a step has followed the actions.
  bool is_behind(const v1::DrivenActions& actions) const;

 private:
  bool advance(const v1::DrivenRows& worker);

  bool is_apart_;
  std::uint64_t num_steps_ = 0;
  // For rows that do not wait for each other: how many steps each has made, -1 before it is shown, and was asked for.
  std::vector<std::int64_t> made_;
  std::vector<std::int64_t> asked_;
};

}  // namespace rollserve::internal
