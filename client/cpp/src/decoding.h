#pragma once

#include <cstdint>
#include <string>

#include "rollserve/episode_batch.h"
#include "rollserve/multi_agent_batch.h"
#include "rollserve/v1/episode_batch.pb.h"
#include "rollserve/v1/multi_agent_batch.pb.h"

namespace rollserve::internal {

/// Return the columns in a list of named tensors, which give up their memory.
///
/// @param field the name that errors begin with.
/// @throws Malformed for a name that occurs twice, or a tensor that violates the contract.
Columns columns_of(const std::string& field, google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors);

/// Return a batch of a stream, whose message gives up the memory of its columns.
///
/// @param message the batch.
/// @param num_rows the number of rows of all workers of a fragment call, otherwise 0.
/// @throws Malformed for a message that violates the contract.
EpisodeBatch batch_of(v1::EpisodeBatch& message, std::uint64_t num_rows);

/// Return a batch of many agents in the same way.
MultiAgentBatch batch_of(v1::MultiAgentBatch& message);

}  // namespace rollserve::internal
