#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "rollserve/account.h"
#include "rollserve/environments.h"
#include "rollserve/episode_batch.h"

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
  std::optional<EpisodeBatch> episodes;  ///< The episodes, if EvaluationOptions::return_episodes asked for them.
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
