/// Trainer for CartPole-v1 with PPO, through Rollserve's public client alone:
///
///     cartpole [HOST:PORT] [--onnx] [--seed N]
///
/// The loop is in train(); the algorithm is in learner.cc, the networks, their gradients and Adam are in network.cc.
/// With
/// `--onnx`, the policy goes to the server as a model in the ONNX format instead of an MLP.
///
/// The exit status is 0 if the mean return of 100 new episodes reaches 475, 1 if it does not, 2 for a wrong command
/// line, and 3 if the server cannot be used.

#include <rollserve/rollserve.h>

#include <chrono>
#include <cstdint>
#include <cstdio>
#include <exception>
#include <numeric>
#include <random>
#include <string>

#include "learner.h"
#include "onnx_model.h"

namespace {

constexpr const char* env = "CartPole-v1";
constexpr double solved_return = 475;
constexpr double trained_return = 490;
constexpr std::uint32_t num_evaluated = 100;
constexpr std::int64_t steps_per_iteration = 6144;
constexpr int max_iterations = 150;
constexpr double learning_rate = 2e-3;
constexpr std::size_t num_hidden = 32;

struct Options {
  std::string target = "127.0.0.1:50051";
  bool as_onnx = false;
  std::uint64_t seed = 0;
};

struct Result {
  double mean_return = 0;       // of the last evaluation
  std::uint64_t num_steps = 0;  // sampled steps, evaluations included
};

double mean(const std::vector<double>& values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

Result train(rollserve::Sampler& sampler, const Options& options) {
  const auto spaces = sampler.update_env(env);
  const auto agent = rollserve::MlpAgent::initial(spaces.observation_space, spaces.action_space,
                                                  {num_hidden, num_hidden}, options.seed);
  std::mt19937_64 random(options.seed);
  Learner learner(agent.parameters, num_hidden, random);

  // The first update sends the whole agent: its network, its head and its parameters.
  if (options.as_onnx) {
    rollserve::OnnxAgent model;
    model.model = onnx_model(agent.parameters);
    sampler.update_agent(model);
  } else {
    sampler.update_agent(agent);
  }

  Result result;
  for (int iteration = 1; iteration <= max_iterations; ++iteration) {
    // Whole episodes of the current policy, with at least that many steps in all.
    const rollserve::EpisodeBatch batch = sampler.obtain_samples(steps_per_iteration);
    result.num_steps += batch.num_steps();
    const double sampled = mean(batch.returns());
    std::printf("iteration %3d: mean return %5.1f, %ju steps\n", iteration, sampled,
                static_cast<std::uintmax_t>(result.num_steps));
    std::fflush(stdout);

    if (sampled >= trained_return) {
      const rollserve::Evaluation evaluation = sampler.evaluate(num_evaluated);
      result.num_steps = std::accumulate(evaluation.lengths.begin(), evaluation.lengths.end(), result.num_steps);
      result.mean_return = evaluation.return_summary.mean;
      if (result.mean_return >= solved_return) return result;
    }

    // The learner changes the agent's parameters in place. Later updates send them alone, for both kinds of agents.
    learner.learn(batch, learning_rate * (1 - iteration / (max_iterations + 1.0)));
    sampler.update_agent(agent.parameters);
  }
  return result;
}

Options parse(int argc, char** argv) {
  Options options;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument == "--onnx") {
      options.as_onnx = true;
    } else if (argument == "--seed" && i + 1 < argc) {
      options.seed = std::stoull(argv[++i]);
    } else if (argument.rfind("--", 0) == 0) {
      throw std::invalid_argument(argument);
    } else {
      options.target = argument;
    }
  }
  return options;
}

}  // namespace

int main(int argc, char** argv) {
  Options options;
  try {
    options = parse(argc, argv);
  } catch (const std::logic_error&) {
    std::fputs("usage: cartpole [HOST:PORT] [--onnx] [--seed N]\n", stderr);
    return 2;
  }
  try {
    rollserve::Sampler sampler = rollserve::connect(options.target);
    const auto began = std::chrono::steady_clock::now();
    const Result result = train(sampler, options);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - began).count();
    std::printf("demo: %s mean return %.1f over %u episodes, %ju steps in %.1f s, %.0f steps/s\n", env,
                result.mean_return, num_evaluated, static_cast<std::uintmax_t>(result.num_steps), seconds,
                static_cast<double>(result.num_steps) / seconds);
    return result.mean_return >= solved_return ? 0 : 1;
  } catch (const rollserve::Error& error) {
    std::fprintf(stderr, "demo: %s\n", error.what());
    return 3;
  }
}
