// Runs the cases of the conformance kit: reads one line of JSON for each, and writes one with the results.
// docs/conformance.md describes both.

#include <chrono>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "arguments.h"
#include "results.h"

namespace conformance {

namespace {

using rollserve::Sampler;

Json read_stream(Sampler& sampler, Fields& operation) {
  const auto options = sampling_options_of(Fields(operation.take_object("options")));
  const std::int64_t num_steps = operation.take("num_steps");
  std::optional<std::uint64_t> stop_after;
  operation.read("stop_after", stop_after);
  bool shows_progress = false;
  operation.read("progress", shows_progress);
  operation.finish();
  rollserve::Stream stream = sampler.stream_samples(num_steps, options);
  std::uint64_t num_batches = 0;
  std::size_t num_read_steps = 0;
  while (num_batches != stop_after) {
    const auto batch = stream.next();
    if (!batch) break;
    ++num_batches;
    num_read_steps += batch->num_steps();
  }
  Json result = {{"num_batches", num_batches}, {"num_steps", num_read_steps}};
  if (shows_progress) {
    result["progress"] = {{"num_simulated_steps", stream.num_simulated_steps()},
                          {"num_ended_episodes", stream.num_ended_episodes()}};
  }
  return result;
}

/// Make a call, and describe its batch and how long the call took.
template <class Function>
Json timed(Function call) {
  const auto begin = std::chrono::steady_clock::now();
  const rollserve::EpisodeBatch batch = call();
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return {{"batch", description_of(batch)}, {"seconds", seconds.count()}};
}

Json update_agent(Sampler& sampler, Fields& operation) {
  rollserve::UpdateAgentOptions options;
  operation.read("skip_if_identical", options.skip_if_identical);
  const rollserve::AgentUpdate agent = take_agent(operation);
  operation.finish();
  return {{"policy_version", sampler.update_agent(agent, options)}};
}

Json change_agent(Sampler& sampler, Fields& operation) {
  const rollserve::AgentUpdate change = agent_change_of(std::move(operation));
  return {{"policy_version", sampler.update_agent(change)}};
}

Json update_agent_per_worker(Sampler& sampler, Fields& operation) {
  const auto agents = take_updates(operation, take_agent);
  operation.finish();
  return {{"policy_version", sampler.update_agent_per_worker(agents)}};
}

Json update_env(Sampler& sampler, Fields& operation) {
  const rollserve::EnvUpdate env = take_env(operation);
  operation.finish();
  return {{"environment_version", sampler.update_env(env).env_version}};
}

Json update_env_per_worker(Sampler& sampler, Fields& operation) {
  const auto envs = take_updates(operation, take_env);
  operation.finish();
  return {{"environment_version", sampler.update_env_per_worker(envs).env_version}};
}

Json call_environments(Sampler& sampler, Fields& operation) {
  rollserve::CallEnvironmentsOptions options;
  operation.read("environment_version", options.env_version);
  const std::string method = operation.take("method");
  std::vector<std::string> arguments;
  for (const Json& argument : operation.take_object("arguments")) arguments.push_back(argument.dump());
  operation.finish();
  Json values = Json::array();
  for (const std::string& value : sampler.call_environments(method, arguments, options)) {
    values.push_back(Json::parse(value));
  }
  return {{"values", values}};
}

Json obtain_samples(Sampler& sampler, Fields& operation) {
  const auto options = sampling_options_of(Fields(operation.take_object("options")));
  const std::int64_t num_steps = operation.take("num_steps");
  operation.finish();
  return timed([&] { return sampler.obtain_samples(num_steps, options); });
}

Json obtain_exact_episodes(Sampler& sampler, Fields& operation) {
  const auto options = sampling_options_of(Fields(operation.take_object("options")));
  const std::int64_t num_episodes = operation.take("num_episodes_per_worker");
  operation.finish();
  return timed([&] { return sampler.obtain_exact_episodes(num_episodes, options); });
}

Json obtain_fragments(Sampler& sampler, Fields& operation) {
  rollserve::FragmentOptions options{sampling_options_of(Fields(operation.take_object("options"))), {}, {}, {}};
  operation.read("row_step_count", options.row_step_count);
  operation.read("soft_horizon", options.soft_horizon);
  const std::int64_t num_steps = operation.take("num_steps");
  operation.finish();
  return timed([&] { return sampler.obtain_fragments(num_steps, options); });
}

Json evaluate(Sampler& sampler, Fields& operation) {
  const auto options = evaluation_options_of(Fields(operation.take_object("options")));
  const std::uint32_t num_episodes = operation.take("num_episodes");
  operation.finish();
  const rollserve::Evaluation evaluation = sampler.evaluate(num_episodes, options);
  return {{"returns", evaluation.returns}, {"lengths", evaluation.lengths}};
}

Json status(Sampler& sampler, Fields& operation) {
  operation.finish();
  const rollserve::Status status = sampler.status();
  return {{"policy_version", status.policy_version},
          {"environment_version", status.env_version},
          {"num_workers", status.num_workers()}};
}

Json perform(Sampler& sampler, Fields operation) {
  static const std::map<std::string, Json (*)(Sampler&, Fields&)> functions = {
      {"update_env", update_env},
      {"change_env", update_env},
      {"update_env_per_worker", update_env_per_worker},
      {"call_environments", call_environments},
      {"update_agent", update_agent},
      {"change_agent", change_agent},
      {"update_agent_per_worker", update_agent_per_worker},
      {"obtain_samples", obtain_samples},
      {"obtain_exact_episodes", obtain_exact_episodes},
      {"obtain_fragments", obtain_fragments},
      {"stream_samples", read_stream},
      {"evaluate", evaluate},
      {"status", status}};
  const std::string name = operation.take("do");
  const auto function = functions.find(name);
  if (function == functions.end()) throw Unsupported("no operation '" + name + "'");
  return function->second(sampler, operation);
}

/// Return what a function returns, or its error, or why the client cannot do it, as the result of an operation.
template <class Function>
Json result_of_call(Function function) {
  try {
    return function();
  } catch (const rollserve::Error& error) {
    return {{"error", description_of(error)}};
  } catch (const Unsupported& missing) {
    return {{"unsupported", missing.what()}};
  }
}

/// Return the results of the operations of a case.
Json results_of(const Json& operations, Fields connect) {
  const std::string target = connect.take("target");
  const rollserve::Config config = config_of(std::move(connect));
  Json results = Json::array();
  std::optional<Sampler> sampler;
  const Json failure = result_of_call([&] {
    sampler.emplace(target, config);
    return Json();
  });
  for (const Json& operation : operations) {
    results.push_back(sampler ? result_of_call([&] { return perform(*sampler, Fields(operation)); }) : failure);
  }
  return results;
}

Json answer_to(const Json& line) {
  Json answer = {{"case", line.at("case")}};
  try {
    answer["results"] = results_of(line.at("operations"), Fields(line.at("connect")));
  } catch (const Unsupported& missing) {
    answer["unsupported"] = missing.what();
  }
  return answer;
}

}  // namespace

}  // namespace conformance

int main() {
  using conformance::Json;
  for (std::string line; std::getline(std::cin, line);) {
    const Json answer = conformance::answer_to(Json::parse(line));
    std::cout << answer.dump(-1, ' ', false, Json::error_handler_t::replace) << std::endl;
  }
}
