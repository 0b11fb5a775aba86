#include "own_versions.h"

#include <random>

#include "encoding.h"

namespace rollserve::internal {

namespace {

std::string random_id() {
  static constexpr char digits[] = "0123456789abcdef";
  std::random_device random;
  std::string id;
  for (int i = 0; i < 4; ++i) {
    for (unsigned bits = random(), j = 0; j < 8; bits >>= 4, ++j) id += digits[bits & 0xf];
  }
  return id;
}

bool keeps_any(const v1::UpdateAgentRequest& request) {
  if (request.has_all_workers()) return !request.all_workers().has_agent();
  for (const v1::AgentUpdate& update : request.per_worker().updates()) {
    if (!update.has_agent()) return true;
  }
  return false;
}

bool keeps_any(const v1::UpdateEnvRequest& request) {
  if (request.has_all_workers()) return internal::keeps_any(request.all_workers());
  for (const v1::EnvironmentUpdate& update : request.per_worker().updates()) {
    if (internal::keeps_any(update)) return true;
  }
  return false;
}

}  // namespace

OwnVersions::OwnVersions(bool shared) : client_id_(shared ? "" : random_id()) {}

void OwnVersions::set_agent(std::int64_t policy, std::int64_t env) {
  const std::lock_guard<std::mutex> lock(mutex_);
  policy_ = policy;
  agent_env_ = env;
}

void OwnVersions::set_env(std::int64_t env) {
  const std::lock_guard<std::mutex> lock(mutex_);
  env_ = env;
}

template <class Options>
void OwnVersions::expect(Options& options, bool replaces_agent, bool names_env) {
  if (client_id_.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  const bool expects_policy = options.has_expected_policy_version();
  const bool expects_env = options.has_expected_environment_version();
  if (!expects_policy && !expects_env) {  // with an id, the numbers that the caller gave would not count
    options.set_client_id(client_id_);
  }
  if (policy_ && !expects_policy && !options.has_policy_version() && !replaces_agent) {
    options.set_expected_policy_version(*policy_);
  }
  // A whole agent of the call is checked against whatever environments are there.
  const auto env = env_ || replaces_agent ? env_ : agent_env_;
  if (env && !expects_env && !names_env && !options.has_environment_version()) {
    options.set_expected_environment_version(*env);
  }
}

void OwnVersions::expect_in(v1::SamplingOptions& options) {
  expect(options, options.agent_update().has_agent(), false);
}

void OwnVersions::expect_in(v1::EvaluationOptions& options) { expect(options, false, options.has_environment()); }

void OwnVersions::expect_in(v1::UpdateAgentRequest& request) {
  if (client_id_.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  request.set_client_id(client_id_);
  if (env_) request.set_expected_environment_version(*env_);
  if (policy_ && keeps_any(request)) request.set_expected_policy_version(*policy_);
}

void OwnVersions::expect_in(v1::UpdateEnvRequest& request) {
  if (client_id_.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  request.set_client_id(client_id_);
  if (env_ && keeps_any(request)) request.set_expected_environment_version(*env_);
}

void OwnVersions::expect_in(v1::CallEnvironmentsRequest& request) {
  if (client_id_.empty()) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  request.set_client_id(client_id_);
  if (env_ && !request.has_environment_version()) request.set_expected_environment_version(*env_);
}

}  // namespace rollserve::internal
