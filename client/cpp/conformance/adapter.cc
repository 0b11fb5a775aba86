// Runs the cases of the conformance kit: reads one line of JSON for each, and writes one with the results.
// docs/conformance.md describes both.

#include <algorithm>
#include <chrono>
#include <iostream>
#include <map>
#include <optional>
#include <string>
#include <thread>
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

/// Return the rows of columns (T, N, …) at some places, by step and row in one number.
rollserve::Columns rows_at(const rollserve::Columns& columns, const std::vector<std::size_t>& places) {
  rollserve::Columns chosen;
  for (const auto& [name, column] : columns) {
    rollserve::Shape shape(column.shape().begin() + 2, column.shape().end());
    shape.insert(shape.begin(), static_cast<std::int64_t>(places.size()));
    rollserve::Array rows = rollserve::Array::zeros(column.data_type(), shape);
    const std::size_t size = rows.row_bytes();
    for (std::size_t i = 0; i < places.size(); ++i) {
      const auto from = column.bytes().subspan(places[i] * size, size);
      std::copy(from.begin(), from.end(), rows.mutable_bytes().begin() + i * size);
    }
    chosen.set(name, rows);
  }
  return chosen;
}

/// Act in rows as they become ready, and describe what each has shown, by step and row.
Json act_apart(rollserve::Session& session, const rollserve::Columns& actions, const rollserve::Columns& infos) {
  const std::size_t num_rows = session.num_rows();
  const auto num_steps = static_cast<std::size_t>((*actions.begin()).second.shape().front());
  const std::size_t num_places = (num_steps + 1) * num_rows;
  const auto shape_of = [&](const rollserve::Array& column) {
    rollserve::Shape shape(column.shape().begin() + 1, column.shape().end());
    shape.insert(shape.begin(), {static_cast<std::int64_t>(num_steps + 1), static_cast<std::int64_t>(num_rows)});
    return shape;
  };
  rollserve::Columns observations;
  std::vector<double> rewards(num_places);
  for (std::size_t num_shown = 0; num_shown < num_places;) {
    const rollserve::DrivenStep step = session.recv();
    if (num_shown == 0) {
      for (const auto& [name, column] : step.observations) {
        observations.set(name, rollserve::Array::zeros(column.data_type(), shape_of(column)));
      }
    }
    std::vector<std::size_t> rows, places;  // that act
    for (std::size_t i = 0; i < step.rows.size(); ++i, ++num_shown) {
      const std::size_t place = step.row_steps[i] * num_rows + step.rows[i];
      rewards[place] = step.rewards[i];
      for (const auto& [name, column] : step.observations) {
        const std::size_t size = column.row_bytes();
        const auto from = column.bytes().subspan(i * size, size);
        rollserve::Array shown = observations.at(name);  // which shares its memory
        std::copy(from.begin(), from.end(), shown.mutable_bytes().begin() + place * size);
      }
      if (step.row_steps[i] == num_steps) continue;
      rows.push_back(step.rows[i]);
      places.push_back(place);
    }
    if (!rows.empty()) session.send(rows_at(actions, places), rows, rows_at(infos, places));
  }
  const rollserve::Shape shape{static_cast<std::int64_t>(num_steps + 1), static_cast<std::int64_t>(num_rows)};
  return shown_of(observations, rollserve::Array(std::move(rewards), shape));
}

/// Perform an operation of a session.
Json perform(rollserve::Session& session, Fields operation, bool resets_in_next_step) {
  const std::string name = operation.take("do");
  if (name == "observe") return {{"step", description_of(session.observe())}};
  if (name == "batch") return {{"batch", segments_of(session.batch())}};
  if (name == "end") return {{"account", description_of(session.end())}};
  if (name != "step" && name != "rows") throw Unsupported("no operation '" + name + "' of sessions");
  const rollserve::Columns actions = columns_of(operation.take("actions"));
  const rollserve::Columns infos = columns_of(operation.take_object("agent_infos"));
  operation.finish();
  if (name == "rows") return {{"rows", act_apart(session, actions, infos)}};
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
  Json failure = result_of_call([&] {
    session.emplace(client.sampler.drive(options));
    return Json();
  });
  const auto resume = [&](Fields fields) {
    double after_seconds = 0;
    fields.take("do");
    fields.read("after_seconds", after_seconds);
    fields.finish();
    const std::string token = session->token();
    session.reset();
    std::this_thread::sleep_for(std::chrono::duration<double>(after_seconds));
    session.emplace(client.sampler.resume_session(token, options));
    return Json();
  };
  Json results = Json::array();
  for (const Json& each : operations) {
    if (session && each.at("do") == "resume") {
      failure = result_of_call([&] { return resume(Fields(each)); });  // of the operations that follow
      results.push_back(Json::object());
    } else {
      results.push_back(session ? result_of_call([&] { return perform(*session, Fields(each), resets_in_next_step); })
                                : failure);
    }
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
