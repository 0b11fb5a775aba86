#pragma once

#include <cstddef>
#include <set>
#include <vector>

#include "rollserve/episode_batch.h"
#include "rollserve/multi_agent_batch.h"

namespace rollserve::internal {

/// Return the batches of a stream as one batch of whole episodes or fragments, with the account.
///
/// If an info of the environment has several shapes, the batches that have the first shape keep it, and the other
/// values count as dropped infos in the account.
///
/// @throws ServerError for batches that do not fit together, or an account of other numbers of episodes or steps.
EpisodeBatch join_batches(std::vector<EpisodeBatch> batches, Account account);

/// Return the batches of rounds as one batch, where consecutive segments of one episode are one segment within a round.
///
/// @param batches the batches.
/// @param begins the positions, among the segments of all batches, of the first segment of each round.
/// @throws ServerError for batches that do not fit together.
EpisodeBatch join_rounds(std::vector<EpisodeBatch> batches, const std::set<std::size_t>& begins);

/// Return the batches of a stream of many agents as one batch, with the account; throws in the same way.
MultiAgentBatch join_batches(std::vector<MultiAgentBatch> batches, Account account);

}  // namespace rollserve::internal
