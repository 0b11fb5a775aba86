#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "rollserve/account.h"
#include "rollserve/array.h"
#include "rollserve/episode_batch.h"

/// @file
/// Episodes of environments with many agents: one EpisodeBatch for each policy, and views by agent and by step.

namespace rollserve {

/// The segments of N lives of agents, with T steps in all, in which a policy acted. A life goes from an agent's first
/// observation in an episode to its end.
struct PolicyBatch {
  std::string policy;  ///< The name of the policy.
  /// The segments, whose headers are those of the agents' lives, and count the agents' own steps; `policy_versions` has
  /// the versions of this policy.
  EpisodeBatch batch;
  std::vector<std::uint32_t> agent_positions;  ///< (N) The agent of each segment: its position among the agents.
  /// (T) The environment step of the episode in which each step was made, from 0. Of fragments, it may be one of an
  /// earlier fragment, where what followed was not known.
  std::vector<std::uint32_t> env_steps;
  /// (N) The sum of the rewards that the agent got in its life before its first action; 0 for segments that begin
  /// within a life. `episode_returns()` of the batch has them, and `returns()` has not.
  std::vector<double> rewards_before;
};

/// An agent's part in the T environment steps of a batch. Where the agent did not act, all but `acted` is 0.
struct AgentSteps {
  std::vector<bool> acted;       ///< (T) Whether the agent acted in the step.
  Columns observations;          ///< (T, *O), its observations before the step.
  Columns actions;               ///< (T, *A), its actions.
  Array rewards;                 ///< (T) float64, the rewards of its actions: what it got until it acted again.
  std::vector<bool> terminated;  ///< (T) Whether its life was terminated after the action.
  std::vector<bool> truncated;   ///< (T) Whether its life was truncated after the action.
  std::vector<std::int64_t> policy_versions;  ///< (T) The version of the policy that acted.
};

/// Parts of E episodes of an environment with many agents, or fragments of them, with T environment steps in all.
///
/// An episode has one segment for each life of each agent. All segments in which a policy acted are one EpisodeBatch.
/// Copies of a batch share the memory of its arrays.
struct MultiAgentBatch {
  std::vector<std::string> agents;             ///< The names of the environment's possible agents.
  std::vector<std::uint64_t> episode_indices;  ///< (E) The index of each episode; rising, except for fragments.
  std::vector<std::uint64_t> first_steps;      ///< (E) The number of environment steps of the episode before this part.
  std::vector<std::int64_t> lengths;           ///< (E) The number of environment steps, at least 1.
  /// (E) Whether the episode ended with its last step here, and an agent was terminated then.
  std::vector<bool> terminated;
  /// (E) Whether the episode ended with its last step here, and an agent was truncated then.
  std::vector<bool> truncated;
  /// (E) The number of steps of all agents, also of those whose policies are not delivered.
  std::vector<std::uint64_t> agent_step_counts;
  /// The policies that acted. The batches of a stream have one element for each version of a policy.
  std::vector<PolicyBatch> policies;
  /// (T, *S), the environment's global state before each environment step, with EnvSpec::global_state.
  Optional<Array> global_states;
  Optional<Array> last_global_states;  ///< (E, *S), the global state after the last step of each part, likewise.
  /// What became of everything that was simulated, in environment steps, for the call whose whole result the batch is.
  std::optional<Account> account;

  /// Return E, the number of episodes, or of parts of them.
  std::size_t num_episodes() const noexcept { return lengths.size(); }
  /// Return T, the number of environment steps.
  std::size_t num_steps() const noexcept;
  /// Return the number of steps of all agents, also of those whose policies are not delivered.
  std::uint64_t num_agent_steps() const noexcept;
  /// Whether a part has the last step of its episode.
  bool ended(std::size_t part) const { return terminated[part] || truncated[part]; }
  /// Return the segments in which each policy acted, by its name; in the order of episodes, agents and time.
  std::map<std::string, EpisodeBatch> by_policy() const;
  /// Return the segments of each agent that has some, by its name, whatever policies acted; in the order of episodes
  /// and time, in new arrays. Infos that only some of the policies have are gaps of the others.
  ///
  /// @throws InvalidArgumentError for policies whose infos of one name differ in shape.
  std::map<std::string, EpisodeBatch> by_agent() const;
  /// Return the steps of each agent that acted, by its name, aligned to the environment steps of all parts, as the rows
  /// of `global_states` are. Of fragments, a step is left out whose environment step an earlier batch has.
  ///
  /// @throws InvalidArgumentError for policies whose observations or actions for one agent differ in type or shape.
  std::map<std::string, AgentSteps> joint() const;
  /// Return the batch with one part for each episode, and one element of `policies` for each policy.
  ///
  /// @throws InvalidArgumentError for columns of one policy that do not fit together.
  MultiAgentBatch joined() const;
  /// Return the parts of all batches of one environment, in their order, without an account; joined() makes whole
  /// episodes of them.
  ///
  /// @throws InvalidArgumentError for no batches, other agents, or batches with global states beside others without.
  static MultiAgentBatch concatenate(std::vector<MultiAgentBatch> batches);
  /// Describe the batch in one line.
  std::string text() const;
};

}  // namespace rollserve
