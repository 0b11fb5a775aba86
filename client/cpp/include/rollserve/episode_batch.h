#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rollserve/account.h"
#include "rollserve/array.h"

/// @file
/// Episodes as arrays: flat columns, lengths, and the observation after each last action.

namespace rollserve {

/// N segments, which are episodes or parts of episodes, with T steps in all, as flat columns.
///
/// The rows of a segment are contiguous, and segments follow each other in the order of the headers, the vectors with
/// an element for each segment. Copies of a batch, segment() and split() share the memory of its arrays.
struct EpisodeBatch {
  Columns observations;       ///< (T, *O), the observations before each step.
  Columns last_observations;  ///< (N, *O), the observations after the last step of each segment.
  Columns actions;            ///< (T, *A), the actions of each step.
  Array rewards;              ///< (T) float64, the reward of each step.
  Columns agent_infos;        ///< (T, *I), infos of the agent, such as `log_prob`.
  Columns env_infos;          ///< (T, *I), infos of the environment's steps.
  Columns episode_infos;      ///< (N, *I), infos of the environment's resets.
  Columns initial_states;     ///< (N, *H), recurrent states before the first step of each segment.
  Columns last_states;  ///< (N, *H), recurrent states after the last step, with SamplingOptions::return_last_states.
  /// (N), the values of the last observations, 0 where the segment terminated, of the type of the agent's info `value`;
  /// with SamplingOptions::return_last_values.
  Optional<Array> last_values;
  /// (T) float64, the rewards as the environment returned them, where transforms change rewards.
  Optional<Array> raw_rewards;
  /// (T, *A), the actions as the environment got them, where transforms change actions; otherwise empty.
  Columns env_actions;

  std::vector<std::int64_t> lengths;  ///< (N) The number of steps of each segment, at least 1.
  std::vector<bool> terminated;       ///< (N) Whether the last step reached a terminal state.
  /// (N) Whether a limit ended the episode at the last step. Both flags may be set. Neither is set for a part of an
  /// episode that goes on.
  std::vector<bool> truncated;
  std::vector<std::int64_t> policy_versions;   ///< (N) The version that acted.
  std::vector<std::uint64_t> episode_indices;  ///< (N) The index of the episode.
  std::vector<std::uint64_t> first_steps;      ///< (N) The number of steps of the episode before the segment.
  /// (N) The sum of the environment's own rewards of the episode before the segment, including earlier calls; NaN where
  /// the server does not tell.
  std::vector<double> returns_before;
  std::vector<std::uint32_t> env_seeds;  ///< (N) The seed that the environment was reset with.
  /// (N) The worker that the episode is bound to; empty if episodes are bound to none.
  std::vector<std::uint32_t> worker_indices;
  /// (N) The row that the segment ran in, over the rows of all workers; empty except for fragments.
  std::vector<std::uint64_t> row_indices;

  /// What became of everything that was simulated for the call whose whole result the batch is; not set for others.
  std::optional<Account> account;

  /// Return N, the number of segments.
  std::size_t num_segments() const noexcept { return lengths.size(); }
  /// Return T, the number of steps of all segments.
  std::size_t num_steps() const noexcept { return rewards.num_rows(); }
  /// Whether a segment has the last step of its episode.
  bool ended(std::size_t segment) const { return terminated[segment] || truncated[segment]; }
  /// Return the sum of the rewards of each segment, (N), added in the order of the steps.
  std::vector<double> returns() const;
  /// Return the sum of the environment's own rewards of each segment, (N), without transforms.
  std::vector<double> raw_returns() const;
  /// Return the sum of the environment's own rewards of each segment's episode up to the segment's last step, (N),
  /// including earlier calls; NaN where the server does not tell.
  std::vector<double> episode_returns() const;
  /// Return a batch of one segment, which shares the memory of this batch.
  EpisodeBatch segment(std::size_t segment) const;
  /// Return a batch for each segment; they share the memory of this batch.
  std::vector<EpisodeBatch> split() const;
  /// Return the batch with consecutive segments of one episode as one segment each.
  ///
  /// A segment is joined to the one before if both have the same episode index and policy version, if it begins with
  /// the step after the other's last, and if the other did not end the episode. Columns of steps share the memory of
  /// this batch.
  EpisodeBatch joined() const;
  /// Return the segments of all batches, in their order, in new arrays; of a single batch, its own arrays.
  ///
  /// Infos that a batch lacks become gaps. Worker and row indices are empty if one of the batches has none, and last
  /// values are not set. A batch without the environment's own rewards or actions, beside others that have them, has
  /// the agent's. The account is not set. Batches that are moved into the argument are freed column by column.
  ///
  /// @throws InvalidArgumentError for no batches, or columns that do not fit together.
  static EpisodeBatch concatenate(std::vector<EpisodeBatch> batches);
  /// Describe the batch in one line.
  std::string text() const;
};

}  // namespace rollserve
