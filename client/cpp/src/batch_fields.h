#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "rollserve/episode_batch.h"
#include "runs.h"

namespace rollserve::internal {

/// Whether columns have a row for each step or for each segment.
enum class RowsOf { Steps, Segments };

/// Whether columns are the same in all messages of a stream, or infos, which can have gaps.
enum class ColumnKind { Leaves, Infos };

/// A field of a batch that holds columns.
struct ColumnField {
  const char* name;
  Columns EpisodeBatch::*columns;
  RowsOf rows_of;
  ColumnKind kind;
};

inline constexpr std::array<ColumnField, 9> column_fields = {{
    {"observations", &EpisodeBatch::observations, RowsOf::Steps, ColumnKind::Leaves},
    {"last_observations", &EpisodeBatch::last_observations, RowsOf::Segments, ColumnKind::Leaves},
    {"actions", &EpisodeBatch::actions, RowsOf::Steps, ColumnKind::Leaves},
    {"env_actions", &EpisodeBatch::env_actions, RowsOf::Steps, ColumnKind::Leaves},
    {"agent_infos", &EpisodeBatch::agent_infos, RowsOf::Steps, ColumnKind::Infos},
    {"env_infos", &EpisodeBatch::env_infos, RowsOf::Steps, ColumnKind::Infos},
    {"episode_infos", &EpisodeBatch::episode_infos, RowsOf::Segments, ColumnKind::Infos},
    {"initial_states", &EpisodeBatch::initial_states, RowsOf::Segments, ColumnKind::Infos},
    {"last_states", &EpisodeBatch::last_states, RowsOf::Segments, ColumnKind::Infos},
}};

/// Apply a function to each header of two batches, the vectors with an element for each segment. Some may be empty.
template <class Function>
void for_each_header(EpisodeBatch& to, const EpisodeBatch& from, Function function) {
  function(to.lengths, from.lengths);
  function(to.terminated, from.terminated);
  function(to.truncated, from.truncated);
  function(to.policy_versions, from.policy_versions);
  function(to.episode_indices, from.episode_indices);
  function(to.first_steps, from.first_steps);
  function(to.returns_before, from.returns_before);
  function(to.env_seeds, from.env_seeds);
  function(to.worker_indices, from.worker_indices);
  function(to.row_indices, from.row_indices);
}

/// Return what is known of `returns_before` without being told: 0 at an episode's start, else NaN.
std::vector<double> unknown_returns(const std::vector<std::uint64_t>& first_steps);

/// Return the rows from `first_step` and `first_segment` on, which belong together, in shared memory.
EpisodeBatch part_of(const EpisodeBatch& batch, std::size_t first_step, std::size_t end_step, std::size_t first_segment,
                     std::size_t end_segment);

/// Whether a segment is the continuation of a segment of another batch, or of the same one.
bool follows(const EpisodeBatch& batch, std::size_t segment, const EpisodeBatch& other, std::size_t before);

/// Return a batch with one segment for each run of its segments.
EpisodeBatch merged(const EpisodeBatch& batch, const Runs& runs);

/// Return the batch without its first steps, of which it has more. A segment that loses some of its steps begins later
/// in its episode, and after more raw rewards; its recurrent state is a gap, unless the agent's infos have the states
/// of every step.
EpisodeBatch without_first_steps(const EpisodeBatch& batch, std::size_t num_steps);

}  // namespace rollserve::internal
