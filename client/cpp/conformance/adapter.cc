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
#include "policies.h"
#include "results.h"

namespace conformance {

namespace {

/// A client, whether its last update has made an environment with many agents, and what it has warned of.
struct Client {
  rollserve::Sampler sampler;
  const std::vector<std::string>& warnings;
  bool has_many_agents = false;
};

/// Read a stream, which a function starts.
template <class Start>
Json read(Fields& operation, Start start) {
  std::optional<std::uint64_t> stop_after;
  operation.read("stop_after", stop_after);
  bool shows_progress = false;
  operation.read("progress", shows_progress);
  operation.finish();
  auto stream = start();
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

Json read_stream(Client& client, Fields& operation) {
  const auto options = sampling_options_of(Fields(operation.take_object("options")));
  const std::int64_t num_steps = operation.take("num_steps");
  if (client.has_many_agents) {
    return read(operation, [&] { return client.sampler.multi_agent().stream_samples(num_steps, options); });
  }
  return read(operation, [&] { return client.sampler.stream_samples(num_steps, options); });
}

/// Make a call, and describe its batch and how long the call took.
///
/// @param call makes the call, with the sampler or with its calls for many agents.
template <class Function>
Json timed(Client& client, Fields& operation, Function call) {
  const Json views = operation.take_object("views");
  operation.finish();
  const auto begin = std::chrono::steady_clock::now();
  const auto seconds = [&] { return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count(); };
  if (!client.has_many_agents) {
    const rollserve::EpisodeBatch batch = call(client.sampler);
    const double duration = seconds();
    return {{"batch", description_of(batch)}, {"seconds", duration}};
  }
  const rollserve::MultiAgentBatch batch = call(client.sampler.multi_agent());
  const double duration = seconds();
  Json result = {{"multi_agent_batch", description_of(batch)}, {"seconds", duration}};
  result.update(views_of(batch, views));
  return result;
}

Json update_agent(Client& client, Fields& operation) {
  rollserve::UpdateAgentOptions options;
  operation.read("skip_if_identical", options.skip_if_identical);
  const rollserve::AgentUpdate agent = take_agent(operation);
  operation.finish();
  return {{"policy_version", client.sampler.update_agent(agent, options)}};
}

Json change_agent(Client& client, Fields& operation) {
  const rollserve::AgentUpdate change = agent_change_of(std::move(operation));
  return {{"policy_version", client.sampler.update_agent(change)}};
}

Json update_agent_per_worker(Client& client, Fields& operation) {
  const auto agents = take_updates(operation, take_agent);
  operation.finish();
  return {{"policy_version", client.sampler.update_agent_per_worker(agents)}};
}

Json update_policies(Client& client, Fields& operation) {
  const rollserve::Policies policies = take_policies(operation);
  operation.finish();
  return {{"policy_version", client.sampler.update_agent(policies)}};
}

Json updated(Client& client, const rollserve::EnvUpdated& env) {
  client.has_many_agents = !env.agents.empty();
  return {{"environment_version", env.env_version}};
}

Json update_env(Client& client, Fields& operation) {
  const rollserve::EnvUpdate env = take_env(operation);
  operation.finish();
  return updated(client, client.sampler.update_env(env));
}

Json update_env_per_worker(Client& client, Fields& operation) {
  const auto envs = take_updates(operation, take_env);
  operation.finish();
  return updated(client, client.sampler.update_env_per_worker(envs));
}

Json call_environments(Client& client, Fields& operation) {
  rollserve::CallEnvironmentsOptions options;
  operation.read("environment_version", options.env_version);
  const std::string method = operation.take("method");
  std::vector<std::string> arguments;
  for (const Json& argument : operation.take_object("arguments")) arguments.push_back(argument.dump());
  operation.finish();
  Json values = Json::array();
  for (const std::string& value : client.sampler.call_environments(method, arguments, options)) {
    values.push_back(Json::parse(value));
  }
  return {{"values", values}};
}

Json obtain_samples(Client& client, Fields& operation) {
  const auto options = sampling_options_of(Fields(operation.take_object("options")));
  const std::int64_t num_steps = operation.take("num_steps");
  return timed(client, operation, [&](auto&& calls) { return calls.obtain_samples(num_steps, options); });
}

Json obtain_exact_episodes(Client& client, Fields& operation) {
  const auto options = sampling_options_of(Fields(operation.take_object("options")));
  const std::int64_t num_episodes = operation.take("num_episodes_per_worker");
  return timed(client, operation, [&](auto&& calls) { return calls.obtain_exact_episodes(num_episodes, options); });
}

Json obtain_fragments(Client& client, Fields& operation) {
  rollserve::FragmentOptions options{sampling_options_of(Fields(operation.take_object("options"))), {}, {}, {}};
  operation.read("row_step_count", options.row_step_count);
  operation.read("soft_horizon", options.soft_horizon);
  const std::int64_t num_steps = operation.take("num_steps");
  return timed(client, operation, [&](auto&& calls) { return calls.obtain_fragments(num_steps, options); });
}

Json evaluate(Client& client, Fields& operation) {
  auto options = evaluation_options_of(Fields(operation.take_object("options")));
  for (Json& rules : operation.take_object("policy_maps")) {
    options.policy_maps.push_back(policy_map_of(std::move(rules)));
  }
  const std::uint32_t num_episodes = operation.take("num_episodes");
  operation.finish();
  const rollserve::Evaluation evaluation = client.sampler.evaluate(num_episodes, options);
  Json result = {{"returns", evaluation.returns}, {"lengths", evaluation.lengths}};
  if (evaluation.agent_returns) result["agent_returns"] = description_of(*evaluation.agent_returns);
  return result;
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

/// Perform an operation of a session.
Json perform(rollserve::Session& session, Fields operation, bool resets_in_next_step) {
  const std::string name = operation.take("do");
  if (name == "observe") return {{"step", description_of(session.observe())}};
  if (name == "batch") return {{"batch", segments_of(session.batch())}};
  if (name == "end") return {{"account", description_of(session.end())}};
  if (name != "step") throw Unsupported("no operation '" + name + "' of sessions");
  const rollserve::Columns actions = columns_of(operation.take("actions"));
  const rollserve::Columns infos = columns_of(operation.take_object("agent_infos"));
  operation.finish();
  const auto idle = resets_in_next_step ? session.observe().ended() : std::vector<bool>();
  return {{"step", description_of(session.step(actions, infos, idle))}};
}

Json drive(Client& client, Fields& operation) {
  const Json operations = operation.take("operations");
  bool resets_in_next_step = false;
  operation.read("next_step", resets_in_next_step);
  const rollserve::DriveOptions options = take_drive_options(operation);
  operation.finish();
  std::optional<rollserve::Session> session;
  const Json failure = result_of_call([&] {
    session.emplace(client.sampler.drive(options));
    return Json();
  });
  Json results = Json::array();
  for (const Json& each : operations) {
    results.push_back(session ? result_of_call([&] { return perform(*session, Fields(each), resets_in_next_step); })
                              : failure);
  }
  return {{"results", results}};
}

Json status(Client& client, Fields& operation) {
  operation.finish();
  const rollserve::Status status = client.sampler.status();
  return {{"policy_version", status.policy_version},
          {"environment_version", status.env_version},
          {"num_workers", status.num_workers()}};
}

Json warnings(Client& client, Fields& operation) {
  operation.finish();
  return {{"warnings", client.warnings}};
}

Json perform(Client& client, Fields operation) {
  static const std::map<std::string, Json (*)(Client&, Fields&)> functions = {
      {"update_env", update_env},
      {"change_env", update_env},
      {"update_env_per_worker", update_env_per_worker},
      {"call_environments", call_environments},
      {"update_agent", update_agent},
      {"change_agent", change_agent},
      {"update_agent_per_worker", update_agent_per_worker},
      {"update_policies", update_policies},
      {"obtain_samples", obtain_samples},
      {"obtain_exact_episodes", obtain_exact_episodes},
      {"obtain_fragments", obtain_fragments},
      {"stream_samples", read_stream},
      {"drive", drive},
      {"evaluate", evaluate},
      {"status", status},
      {"warnings", warnings}};
  const std::string name = operation.take("do");
  const auto function = functions.find(name);
  if (function == functions.end()) throw Unsupported("no operation '" + name + "'");
  return function->second(client, operation);
}

/// Return the results of the operations of a case.
Json results_of(const Json& operations, Fields connect) {
  const std::string target = connect.take("target");
  rollserve::Config config = config_of(std::move(connect));
  std::vector<std::string> warnings;
  config.warn = [&](const std::string& text) { warnings.push_back(text); };
  Json results = Json::array();
  std::optional<Client> client;
  const Json failure = result_of_call([&] {
    client.emplace(Client{rollserve::connect(target, config), warnings});
    return Json();
  });
  for (const Json& operation : operations) {
    results.push_back(client ? result_of_call([&] { return perform(*client, Fields(operation)); }) : failure);
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
