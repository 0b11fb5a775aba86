#include "results.h"

#include <openssl/evp.h>
#include <openssl/sha.h>

#include <array>
#include <cmath>
#include <vector>

namespace conformance {

namespace {

using rollserve::Array;
using rollserve::Columns;

/// Return the SHA-256 of the elements of an array, in hexadecimal digits.
std::string digest_of(const Array& array) {
  std::array<unsigned char, SHA256_DIGEST_LENGTH> digest{};
  const auto bytes = array.bytes();
  EVP_Digest(bytes.data(), bytes.size(), digest.data(), nullptr, EVP_sha256(), nullptr);
  static constexpr char digits[] = "0123456789abcdef";
  std::string text;
  for (const unsigned char byte : digest) text += {digits[byte >> 4], digits[byte & 0xf]};
  return text;
}

Json column_of(const Array& array) {
  return {{"dtype", rollserve::name_of(array.data_type())}, {"shape", array.shape()}, {"sha256", digest_of(array)}};
}

Json leaves_of(const Columns& columns) {
  Json described = Json::object();
  for (const auto& [name, array] : columns) described[name] = column_of(array);
  return described;
}

Json infos_of(const Columns& infos) {
  Json described = Json::object();
  for (const auto& [name, array] : infos) {
    if (infos.is_mask(name)) continue;
    described[name] = column_of(array);
    if (const Array* mask = infos.find("_" + name)) described[name]["mask"] = digest_of(*mask);
  }
  return described;
}

/// Return numbers, with null for NaN, which JSON does not have.
Json sums_of(const std::vector<double>& sums) {
  Json described = Json::array();
  for (const double sum : sums) described.push_back(std::isnan(sum) ? Json() : Json(sum));
  return described;
}

}  // namespace

Json description_of(const rollserve::Account& account) {
  return {{"num_steps", account.num_steps},
          {"num_episodes", account.num_episodes},
          {"seed", std::to_string(account.seed)},
          {"num_resumptions", account.num_resumptions},
          {"num_non_finite_steps", account.num_non_finite_steps},
          {"dropped_infos", account.dropped_infos}};
}

namespace {

std::string kind_of(const rollserve::Error& error) {
  if (dynamic_cast<const rollserve::AccessError*>(&error)) return "access";
  if (dynamic_cast<const rollserve::InvalidArgumentError*>(&error)) return "invalid_argument";
  if (dynamic_cast<const rollserve::PreconditionError*>(&error)) return "precondition";
  if (dynamic_cast<const rollserve::LimitError*>(&error)) return "limit";
  if (dynamic_cast<const rollserve::UnavailableError*>(&error)) return "unavailable";
  if (dynamic_cast<const rollserve::CancelledError*>(&error)) return "cancelled";
  if (dynamic_cast<const rollserve::DeadlineError*>(&error)) return "deadline";
  return "server";
}

std::string name_of(rollserve::StatusCode code) {
  static constexpr const char* names[] = {
      "OK",        "CANCELLED",      "UNKNOWN",           "INVALID_ARGUMENT",   "DEADLINE_EXCEEDED",
      "NOT_FOUND", "ALREADY_EXISTS", "PERMISSION_DENIED", "RESOURCE_EXHAUSTED", "FAILED_PRECONDITION",
      "ABORTED",   "OUT_OF_RANGE",   "UNIMPLEMENTED",     "INTERNAL",           "UNAVAILABLE",
      "DATA_LOSS", "UNAUTHENTICATED"};
  const auto number = static_cast<std::size_t>(code);
  return number < std::size(names) ? names[number] : std::to_string(number);
}

}  // namespace

Json segments_of(const rollserve::EpisodeBatch& batch) {
  Json description = {{"episode_indices", batch.episode_indices},
                      {"first_steps", batch.first_steps},
                      {"lengths", batch.lengths},
                      {"terminated", batch.terminated},
                      {"truncated", batch.truncated},
                      {"policy_versions", batch.policy_versions},
                      {"env_seeds", batch.env_seeds},
                      {"returns", batch.returns()},
                      {"observations", leaves_of(batch.observations)},
                      {"last_observations", leaves_of(batch.last_observations)},
                      {"actions", leaves_of(batch.actions)},
                      {"rewards", {{"", column_of(batch.rewards)}}},
                      {"agent_infos", infos_of(batch.agent_infos)},
                      {"env_infos", infos_of(batch.env_infos)},
                      {"episode_infos", infos_of(batch.episode_infos)},
                      {"initial_states", infos_of(batch.initial_states)},
                      {"last_states", infos_of(batch.last_states)},
                      {"environment_actions", leaves_of(batch.env_actions)},
                      {"returns_before", sums_of(batch.returns_before)}};
  if (batch.raw_rewards) description["raw_rewards"] = {{"", column_of(*batch.raw_rewards)}};
  if (batch.last_values) description["last_values"] = {{"", column_of(*batch.last_values)}};
  return description;
}

namespace {

/// Describe values, one for each environment step, as the column of a plain space.
template <class T>
Json steps_of(const std::vector<T>& values) {
  return {{"", column_of(Array(values))}};
}

Json description_of(const rollserve::AgentSteps& steps) {
  return {{"acted", steps_of(steps.acted)},
          {"observations", leaves_of(steps.observations)},
          {"actions", leaves_of(steps.actions)},
          {"rewards", {{"", column_of(steps.rewards)}}},
          {"terminated", steps_of(steps.terminated)},
          {"truncated", steps_of(steps.truncated)},
          {"policy_versions", steps_of(steps.policy_versions)}};
}

}  // namespace

Json description_of(const rollserve::EpisodeBatch& batch) {
  Json description = segments_of(batch);
  description["account"] = description_of(batch.account.value());
  return description;
}

Json description_of(const rollserve::MultiAgentBatch& batch) {
  Json policies = Json::object();
  for (const rollserve::PolicyBatch& part : batch.policies) {
    Json described = segments_of(part.batch);
    described["agents"] = Json::array();
    for (const std::uint32_t position : part.agent_positions) {
      described["agents"].push_back(batch.agents.at(position));
    }
    described["env_steps"] = part.env_steps;
    described["rewards_before"] = part.rewards_before;
    policies[part.policy] = std::move(described);
  }
  Json description = {{"agents", batch.agents},
                      {"episode_indices", batch.episode_indices},
                      {"first_steps", batch.first_steps},
                      {"lengths", batch.lengths},
                      {"terminated", batch.terminated},
                      {"truncated", batch.truncated},
                      {"agent_step_counts", batch.agent_step_counts},
                      {"policies", std::move(policies)},
                      {"account", description_of(batch.account.value())}};
  if (batch.global_states) description["global_states"] = column_of(*batch.global_states);
  if (batch.last_global_states) description["last_global_states"] = column_of(*batch.last_global_states);
  return description;
}

Json views_of(const rollserve::MultiAgentBatch& batch, const Json& views) {
  Json described = Json::object();
  for (const std::string view : views) {
    Json& agents = described[view] = Json::object();
    if (view == "by_agent") {
      for (const auto& [agent, lives] : batch.by_agent()) agents[agent] = segments_of(lives);
    } else if (view == "joint") {
      for (const auto& [agent, steps] : batch.joint()) agents[agent] = description_of(steps);
    } else {
      throw Unsupported("no view '" + view + "'");
    }
  }
  return described;
}

Json description_of(const rollserve::DrivenStep& step) {
  return {{"number", step.number},
          {"episode_indices", step.episode_indices},
          {"env_seeds", step.env_seeds},
          {"terminated", step.terminated},
          {"truncated", step.truncated},
          {"ended_rows", step.ended_rows},
          {"rewards", steps_of(step.rewards)},
          {"observations", leaves_of(step.observations)},
          {"last_observations", leaves_of(step.last_observations)},
          {"infos", infos_of(step.infos)},
          {"last_infos", infos_of(step.last_infos)}};
}

Json shown_of(const Columns& observations, const Array& rewards) {
  return {{"observations", leaves_of(observations)}, {"rewards", {{"", column_of(rewards)}}}};
}

Json description_of(const rollserve::AgentReturns& returns) {
  Json policies = Json::array();
  for (const auto& policy : returns.policies) policies.push_back(policy.text());
  Json by_agent = Json::object();
  for (const auto& [agent, summary] : returns.by_agent()) by_agent[agent] = summary.mean;
  Json by_policy = Json::object();
  for (const auto& [policy, summary] : returns.by_policy()) by_policy[policy.text()] = summary.mean;
  return {{"agents", returns.agents},
          {"policies", policies},
          {"returns", sums_of(returns.returns)},
          {"policy_positions", returns.policy_positions},
          {"by_agent", by_agent},
          {"by_policy", by_policy}};
}

Json description_of(const rollserve::Error& error) {
  return {{"kind", kind_of(error)}, {"status", name_of(error.code())}, {"reason", error.reason()},
          {"field", error.field()}, {"message", error.what()},         {"request_id", error.request_id()}};
}

}  // namespace conformance
