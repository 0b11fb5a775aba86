#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <string>

#include "rollserve/v1/sampler_service.pb.h"

namespace rollserve::internal {

/// The versions of the agent and the environment that a client has set itself, and expects in its calls. Thread-safe.
///
/// The server knows the updates of a client by the client's id. So a call that waits while the same client updates the
/// sampler samples with the new version, and only updates of other clients make it fail.
class OwnVersions {
 public:
  /// Start without versions.
  ///
  /// @param shared whether the client samples with whatever other clients set.
  explicit OwnVersions(bool shared);

  /// Record an accepted update of the agent.
  void set_agent(std::int64_t policy, std::int64_t env);
  /// Record an accepted update of the environments.
  void set_env(std::int64_t env);

  /// Make a call fail if other clients have set what it would sample with. Versions that the options name, or expect
  /// themselves, stay as they are.
  void expect_in(v1::SamplingOptions& options);
  /// Make an evaluation fail in the same way.
  void expect_in(v1::EvaluationOptions& options);
  /// Make an update fail if its agent has to fit other clients' environments, or keeps or changes their agents.
  void expect_in(v1::UpdateAgentRequest& request);
  /// Make an update fail if it would change other clients' environments.
  void expect_in(v1::UpdateEnvRequest& request);
  /// Make a call of environments fail if other clients have set them, unless it names their version.
  void expect_in(v1::CallEnvironmentsRequest& request);

 private:
  template <class Options>
  void expect(Options& options, bool replaces_agent, bool names_env);

  const std::string client_id_;  // empty for a client that samples with whatever other clients set
  std::mutex mutex_;
  std::optional<std::int64_t> policy_;
  std::optional<std::int64_t> env_;
  std::optional<std::int64_t> agent_env_;  // the version of the environments that the last agent was checked against
};

}  // namespace rollserve::internal
