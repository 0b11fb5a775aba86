#pragma once

#include <map>
#include <string>
#include <vector>

#include "rollserve/multi_agent_batch.h"

namespace rollserve::internal {

/// Whether there is one part of each policy, by episode, whose segments all begin their agents' lives.
bool are_joined(const std::vector<PolicyBatch>& parts);

/// Return one part for each policy, by name: the segments by episode, agent and time, where parts of one life are one
/// segment. Each value is copied once.
///
/// @throws InvalidArgumentError for columns of one policy that do not fit together.
std::vector<PolicyBatch> joined_policies(const std::vector<PolicyBatch>& parts);

/// Return the segments of each agent that has some, by episode and time, whatever policies acted; throws alike.
std::map<std::string, EpisodeBatch> segments_by_agent(const std::vector<std::string>& agents,
                                                      const std::vector<PolicyBatch>& parts);

/// Return the steps of each agent that acted, aligned to the environment steps of a batch.
///
/// @throws InvalidArgumentError for observations or actions of one agent that differ in type or shape.
std::map<std::string, AgentSteps> aligned_steps(const MultiAgentBatch& batch);

/// Return the segments from `begin` to `end`, without `end`, whose first step is at a row; columns share memory.
PolicyBatch segments_of(const PolicyBatch& part, std::size_t begin, std::size_t end, std::size_t first_row);

/// Return the segments of all parts of one policy, in their order.
///
/// @throws InvalidArgumentError for columns that do not fit together.
PolicyBatch concatenated(const std::string& policy, std::vector<PolicyBatch> parts);

}  // namespace rollserve::internal
