#include "rollserve/episode_batch.h"

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
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

std::vector<double> unknown_returns(const std::vector<std::uint64_t>& first_steps) {
  std::vector<double> sums;
  for (const std::uint64_t step : first_steps) sums.push_back(step == 0 ? 0 : std::numeric_limits<double>::quiet_NaN());
  return sums;
}

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
  if (batch.raw_rewards) part.raw_rewards = batch.raw_rewards->slice(first_step, end_step);
  if (batch.last_values) part.last_values = batch.last_values->slice(first_segment, end_segment);
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
  joined.lengths = sums_of(batch.lengths, runs);
  joined.terminated = picked(batch.terminated, runs.ends);
  joined.truncated = picked(batch.truncated, runs.ends);
  joined.policy_versions = picked(batch.policy_versions, runs.begins);
  joined.episode_indices = picked(batch.episode_indices, runs.begins);
  joined.first_steps = picked(batch.first_steps, runs.begins);
  joined.returns_before = picked(batch.returns_before, runs.begins);
  joined.env_seeds = picked(batch.env_seeds, runs.begins);
  joined.worker_indices = picked(batch.worker_indices, runs.begins);
  joined.row_indices = picked(batch.row_indices, runs.begins);
  joined.last_observations = batch.last_observations.gather(runs.ends);
  // Segments that had gaps may have been joined to others.
  joined.episode_infos = without_full_masks(batch.episode_infos.gather(runs.begins));
  joined.initial_states = without_full_masks(batch.initial_states.gather(runs.begins));
  joined.last_states = without_full_masks(batch.last_states.gather(runs.ends));
  if (batch.last_values) joined.last_values = batch.last_values->gather(runs.ends);
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

/// Give all batches what some of them have: where one lacks rewards or actions of the environment's own, they are the
/// agent's. Last values have no such stand-in, so that no batch keeps them if one lacks them.
void complete(std::vector<EpisodeBatch>& batches) {
  const auto any = [&](auto has) { return std::any_of(batches.begin(), batches.end(), has); };
  const bool has_rewards = any([](const EpisodeBatch& batch) { return batch.raw_rewards.has_value(); });
  const bool has_actions = any([](const EpisodeBatch& batch) { return !batch.env_actions.empty(); });
  const bool lacks_values = any([](const EpisodeBatch& batch) { return !batch.last_values.has_value(); });
  for (EpisodeBatch& batch : batches) {
    if (batch.returns_before.empty()) batch.returns_before = internal::unknown_returns(batch.first_steps);
    if (has_rewards && !batch.raw_rewards) batch.raw_rewards = batch.rewards;
    if (has_actions && batch.env_actions.empty()) batch.env_actions = batch.actions;
    if (lacks_values) batch.last_values.reset();
  }
}

/// Return arrays that each batch has, or none has, one behind the other. The batches give them up.
Optional<Array> concatenate_optional(const char* name, Optional<Array> EpisodeBatch::*array,
                                     std::vector<EpisodeBatch>& batches, const std::vector<std::size_t>& lengths) {
  if (!(batches.front().*array)) return std::nullopt;
  std::vector<Columns> parts;
  for (EpisodeBatch& batch : batches) parts.push_back({{name, *std::exchange(batch.*array, std::nullopt)}});
  return internal::concatenate_infos(name, parts, lengths).take(name);
}

EpisodeBatch concatenated(std::vector<EpisodeBatch> batches) {
  for (const EpisodeBatch& batch : batches) {
    internal::check_headers(batch);
    internal::check_columns(batch);
  }
  complete(batches);
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
  joined.raw_rewards = concatenate_optional("raw_rewards", &EpisodeBatch::raw_rewards, batches, num_steps);
  joined.last_values = concatenate_optional("last_values", &EpisodeBatch::last_values, batches, num_segments);
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
