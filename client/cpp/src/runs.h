#pragma once

#include <cstddef>
#include <vector>

namespace rollserve::internal {

/// Runs of consecutive elements that belong together.
struct Runs {
  std::vector<std::size_t> begins;  ///< The position of the first element of each run.
  std::vector<std::size_t> ends;    ///< The position of its last element.
};

/// Return the runs of some elements, given whether each but the first belongs to the one before it.
template <class Follows>
Runs runs_of(std::size_t size, const Follows& follows) {
  Runs runs;
  for (std::size_t i = 0; i < size; ++i) {
    if (i > 0 && follows(i)) {
      runs.ends.back() = i;
    } else {
      runs.begins.push_back(i);
      runs.ends.push_back(i);
    }
  }
  return runs;
}

/// Return the values at some positions; none of none.
template <class T>
std::vector<T> picked(const std::vector<T>& values, const std::vector<std::size_t>& positions) {
  std::vector<T> result;
  if (values.empty()) return result;
  for (const std::size_t position : positions) result.push_back(values[position]);
  return result;
}

/// Return the sum of the values of each run.
template <class T>
std::vector<T> sums_of(const std::vector<T>& values, const Runs& runs) {
  std::vector<T> sums;
  for (std::size_t run = 0; run < runs.begins.size(); ++run) {
    T sum = 0;
    for (std::size_t i = runs.begins[run]; i <= runs.ends[run]; ++i) sum += values[i];
    sums.push_back(sum);
  }
  return sums;
}

}  // namespace rollserve::internal
