/// Improves a policy that all agents of MPE's simple_spread share, by a (1 + 1) evolution strategy: it keeps a random
/// change of the parameters if the agents' mean return over the same episodes rises.
///
///     spread [HOST:PORT] [TRIALS]
///
/// The exit status is 0 if the return has risen, 1 if it has not, and 3 if the server cannot be used.

#include <rollserve/rollserve.h>

#include <cstdio>
#include <exception>
#include <random>
#include <stdexcept>
#include <string>

namespace {

constexpr std::uint32_t num_episodes = 50;
constexpr double step_size = 0.2;

/// Return the space of an agent, given the Dict space of all agents.
const rollserve::Space& space_of(const rollserve::Space& all, const std::string& agent) {
  for (const rollserve::NamedSpace& named : std::get<rollserve::DictSpace>(all.kind).spaces) {
    if (named.name == agent) return named.space;
  }
  throw std::out_of_range("no space of " + agent);
}

/// Return the mean return of an agent, over episodes that are always the same.
double mean_return(rollserve::Sampler& sampler) {
  rollserve::EvaluationOptions options;
  options.exploration.deterministic = true;
  return sampler.evaluate(num_episodes, options).agent_returns.value().by_policy().begin()->second.mean;
}

rollserve::Parameters changed(const rollserve::Parameters& parameters, std::mt19937_64& random) {
  std::normal_distribution<double> normal(0, step_size);
  rollserve::Parameters result;
  for (const auto& [name, array] : parameters) {
    rollserve::Array copied = array.copy();
    for (float& value : copied.mutable_values<float>()) value += static_cast<float>(normal(random));
    result.set(name, copied);
  }
  return result;
}

/// Print how often each agent stood still, by its steps in a batch.
void show(const rollserve::MultiAgentBatch& batch) {
  std::printf("%s\n", batch.text().c_str());
  for (const auto& [agent, steps] : batch.joint()) {
    const auto actions = steps.actions.values<std::int64_t>();
    int num_steps = 0;
    int num_still = 0;
    for (std::size_t i = 0; i < steps.acted.size(); ++i) {
      num_steps += steps.acted[i] ? 1 : 0;
      num_still += steps.acted[i] && actions[i] == 0 ? 1 : 0;
    }
    std::printf("%s stood still in %d of %d steps\n", agent.c_str(), num_still, num_steps);
  }
}

bool improve(rollserve::Sampler& sampler, int num_trials) {
  rollserve::EnvSpec spec("mpe/simple_spread-v3");
  spec.multi_agent = rollserve::MultiAgentApi::Parallel;
  const rollserve::EnvUpdated env = sampler.update_env(spec);
  // Each agent has a space by its name; here they are all alike.
  const std::string& first = env.agents.at(0);
  const auto agent =
      rollserve::MlpAgent::initial(space_of(env.observation_space, first), space_of(env.action_space, first), {16});
  sampler.update_agent(rollserve::Policies{{{"main", agent}},
                                           rollserve::PolicyMap{{rollserve::AgentsWithPrefix{"agent_"}, {{"main"}}}}});
  std::mt19937_64 random(0);
  rollserve::Parameters best = agent.parameters;
  const double initial = mean_return(sampler);
  double highest = initial;
  for (int trial = 1; trial <= num_trials; ++trial) {
    const rollserve::Parameters parameters = changed(best, random);
    sampler.update_agent(rollserve::Policies{{{"main", parameters}}});  // parameters alone; the map stays
    const double score = mean_return(sampler);
    if (score <= highest) continue;
    std::printf("trial %d: mean return of an agent %.2f\n", trial, score);
    best = parameters;
    highest = score;
  }
  sampler.update_agent(rollserve::Policies{{{"main", best}}});
  show(sampler.multi_agent().obtain_samples(1000));
  std::printf("spread: mean return of an agent %.2f, %.2f before %d trials\n", highest, initial, num_trials);
  return highest > initial;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    rollserve::Sampler sampler = rollserve::connect(argc > 1 ? argv[1] : "127.0.0.1:50051");
    return improve(sampler, argc > 2 ? std::stoi(argv[2]) : 60) ? 0 : 1;
  } catch (const std::exception& error) {
    std::fprintf(stderr, "spread: %s\n", error.what());
    return 3;
  }
}
