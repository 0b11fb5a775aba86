#pragma once

#include "rollserve/multi_agent_batch.h"

namespace rollserve::internal {

/// Apply a function to each header of two batches of many agents, the vectors with an element for each part.
template <class Function>
void for_each_header(MultiAgentBatch& to, const MultiAgentBatch& from, Function function) {
  function(to.episode_indices, from.episode_indices);
  function(to.first_steps, from.first_steps);
  function(to.lengths, from.lengths);
  function(to.terminated, from.terminated);
  function(to.truncated, from.truncated);
  function(to.agent_step_counts, from.agent_step_counts);
}

/// Throw Malformed unless a batch has parts, a value of each header for each part, and as many rows as these say.
void check_batch(const MultiAgentBatch& batch);

/// Return the batch without the first environment steps of its first episode.
///
/// @param num_steps their number, at most as many as the episode has here.
/// @param num_agent_steps the number of steps of agents among them.
/// @throws Malformed for more steps.
MultiAgentBatch without_first_steps(const MultiAgentBatch& batch, std::size_t num_steps, std::uint64_t num_agent_steps);

}  // namespace rollserve::internal
