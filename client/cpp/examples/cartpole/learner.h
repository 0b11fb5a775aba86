#pragma once

#include <rollserve/agents.h>
#include <rollserve/episode_batch.h>

#include <cstddef>
#include <random>
#include <vector>

#include "network.h"

/// Proximal policy optimization (https://arxiv.org/abs/1707.06347) of a policy for Discrete actions, with a value
/// network of its own.
class Learner {
 public:
  /// Make a learner that changes an agent's parameters in place.
  Learner(const rollserve::Parameters& parameters, std::size_t num_hidden, std::mt19937_64& random);

  /// Improve policy and value by some epochs over a batch of whole episodes, sampled with the current policy.
  void learn(const rollserve::EpisodeBatch& batch, double rate);

 private:
  struct Estimates {
    std::vector<float> advantages;  // normalized generalized advantage estimates of each step
    std::vector<float> targets;     // targets of the values of each step
  };

  Estimates estimate(const rollserve::EpisodeBatch& batch);

  std::mt19937_64& random_;
  Network policy_;
  Network value_;
};
