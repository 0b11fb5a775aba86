#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "rollserve/agents.h"
#include "rollserve/environments.h"
#include "rollserve/episode_batch.h"
#include "rollserve/errors.h"
#include "rollserve/evaluation.h"
#include "rollserve/multi_agent_sampler.h"
#include "rollserve/options.h"
#include "rollserve/session.h"
#include "rollserve/status.h"
#include "rollserve/stream.h"

/// @file
/// The client of a sampler.

namespace rollserve {

namespace internal {
class Connection;
}

/// A client of a sampler on a server: it sends agents and environments, and receives episodes. Threads can share it.
///
/// A call that fails throws an Error of the tree in errors.h. An update that fails changes nothing on the server. A
/// sampling call that fails or is cancelled uses up the indices of the episodes that it may have delivered, if it
/// continued the sampler's own sequence; a fragment call that fails or is cancelled leaves the rows where they were.
///
/// Calls sample with the agent and the environment that this client set, or fail with a PreconditionError
/// (reason::UNEXPECTED_VERSION) if another client has updated them since, unless Config::shared is set. What this
/// client has not set, or what a call names by its version, may be anybody's.
class Sampler {
 public:
  /// Make a client of the server at a target, such as `127.0.0.1:50051` or any name that gRPC knows. The first call
  /// connects.
  ///
  /// @throws InvalidArgumentError for a target or a configuration that cannot be used.
  explicit Sampler(const std::string& target, const Config& config = {});
  /// Take over another client's connection.
  Sampler(Sampler&&) noexcept;
  /// Close the connection, and take over another client's.
  Sampler& operator=(Sampler&&) noexcept;
  /// Close the connection.
  ~Sampler();

  /// Close the connection. Calls that are running in other threads, and later ones, throw a CancelledError.
  void close() noexcept;

  /// Give all workers a new agent, or new parameters or settings for the present one.
  ///
  /// @return the new policy version once every worker has it, or the current version if nothing was done.
  std::int64_t update_agent(const AgentUpdate& agent, const UpdateAgentOptions& options = {});
  /// Give each worker an update of its own, in the order of their indices; std::nullopt leaves the worker's agent as it
  /// is.
  ///
  /// @return the new policy version, as update_agent() returns it.
  std::int64_t update_agent_per_worker(const std::vector<std::optional<AgentUpdate>>& agents,
                                       const UpdateAgentOptions& options = {});

  /// Replace or change the environments of all workers.
  ///
  /// @return their version and spaces, once every worker has them.
  EnvUpdated update_env(const EnvUpdate& env, const CallOptions& options = {});
  /// Replace the environments of all workers by those of an id, such as `CartPole-v1`.
  EnvUpdated update_env(const std::string& id, const CallOptions& options = {});
  /// Give each worker an update of its own, in the order of their indices; std::nullopt leaves the worker's
  /// environments as they are. The spaces of all workers have to be equal.
  EnvUpdated update_env_per_worker(const std::vector<std::optional<EnvUpdate>>& envs, const CallOptions& options = {});

  /// Call a method of the workers' environments, which are made for the call.
  ///
  /// @param method the name of the method, which the server's operator has to allow.
  /// @param arguments_json the arguments, each as JSON.
  /// @param options options of the call.
  /// @return the values as JSON: one for each element that Status::envs has at this version of the environments.
  std::vector<std::string> call_environments(const std::string& method,
                                             const std::vector<std::string>& arguments_json = {},
                                             const CallEnvironmentsOptions& options = {});

  /// Sample whole episodes with at least `num_steps` steps in all: the fewest, in the order of their indices.
  EpisodeBatch obtain_samples(std::int64_t num_steps, const SamplingOptions& options = {});
  /// Sample an exact number of episodes on each worker: first all of worker 0, then all of worker 1, and so on.
  EpisodeBatch obtain_exact_episodes(std::int64_t num_episodes_per_worker, const SamplingOptions& options = {});
  /// Sample exactly `num_steps` steps, equally many of each row; episodes continue from call to call.
  ///
  /// Each segment is a fragment: the part of an episode that this call delivers. The comment on Fragments in
  /// sampler_service.proto says in which order they are.
  EpisodeBatch obtain_fragments(std::int64_t num_steps, const FragmentOptions& options = {});

  /// Stream what obtain_samples() returns, message by message. An episode may continue in the next message.
  ///
  /// @throws InvalidArgumentError for options that cannot be sent; others come from the stream.
  Stream stream_samples(std::int64_t num_steps, const SamplingOptions& options = {});
  /// Stream what obtain_exact_episodes() returns, message by message; throws as stream_samples().
  Stream stream_exact_episodes(std::int64_t num_episodes_per_worker, const SamplingOptions& options = {});
  /// Stream what obtain_fragments() returns, message by message; throws as stream_samples().
  Stream stream_fragments(std::int64_t num_steps, const FragmentOptions& options = {});

  /// Return the sampling calls for an environment with many agents. All other calls are the same for one.
  MultiAgentSampler multi_agent() const;

  /// Evaluate the agent on a number of episodes, in environments that only evaluations use. Nothing of the sampler's
  /// own changes, such as its sequence or its environments. Without a seed, every evaluation plays the same episodes.
  Evaluation evaluate(std::uint32_t num_episodes, const EvaluationOptions& options = {});
  /// Evaluate K parameter sets of the agent on a number of episodes each.
  ///
  /// @param parameters parameters with one more axis in front, of size K; those left out are the agent's own for all.
  /// @param num_episodes the number of episodes of each member.
  /// @param options options of the call.
  PopulationEvaluation evaluate_population(const Parameters& parameters, std::uint32_t num_episodes,
                                           const EvaluationOptions& options = {});

  /// Begin to act in all rows of the sampler's environments from here, step by step, in place of its agent.
  ///
  /// The same seed and the same actions give the same episodes, with any number of workers and after any crash. The
  /// token needs the scope `drive`.
  Session drive(const DriveOptions& options = {});
  /// Go on with a session that another client has begun with DriveOptions::lease, at the same step. That client loses
  /// it. Rounds that it may not have got come again.
  ///
  /// @param token the session's token.
  /// @param options those that it was begun with: `agent_infos`, `min_ready` and `record` count, and the limits of this
  /// session.
  /// @throws InvalidArgumentError with the reason SESSION_NOT_FOUND: it has ended, or belongs to another client.
  Session resume_session(const std::string& token, const DriveOptions& options = {});

  /// Return the state of the sampler and of its workers, and its counters.
  Status status(const CallOptions& options = {});

  /// Make an RPC for which there is no method; grpc.h has the channel, for stubs of the program's own.
  ///
  /// @param rpc the name of an RPC of SamplerService with a single answer, such as `Resize`.
  /// @param request the serialized request. Only its own fields say which versions it expects.
  /// @param options options of the call.
  /// @return the serialized response.
  std::string call(const std::string& rpc, const std::string& request, const CallOptions& options = {});

  /// @cond
  explicit Sampler(std::shared_ptr<internal::Connection> connection);
  const internal::Connection& connection() const { return *connection_; }
  /// @endcond

 private:
  std::shared_ptr<internal::Connection> connection_;
};

/// Return a client of the server at a target; as the constructor of Sampler.
inline Sampler connect(const std::string& target, const Config& config = {}) { return Sampler(target, config); }

}  // namespace rollserve
