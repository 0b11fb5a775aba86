#include "learner.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace {

constexpr double discount = 0.99;
constexpr double gae_lambda = 0.95;
constexpr double clip = 0.2;
constexpr double entropy_bonus = 0.01;
constexpr int num_epochs = 6;
constexpr std::size_t minibatch_size = 512;

/// Return the gradient of the loss by the logits of one step.
std::vector<float> policy_gradient(const std::vector<float>& logits, std::size_t action, double advantage,
                                   double old_log_prob) {
  std::vector<double> probs;
  double total = 0;
  for (const float logit : logits) total += probs.emplace_back(std::exp(logit - logits[action]));
  double entropy = 0;
  for (double& prob : probs) {
    prob /= total;
    entropy -= prob * std::log(prob);
  }
  const double ratio = std::exp(std::log(probs[action]) - old_log_prob);
  // The objective min(r A, clip(r) A) has no gradient where the clipped term is the smaller one.
  const bool is_clipped = advantage > 0 ? ratio >= 1 + clip : ratio <= 1 - clip;
  const double weight = is_clipped ? 0 : ratio * advantage;
  std::vector<float> gradient;
  for (std::size_t i = 0; i < probs.size(); ++i) {
    const double one_hot = i == action ? 1 : 0;
    gradient.push_back(
        static_cast<float>(weight * (probs[i] - one_hot) + entropy_bonus * probs[i] * (std::log(probs[i]) + entropy)));
  }
  return gradient;
}

void normalize(std::vector<float>& values) {
  double total = 0;
  double squares = 0;
  for (const float value : values) {
    total += value;
    squares += static_cast<double>(value) * value;
  }
  const auto count = static_cast<double>(values.size());
  const double mean = total / count;
  const double deviation = std::sqrt(squares / count - mean * mean) + 1e-8;
  for (float& value : values) value = static_cast<float>((value - mean) / deviation);
}

}  // namespace

Learner::Learner(const rollserve::Parameters& parameters, std::size_t num_hidden, std::mt19937_64& random)
    : random_(random), policy_(parameters), value_({policy_.num_inputs(), num_hidden, num_hidden, 1}, random) {}

void Learner::learn(const rollserve::EpisodeBatch& batch, double rate) {
  const auto observations = batch.observations.values<float>();
  const auto actions = batch.actions.values<std::int64_t>();
  const auto log_probs = batch.agent_infos.values<float>("log_prob");
  const auto [advantages, targets] = estimate(batch);
  std::vector<std::size_t> order(batch.num_steps());
  std::iota(order.begin(), order.end(), std::size_t{0});
  for (int epoch = 0; epoch < num_epochs; ++epoch) {
    std::shuffle(order.begin(), order.end(), random_);
    for (std::size_t begin = 0, count = 0; begin < order.size(); begin += count) {
      const std::size_t left = order.size() - begin;
      count = left < 2 * minibatch_size ? left : minibatch_size;
      for (std::size_t i = begin; i < begin + count; ++i) {
        const std::size_t step = order[i];
        const float* observation = observations.data() + step * policy_.num_inputs();
        const auto action = static_cast<std::size_t>(actions[step]);
        policy_.backward(policy_gradient(policy_.forward(observation), action, advantages[step], log_probs[step]));
        value_.backward({value_.forward(observation)[0] - targets[step]});
      }
      policy_.improve(rate, count);
      value_.improve(rate, count);
    }
  }
}

Learner::Estimates Learner::estimate(const rollserve::EpisodeBatch& batch) {
  const std::size_t size = value_.num_inputs();
  const float* observations = batch.observations.values<float>().data();
  const float* last_observations = batch.last_observations.values<float>().data();
  const auto rewards = batch.rewards.values<double>();
  Estimates estimates{std::vector<float>(batch.num_steps()), std::vector<float>(batch.num_steps())};
  std::size_t begin = 0;
  for (std::size_t segment = 0; segment < batch.num_segments(); ++segment) {
    const std::size_t end = begin + static_cast<std::size_t>(batch.lengths[segment]);
    // Behind a limit, the value of the last observation counts.
    double next_value = batch.terminated[segment] ? 0 : value_.forward(last_observations + segment * size)[0];
    double advantage = 0;
    for (std::size_t step = end; step-- > begin;) {
      const double value = value_.forward(observations + step * size)[0];
      advantage = rewards[step] + discount * next_value - value + discount * gae_lambda * advantage;
      estimates.advantages[step] = static_cast<float>(advantage);
      estimates.targets[step] = static_cast<float>(advantage + value);
      next_value = value;
    }
    begin = end;
  }
  normalize(estimates.advantages);
  return estimates;
}
