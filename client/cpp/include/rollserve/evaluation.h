#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include "rollserve/account.h"
#include "rollserve/environments.h"
#include "rollserve/episode_batch.h"
#include "rollserve/multi_agent_batch.h"

/// @file
/// Results of evaluations.

namespace rollserve {

/// Statistics of N numbers, and the uncertainty of their mean.
struct Summary {
  double mean = 0;                           ///< The mean.
  std::optional<double> standard_deviation;  ///< The sample standard deviation; not set if N is 1.
  std::optional<double> confidence_low;      ///< The lower end of the 95 % confidence interval of the mean.
  std::optional<double> confidence_high;     ///< The upper end of that interval.
};

/// A version of a policy.
struct PolicyVersion {
  std::string policy;        ///< The name of the policy.
  std::int64_t version = 0;  ///< The number of the update of the agent that made it.

  /// Return the name and the version, such as `main@3`.
  std::string text() const;
  /// Whether a version comes first, by name and number.
  friend bool operator<(const PolicyVersion& a, const PolicyVersion& b) {
    return std::tie(a.policy, a.version) < std::tie(b.policy, b.version);
  }
};

/// What P agents got in the N episodes of an evaluation, and which K policies acted for them.
struct AgentReturns {
  std::vector<std::string> agents;      ///< (P) The names of the environment's possible agents.
  std::vector<PolicyVersion> policies;  ///< (K) The versions of policies that acted.
  /// (N · P) The return of each agent in each episode: first of all agents in the first episode, and so on. NaN for an
  /// agent that made no step.
  std::vector<double> returns;
  /// (N · P) The position among `policies` of what acted for each agent, in the same order; -1 for an agent that made
  /// no step.
  std::vector<std::int32_t> policy_positions;

  /// Return the summary of the returns of each agent that made a step, over the episodes in which it made one.
  std::map<std::string, Summary> by_agent() const;
  /// Return the summary of each policy's returns. Where a policy acts for several agents in an episode, the mean of
  /// their returns counts, because they depend on each other.
  std::map<PolicyVersion, Summary> by_policy() const;
};

/// The result of an evaluation of N episodes, in the order of their indices.
struct Evaluation {
  std::vector<double> returns;            ///< (N) The return of each episode.
  std::vector<std::uint64_t> lengths;     ///< (N) The number of steps of each episode.
  std::vector<bool> terminated;           ///< (N) Whether the environment ended the episode.
  std::vector<bool> truncated;            ///< (N) Whether a limit ended the episode.
  Summary return_summary;                 ///< The summary of the returns.
  Summary length_summary;                 ///< The summary of the lengths.
  std::int64_t policy_version = 0;        ///< The version of the policy that acted.
  std::int64_t env_version = 0;           ///< The version of the environment; 0 for one from the request.
  std::uint64_t seed = 0;                 ///< The root seed of the episodes.
  std::uint64_t first_episode_index = 0;  ///< The index of the first episode.
  Reproducibility reproducibility = Reproducibility::Unspecified;  ///< The class of the episodes.
  Account account;                                                 ///< What was simulated and what became of it.
  /// The episodes, if EvaluationOptions::return_episodes asked for them and the environment has one agent.
  Optional<EpisodeBatch> episodes;
  /// What each agent got, if the environment has many. `returns` then are sums over all agents, and `lengths` count
  /// environment steps.
  std::optional<AgentReturns> agent_returns;
  /// The episodes, if the options asked for them and the environment has many agents.
  Optional<MultiAgentBatch> multi_agent_episodes;
};

/// The result of an evaluation of K members of a population on M episodes each: first all episodes of member 0, then
/// all of member 1, and so on.
struct PopulationEvaluation {
  std::vector<double> returns;            ///< (K · M) The return of each episode.
  std::vector<std::uint64_t> lengths;     ///< (K · M) The number of steps of each episode.
  std::uint32_t num_members = 0;          ///< K.
  std::uint32_t num_episodes = 0;         ///< M, the number of episodes of each member.
  std::uint64_t num_steps = 0;            ///< The number of steps of all episodes.
  std::int64_t policy_version = 0;        ///< The version of the policy that the members share.
  std::int64_t env_version = 0;           ///< The version of the environment; 0 for one from the request.
  std::uint64_t seed = 0;                 ///< The root seed of the episodes.
  std::uint64_t first_episode_index = 0;  ///< The index of the first episode of member 0.
  Reproducibility reproducibility = Reproducibility::Unspecified;  ///< The class of the episodes.
  Account account;                                                 ///< What was simulated and what became of it.

  /// Return the mean return of each member, (K).
  std::vector<double> mean_returns() const;
};

}  // namespace rollserve
