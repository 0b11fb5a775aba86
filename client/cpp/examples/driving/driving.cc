/// Learns CartPole-v1 by acting from outside: the environments run on the server, and the policies in this program.
///
///     driving [HOST:PORT] [SEED]
///
/// It learns four weights by the cross-entropy method: candidates are drawn around a mean, each of them plays an
/// episode in one of the rows, and the best ones make the next mean and deviation.
///
/// The exit status is 0 if the mean return of 100 new episodes reaches 475, which gymnasium calls solved; 1 if it does
/// not; and 3 if the server cannot be used.

#include <rollserve/rollserve.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <random>
#include <string>
#include <vector>

namespace {

constexpr double solved_return = 475;
constexpr double trained_return = 350;  // of candidates, which deviate from the mean that does better
constexpr std::size_t num_evaluated = 100;
constexpr std::size_t num_candidates = 64;
constexpr std::size_t num_elites = 12;
constexpr int max_generations = 30;
constexpr double min_deviation = 0.1;
constexpr std::size_t nobody = SIZE_MAX;

/// Weights of an observation; the cart is pushed to the right where their product is positive.
using Weights = std::array<double, 4>;

/// Return the actions of all rows. A row without a policy goes on to the left, so that its episode ends soon.
std::vector<std::int64_t> actions_of(const rollserve::DrivenStep& step, const std::vector<std::size_t>& players,
                                     const std::vector<Weights>& policies) {
  std::vector<std::int64_t> actions;
  const float* observation = step.observations.values<float>().data();
  for (const std::size_t player : players) {
    double sum = 0;
    if (player != nobody) sum = std::inner_product(policies[player].begin(), policies[player].end(), observation, 0.0);
    actions.push_back(sum > 0 ? 1 : 0);
    observation += Weights().size();
  }
  return actions;
}

/// Play one episode with each of some policies, and return their returns.
std::vector<double> play(rollserve::Session& session, const std::vector<Weights>& policies) {
  std::vector<double> returns(policies.size());
  std::vector<std::size_t> players(session.num_rows(), nobody);  // the policy that each row plays
  rollserve::DrivenStep step = session.observe();
  std::vector<std::size_t> beginning = step.ended_rows;
  if (step.number == 0) {
    beginning.resize(session.num_rows());
    std::iota(beginning.begin(), beginning.end(), std::size_t{0});
  }
  std::size_t num_begun = 0;
  for (std::size_t num_playing = policies.size(); num_playing > 0;) {
    for (const std::size_t row : beginning) players[row] = num_begun < policies.size() ? num_begun++ : nobody;
    step = session.step(rollserve::Array(actions_of(step, players, policies)));
    for (std::size_t row = 0; row < players.size(); ++row) {
      if (players[row] != nobody) returns[players[row]] += step.rewards[row];
    }
    for (const std::size_t row : step.ended_rows) num_playing -= players[row] != nobody ? 1 : 0;
    beginning = step.ended_rows;
  }
  return returns;
}

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

/// Train until a generation reaches `trained_return`, for at most `max_generations`; return the last mean.
Weights train(rollserve::Session& session, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<double> normal;
  Weights center{};
  Weights deviation{1, 1, 1, 1};
  for (int generation = 1; generation <= max_generations; ++generation) {
    std::vector<Weights> candidates(num_candidates, center);
    for (Weights& candidate : candidates) {
      for (std::size_t i = 0; i < candidate.size(); ++i) candidate[i] += deviation[i] * normal(random);
    }
    const std::vector<double> returns = play(session, candidates);
    std::fprintf(stderr, "generation %2d: mean return %.1f\n", generation, mean(returns));
    std::vector<std::size_t> order(num_candidates);
    std::iota(order.begin(), order.end(), std::size_t{0});
    std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) { return returns[a] > returns[b]; });
    for (std::size_t i = 0; i < center.size(); ++i) {
      std::vector<double> elites;
      for (std::size_t place = 0; place < num_elites; ++place) elites.push_back(candidates[order[place]][i]);
      center[i] = mean(elites);
      for (double& weight : elites) weight = (weight - center[i]) * (weight - center[i]);
      deviation[i] = std::sqrt(mean(elites)) + min_deviation;
    }
    if (mean(returns) >= trained_return) break;
  }
  return center;
}

double learn(rollserve::Sampler& sampler, std::uint64_t seed) {
  sampler.update_env("CartPole-v1");
  rollserve::DriveOptions options;
  options.seed = seed;
  options.record = false;  // the candidates' returns are all it needs
  rollserve::Session session = sampler.drive(options);
  const auto began = std::chrono::steady_clock::now();
  const Weights policy = train(session, seed);
  const double mean_return = mean(play(session, std::vector<Weights>(num_evaluated, policy)));
  const std::uint64_t num_steps = session.end().num_simulated_steps;
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
  std::printf("demo: CartPole-v1 mean return %.1f over %zu episodes, %ju steps in %.1f s\n", mean_return, num_evaluated,
              static_cast<std::uintmax_t>(num_steps), seconds);
  return mean_return;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    rollserve::Sampler sampler = rollserve::connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
    return learn(sampler, argc > 2 ? std::stoull(argv[2]) : 0) >= solved_return ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "demo: %s\n", error.what());
    return 3;
  }
}
