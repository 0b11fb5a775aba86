#include "rollserve/episode_batch.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <type_traits>
#include <utility>

#include "batch_checks.h"
#include "column_table.h"
#include "failures.h"
#include "infos.h"

namespace rollserve {

using internal::ColumnKind;
using internal::ColumnSpec;
using internal::for_each_column;
using internal::RowsOf;

namespace internal {

std::vector<double> unknown_returns(const std::vector<std::uint64_t>& first_steps) {
  std::vector<double> sums;
  for (const std::uint64_t step : first_steps) sums.push_back(step == 0 ? 0 : std::numeric_limits<double>::quiet_NaN());
  return sums;
}

namespace {

template <class T>
std::vector<T> sliced(const std::vector<T>& header, std::size_t begin, std::size_t end) {
  using Offset = typename std::vector<T>::difference_type;
  if (header.empty()) return {};
  return std::vector<T>(header.begin() + static_cast<Offset>(begin), header.begin() + static_cast<Offset>(end));
}

/// Return rows of an array or of columns.
template <class T>
T sliced(const T& arrays, std::size_t begin, std::size_t end) {
  return arrays.slice(begin, end);
}

Optional<Array> sliced(const Optional<Array>& array, std::size_t begin, std::size_t end) {
  return array ? Optional<Array>(array->slice(begin, end)) : std::nullopt;
}

template <class T>
T picked(const T& arrays, const std::vector<std::size_t>& rows) {
  return arrays.gather(rows);
}

Optional<Array> picked(const Optional<Array>& array, const std::vector<std::size_t>& rows) {
  return array ? Optional<Array>(array->gather(rows)) : std::nullopt;
}

/// Return infos without masks that are true in every row, and other columns as they are.
template <class T>
T with_needed_masks(const ColumnSpec& spec, T column) {
  if constexpr (std::is_same_v<T, Columns>) {
    if (spec.kind == ColumnKind::Infos) return without_full_masks(column);
  }
  return column;
}

}  // namespace

EpisodeBatch part_of(const EpisodeBatch& batch, std::size_t first_step, std::size_t end_step, std::size_t first_segment,
                     std::size_t end_segment) {
  EpisodeBatch part;
  for_each_column([&](const auto& column) {
    const auto values = column.values;
    part.*values = column.rows_of == RowsOf::Steps ? sliced(batch.*values, first_step, end_step)
                                                   : sliced(batch.*values, first_segment, end_segment);
  });
  return part;
}

bool follows(const EpisodeBatch& batch, std::size_t segment, const EpisodeBatch& other, std::size_t before) {
  return batch.episode_indices[segment] == other.episode_indices[before] &&
         batch.policy_versions[segment] == other.policy_versions[before] &&
         batch.first_steps[segment] == other.first_steps[before] + static_cast<std::uint64_t>(other.lengths[before]) &&
         !other.ended(before);
}

namespace {

/// Return the initial states of segments after the first segment has lost some of its first steps.
Columns later_states(const Columns& states, const Columns& agent_infos) {
  Columns later;
  for (const auto& [name, column] : states) {
    if (states.is_mask(name)) continue;
    Array state = column.copy();
    const Array* every = agent_infos.find("state/" + name);
    if (every != nullptr && (every->data_type() != column.data_type() || every->row_shape() != column.row_shape())) {
      throw Malformed("agent_infos['state/" + name + "']", "rows as in initial_states, " + column.text(),
                      every->text());
    }
    const auto first = state.mutable_bytes().subspan(0, state.row_bytes());
    if (every != nullptr) {
      const Array now = every->slice(0, 1);
      std::copy(now.bytes().begin(), now.bytes().end(), first.begin());
    } else {
      std::fill(first.begin(), first.end(), std::byte{0});
    }
    later.set(name, std::move(state));
    const auto known = states.mask(name);
    if (known.empty() && every != nullptr) continue;
    std::vector<bool> mask(column.num_rows(), true);
    if (!known.empty()) std::copy(known.begin(), known.end(), mask.begin());
    mask[0] = every != nullptr;
    later.set("_" + name, Array(std::move(mask)));
  }
  return later;
}

}  // namespace

EpisodeBatch merged(const EpisodeBatch& batch, const Runs& runs) {
  if (runs.begins.size() == batch.num_segments()) return batch;
  EpisodeBatch joined = batch;
  for_each_column([&](const auto& column) {
    if (column.rows_of == RowsOf::Steps) return;
    const auto& rows = column.joined == Joined::Last ? runs.ends : runs.begins;
    // Segments that had gaps may have been joined to others.
    joined.*column.values = with_needed_masks(column, picked(batch.*column.values, rows));
  });
  joined.lengths = sums_of(batch.lengths, runs);
  return joined;
}

EpisodeBatch without_first_steps(const EpisodeBatch& batch, std::size_t num_steps) {
  std::size_t first_segment = 0;
  std::size_t num_dropped = 0;
  while (num_dropped + static_cast<std::size_t>(batch.lengths[first_segment]) <= num_steps) {
    num_dropped += static_cast<std::size_t>(batch.lengths[first_segment++]);
  }
  EpisodeBatch rest = part_of(batch, num_steps, batch.num_steps(), first_segment, batch.num_segments());
  if (const std::size_t cut = num_steps - num_dropped; cut > 0) {
    rest.lengths[0] -= static_cast<std::int64_t>(cut);
    rest.first_steps[0] += cut;
    const Array& rewards = batch.raw_rewards ? *batch.raw_rewards : batch.rewards;
    const double* raw = rewards.values<double>().data();
    rest.returns_before[0] = std::accumulate(raw + num_dropped, raw + num_steps, rest.returns_before[0]);
    rest.initial_states = later_states(rest.initial_states, rest.agent_infos);
  }
  return rest;
}

}  // namespace internal

namespace {

/// Return the sum of the rewards of each segment, added in the order of the steps.
std::vector<double> returns_of(const Array& rewards, const std::vector<std::int64_t>& lengths) {
  std::vector<double> sums;
  const double* reward = rewards.values<double>().data();
  for (const std::int64_t length : lengths) {
    sums.push_back(std::accumulate(reward, reward + length, 0.0));
    reward += length;
  }
  return sums;
}

}  // namespace

std::vector<double> EpisodeBatch::returns() const { return returns_of(rewards, lengths); }

std::vector<double> EpisodeBatch::raw_returns() const { return returns_of(raw_rewards.value_or(rewards), lengths); }

std::vector<double> EpisodeBatch::episode_returns() const {
  const auto before = returns_before.empty() ? internal::unknown_returns(first_steps) : returns_before;
  std::vector<double> sums = raw_returns();
  std::transform(sums.begin(), sums.end(), before.begin(), sums.begin(), std::plus<>());
  return sums;
}

EpisodeBatch EpisodeBatch::segment(std::size_t segment) const {
  std::size_t begin = 0;
  for (std::size_t i = 0; i < segment; ++i) begin += static_cast<std::size_t>(lengths.at(i));
  return internal::part_of(*this, begin, begin + static_cast<std::size_t>(lengths.at(segment)), segment, segment + 1);
}

std::vector<EpisodeBatch> EpisodeBatch::split() const {
  std::vector<EpisodeBatch> parts;
  std::size_t begin = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    const std::size_t end = begin + static_cast<std::size_t>(lengths[i]);
    parts.push_back(internal::part_of(*this, begin, end, i, i + 1));
    begin = end;
  }
  return parts;
}

EpisodeBatch EpisodeBatch::joined() const {
  return internal::merged(*this, internal::runs_of(lengths.size(), [&](std::size_t i) {
    return internal::follows(*this, i, *this, i - 1);
  }));
}

namespace {

template <class T>
bool is_absent(const T& column) {
  return column.empty();
}

bool is_absent(const Array&) { return false; }

bool is_absent(const Optional<Array>& array) { return !array; }

/// Give all batches a column, or none: a batch that lacks what another one has gets the original in its place. Without
/// an original, as of last values, no batch keeps the column.
template <class T, class Original, class Field>
void complete(std::vector<EpisodeBatch>& batches, const internal::Column<T, Original, Field>& column) {
  const auto lacks = [&](const EpisodeBatch& batch) { return is_absent(batch.*column.values); };
  if (std::none_of(batches.begin(), batches.end(), lacks) || std::all_of(batches.begin(), batches.end(), lacks)) return;
  for (EpisodeBatch& batch : batches) {
    if constexpr (std::is_null_pointer_v<Original>) {
      batch.*column.values = T();
    } else if (lacks(batch)) {
      batch.*column.values = batch.*column.original;
    }
  }
}

/// Return a column of all batches, one behind the other.
template <class T>
std::vector<T> concatenated(const ColumnSpec&, std::vector<std::vector<T>> parts, const std::vector<std::size_t>&) {
  std::vector<T> joined;
  for (const std::vector<T>& part : parts) joined.insert(joined.end(), part.begin(), part.end());
  return joined;
}

Array concatenated(const ColumnSpec&, std::vector<Array> parts, const std::vector<std::size_t>&) {
  return internal::concatenate_arrays(parts);
}

Columns concatenated(const ColumnSpec& spec, std::vector<Columns> parts, const std::vector<std::size_t>& lengths) {
  return spec.kind == ColumnKind::Infos ? internal::concatenate_infos(spec.name, parts, lengths)
                                        : internal::concatenate_columns(spec.name, std::move(parts));
}

/// The numbers of parts may differ in type, as those of infos.
Optional<Array> concatenated(const ColumnSpec& spec, std::vector<Optional<Array>> parts,
                             const std::vector<std::size_t>& lengths) {
  if (!parts.front()) return std::nullopt;
  std::vector<Columns> columns;
  for (Optional<Array>& part : parts) columns.push_back({{spec.name, *std::exchange(part, std::nullopt)}});
  return internal::concatenate_infos(spec.name, columns, lengths).take(spec.name);
}

EpisodeBatch concatenated(std::vector<EpisodeBatch> batches) {
  for (EpisodeBatch& batch : batches) {
    internal::check_headers(batch);
    internal::check_columns(batch);
    if (batch.returns_before.empty()) batch.returns_before = internal::unknown_returns(batch.first_steps);
  }
  if (batches.size() == 1) {
    EpisodeBatch single = std::move(batches[0]);
    single.account.reset();
    for_each_column([&](const auto& column) {
      single.*column.values = internal::with_needed_masks(column, std::move(single.*column.values));
    });
    return single;
  }
  std::vector<std::size_t> num_steps;
  std::vector<std::size_t> num_segments;
  for (const EpisodeBatch& batch : batches) {
    num_steps.push_back(batch.num_steps());
    num_segments.push_back(batch.num_segments());
  }
  for_each_column([&](const auto& column) {
    if (column.is_optional) complete(batches, column);
  });
  EpisodeBatch joined;
  for_each_column([&](const auto& column) {
    std::vector<std::decay_t<decltype(joined.*column.values)>> parts;
    for (EpisodeBatch& batch : batches) parts.push_back(std::exchange(batch.*column.values, {}));
    const auto& lengths = column.rows_of == RowsOf::Steps ? num_steps : num_segments;
    joined.*column.values = concatenated(column, std::move(parts), lengths);
  });
  return joined;
}

}  // namespace

EpisodeBatch EpisodeBatch::concatenate(std::vector<EpisodeBatch> batches) {
  if (batches.empty()) internal::raise_invalid("batches", "at least one", "none");
  try {
    return concatenated(std::move(batches));
  } catch (const internal::Malformed& violation) {
    internal::raise({violation.what(), {StatusCode::InvalidArgument, reason::INVALID_VALUE, "batches", ""}});
  }
}

std::string EpisodeBatch::text() const {
  std::size_t num_ended = 0;
  for (std::size_t i = 0; i < lengths.size(); ++i) num_ended += ended(i) ? 1 : 0;
  return "EpisodeBatch(" + std::to_string(num_segments()) + " segments, " + std::to_string(num_steps()) + " steps, " +
         std::to_string(num_ended) + " ended)";
}

}  // namespace rollserve
