#include "rollserve/episode_batch.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "batch_checks.h"
#include "batch_fields.h"
#include "failures.h"
#include "infos.h"

namespace rollserve {

using internal::column_fields;
using internal::ColumnField;
using internal::ColumnKind;
using internal::for_each_header;
using internal::RowsOf;

namespace internal {

EpisodeBatch part_of(const EpisodeBatch& batch, std::size_t first_step, std::size_t end_step, std::size_t first_segment,
                     std::size_t end_segment) {
  EpisodeBatch part;
  for_each_header(part, batch, [&](auto& to, const auto& from) {
    using Offset = typename std::decay_t<decltype(from)>::difference_type;
    if (!from.empty()) {
      to.assign(from.begin() + static_cast<Offset>(first_segment), from.begin() + static_cast<Offset>(end_segment));
    }
  });
  for (const ColumnField& field : column_fields) {
    part.*field.columns = field.rows_of == RowsOf::Steps ? (batch.*field.columns).slice(first_step, end_step)
                                                         : (batch.*field.columns).slice(first_segment, end_segment);
  }
  part.rewards = batch.rewards.slice(first_step, end_step);
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
    const auto first = state.slice(0, 1).mutable_bytes();
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
    rest.initial_states = later_states(rest.initial_states, rest.agent_infos);
  }
  return rest;
}

}  // namespace internal

std::vector<double> EpisodeBatch::returns() const {
  std::vector<double> sums;
  const double* reward = rewards.values<double>().data();
  for (const std::int64_t length : lengths) {
    sums.push_back(std::accumulate(reward, reward + length, 0.0));
    reward += length;
  }
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
  // The first and the last segment of each segment to be.
  std::vector<std::size_t> begins;
  std::vector<std::size_t> ends;
  EpisodeBatch joined = *this;
  joined.lengths.clear();
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    if (i == 0 || !internal::follows(*this, i, *this, i - 1)) {
      begins.push_back(i);
      ends.push_back(i);
      joined.lengths.push_back(lengths[i]);
    } else {
      ends.back() = i;
      joined.lengths.back() += lengths[i];
    }
  }
  if (begins.size() == lengths.size()) return *this;
  const auto pick = [](auto& values, const std::vector<std::size_t>& positions) {
    if (values.empty()) return;
    std::decay_t<decltype(values)> picked;
    for (const std::size_t position : positions) picked.push_back(values[position]);
    values = std::move(picked);
  };
  pick(joined.terminated, ends);
  pick(joined.truncated, ends);
  pick(joined.policy_versions, begins);
  pick(joined.episode_indices, begins);
  pick(joined.first_steps, begins);
  pick(joined.env_seeds, begins);
  pick(joined.worker_indices, begins);
  pick(joined.row_indices, begins);
  joined.last_observations = last_observations.gather(ends);
  // Segments that had gaps may have been joined to others.
  joined.episode_infos = internal::without_full_masks(episode_infos.gather(begins));
  joined.initial_states = internal::without_full_masks(initial_states.gather(begins));
  return joined;
}

namespace {

EpisodeBatch concatenated(std::vector<EpisodeBatch> batches) {
  for (const EpisodeBatch& batch : batches) {
    internal::check_headers(batch);
    internal::check_columns(batch);
  }
  if (batches.size() == 1) {
    EpisodeBatch single = std::move(batches[0]);
    single.account.reset();
    for (const ColumnField& field : column_fields) {
      if (field.kind == ColumnKind::Infos) {
        single.*field.columns = internal::without_full_masks(single.*field.columns);
      }
    }
    return single;
  }
  EpisodeBatch joined;
  std::vector<std::size_t> num_steps;
  std::vector<std::size_t> num_segments;
  std::vector<Array> rewards;
  bool has_workers = true;
  bool has_rows = true;
  for (EpisodeBatch& batch : batches) {
    num_steps.push_back(batch.num_steps());
    num_segments.push_back(batch.num_segments());
    has_workers = has_workers && !batch.worker_indices.empty();
    has_rows = has_rows && !batch.row_indices.empty();
    for_each_header(joined, batch, [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); });
    rewards.push_back(std::exchange(batch.rewards, {}));
  }
  if (!has_workers) joined.worker_indices.clear();
  if (!has_rows) joined.row_indices.clear();
  joined.rewards = internal::concatenate_arrays(rewards);
  rewards.clear();
  for (const ColumnField& field : column_fields) {
    std::vector<Columns> parts;
    for (EpisodeBatch& batch : batches) parts.push_back(std::exchange(batch.*field.columns, {}));
    const auto& lengths = field.rows_of == RowsOf::Steps ? num_steps : num_segments;
    joined.*field.columns = field.kind == ColumnKind::Leaves
                                ? internal::concatenate_columns(field.name, std::move(parts))
                                : internal::concatenate_infos(field.name, parts, lengths);
  }
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
