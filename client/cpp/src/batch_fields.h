#pragma once

#include <cstdint>
#include <vector>

#include "rollserve/episode_batch.h"
#include "runs.h"

namespace rollserve::internal {

/// The form of a column: a value for each segment; an array of numbers, as raw rewards in the type of rewards; columns
/// that are the same in all messages of a stream; or infos, which can have gaps.
enum class ColumnKind { Header, Numbers, Rewards, Leaves, Infos };

/// Whether a column has a row for each step or for each segment.
enum class RowsOf { Steps, Segments };

/// Whether a segment that is joined of several parts has what the first or the last of them has.
enum class Joined { First, Last };

/// What the table of columns says of a column.
struct ColumnSpec {
  const char* name;
  ColumnKind kind;
  RowsOf rows_of;
  Joined joined;
  bool is_optional;  ///< Whether a batch can be without the column.
};

/// An entry of the table of columns.
template <class T, class Original, class Field>
struct Column : ColumnSpec {
  T EpisodeBatch::*values;
  Original original;  ///< The member that a batch without the column has in its place; null if there is none.
  Field field;        ///< Returns the address of the field of a message; null if there is none.
};

template <class T, class Original, class Field>
Column(ColumnSpec, T EpisodeBatch::*, Original, Field) -> Column<T, Original, Field>;

/// Return the number of rows that a batch has in a column.
inline std::size_t num_rows(const ColumnSpec& spec, const EpisodeBatch& batch) {
  return spec.rows_of == RowsOf::Steps ? batch.num_steps() : batch.num_segments();
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
