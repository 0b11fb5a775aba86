#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

/// @file
/// Maps from the agents of an environment to policies by name.

namespace rollserve {

/// A version of a policy that may act, with its weight among the choices of a rule.
struct PolicyChoice {
  std::string policy;  ///< The name of the policy.
  /// 0 for the policy's current version, -k for the k-th before it or the oldest that is held, or a version's number.
  std::int64_t version = 0;
  double weight = 1;  ///< From 0; its part of the sum of all weights is the chance. A choice of 0 never acts.
};

/// The agent of a name.
struct AgentNamed {
  std::string name;  ///< The name.
};

/// The agents whose names begin alike.
struct AgentsWithPrefix {
  std::string prefix;  ///< What their names begin with; empty for all agents.
};

/// The agent at a position among the environment's possible agents.
struct AgentAt {
  std::uint32_t position = 0;  ///< The position, from 0.
};

/// The policies of some agents.
struct PolicyRule {
  std::variant<AgentNamed, AgentsWithPrefix, AgentAt> agents;  ///< The agents that the rule is for.
  /// What may act. One of several is drawn for each episode from the episode's own random numbers, for all agents of
  /// the rule together.
  std::vector<PolicyChoice> choices;
};

/// Which policy acts for which agent: rules, no two for the same agents. Where several match an agent, its name comes
/// before its position, and that before the longest prefix.
///
///     rollserve::PolicyMap map = {{rollserve::AgentNamed{"player_0"}, {{"main"}}},
///                                 {rollserve::AgentsWithPrefix{"player_"}, {{"main", 0, 0.8}, {"main", -1, 0.2}}}};
using PolicyMap = std::vector<PolicyRule>;

}  // namespace rollserve
