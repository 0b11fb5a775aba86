#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "rollserve/agents.h"
#include "rollserve/cancellation.h"
#include "rollserve/environments.h"

/// @file
/// Options of connections and calls. What is not set has its default.

namespace rollserve {

/// A lossless codec for columns of batches; the numbers are those of the wire.
enum class Compression : int {
  Lz4 = 1,   ///< Faster.
  Zstd = 2,  ///< Compresses better.
};

/// How to connect.
struct Config {
  std::string sampler;  ///< The name of the sampler; empty for the default one.
  /// How long a sampling call or an evaluation may go without any progress, and how long other calls may take. Updates
  /// of environments, and calls of their methods, may take 10 minutes more while the server can be reached, unless they
  /// have a timeout of their own. A call that begins while the server is away or stopping waits for it, or for the next
  /// one, for this time, if the server has answered before; otherwise it fails at once.
  /// `std::chrono::milliseconds::max()` stands for no limit.
  std::chrono::milliseconds timeout = std::chrono::seconds(60);
  std::uint32_t max_message_bytes = 8u << 20;  ///< The size of the largest message of a stream.
  /// The codecs that columns of batches may come in, the preferred one first.
  std::vector<Compression> compression;
  /// Whether calls use agents and environments that other clients set. By default, calls fail with a PreconditionError
  /// (reason::UNEXPECTED_VERSION) once another client has replaced or changed what this client set.
  bool shared = false;
  /// Whether to encrypt the connection although neither `ca` nor `cert` is given: one of the system's authorities then
  /// has to have signed the server's certificate.
  bool tls = false;
  /// Certificates of authorities, to encrypt the connection; one of them signed the server's. As `cert` and `key`, the
  /// path of a file in PEM format, or its content.
  std::string ca;
  std::string cert;  ///< A certificate of the client, for servers that ask for one.
  std::string key;   ///< Its private key.
  /// A bearer token, for servers that ask who their clients are. Connections that leave this machine have to be
  /// encrypted.
  std::string token;
  std::string token_file;  ///< A file with the token instead, which is read for each call.
  /// Called with what the server tells about a call while it runs, such as that no episode ends, by the thread that
  /// makes the call or reads its stream. By default, the warning goes to standard error.
  std::function<void(const std::string& warning)> warn;
};

/// How freely an agent acts. One number holds for all episodes; of several, the episode of index i has number i modulo
/// their count. Empty: the agent's own exploration.
struct Exploration {
  bool deterministic = false;        ///< Whether the agent acts without randomness; not together with the others.
  std::vector<double> temperatures;  ///< Divisors of the logits of actions.
  std::vector<double> noise_scales;  ///< Factors of the standard deviations of actions.
  std::vector<double> epsilons;      ///< Probabilities of random actions of an epsilon-greedy agent.
};

/// Options of calls that sample. The comments on SamplingOptions in sampler_service.proto say more.
struct SamplingOptions {
  /// An update of the agent for all workers, which the call makes before it samples with the new version. At most 4
  /// MiB; larger ones need Sampler::update_agent(). Not together with a version of the policy.
  std::optional<AgentUpdate> agent;
  /// The root seed of the episodes. By default, the sampler continues its own sequence, where no episode comes twice.
  std::optional<std::uint64_t> seed;
  /// The index of the first episode in the sequence of `seed`. Not for fragments.
  std::optional<std::uint64_t> first_episode_index;
  /// The number of steps after which an episode is truncated, over all of its fragments.
  std::optional<std::int64_t> max_episode_length;
  /// The version that the current policy must have. By default the one that this client has set last, if
  /// `policy_version` is not set; see Config::shared.
  std::optional<std::int64_t> expected_policy_version;
  /// The version that the current environment must have, in the same way.
  std::optional<std::int64_t> expected_env_version;
  std::optional<std::int64_t> min_policy_version;     ///< The oldest version that may act.
  std::optional<std::int64_t> policy_version;         ///< The version that acts; the current one by default.
  std::optional<std::int64_t> env_version;            ///< The version of the environment; the current one by default.
  std::optional<std::uint32_t> expected_num_workers;  ///< The number of workers that the sampler must have.
  /// The time without progress after which the call ends with a DeadlineError; by default Config::timeout.
  std::optional<std::chrono::milliseconds> timeout;
  std::optional<std::chrono::milliseconds> deadline;  ///< The time that the whole call may take; no limit by default.
  /// The codecs that columns may come in, the preferred one first; by default Config::compression. Empty for none.
  std::optional<std::vector<Compression>> compression;
  Exploration exploration;     ///< How freely the agent acts.
  bool frames_once = true;     ///< Whether stacks of frames come with each frame once. The result is the same.
  bool prefetch = false;       ///< Whether workers go on after the call with what the same call would ask for next.
  bool return_states = false;  ///< Whether agent_infos have the recurrent state before each step.
  bool return_last_values = false;    ///< Whether the batch has `last_values`; the agent needs an info `value`.
  bool return_last_states = false;    ///< Whether the batch has `last_states`.
  bool blackhole = false;             ///< Whether to discard what is sampled, to measure sampling. Only for streams.
  bool skip_failed_episodes = false;  ///< Whether to leave out episodes whose environments fail in every attempt.
  /// The policies whose segments a MultiAgentBatch has; empty for all. The others act alike, and their steps count.
  std::vector<std::string> deliver;
  /// Whether the steps that a call asks for are those of all agents, also of agents whose policies are not delivered,
  /// instead of the environment's. For whole episodes with a number of steps.
  bool count_agent_steps = false;
  std::optional<Cancellation> cancellation;  ///< What ends the call from other threads.
};

/// Options of calls that sample fragments.
struct FragmentOptions : SamplingOptions {
  /// Whether an episode that reaches `max_episode_length` ends without a reset, so that the row's next episode begins
  /// where this one ends.
  bool soft_horizon = false;
  /// With `seed`, the number of steps that each row has made: its present position, or the one before the last call, to
  /// repeat that call. By default, a seed begins at its first step.
  std::optional<std::uint64_t> row_step_count;
  /// The fraction of the workers that have to make all their steps; as soon as they have, the others stop.
  std::optional<double> fraction_of_workers;
};

/// Options of calls that evaluate; SamplingOptions describes those that both have.
struct EvaluationOptions {
  std::optional<std::int64_t> policy_version;           ///< The version that acts.
  std::optional<std::int64_t> expected_policy_version;  ///< The version that the current policy must have.
  std::optional<std::int64_t> expected_env_version;     ///< The version that the current environment must have.
  std::optional<std::int64_t> min_policy_version;       ///< The oldest version that may act.
  std::optional<EnvSpec> env;               ///< Another environment to act in; the sampler's own stays as it is.
  std::optional<std::int64_t> env_version;  ///< The version of the sampler's environment; not together with `env`.
  std::optional<std::uint64_t> seed;        ///< The root seed; the default is the same for every evaluation.
  std::uint64_t first_episode_index = 0;    ///< The index of the first episode in the sequence of the seed.
  std::optional<std::int64_t> max_episode_length;     ///< The number of steps after which an episode is truncated.
  std::optional<std::chrono::milliseconds> timeout;   ///< The time without progress; by default Config::timeout.
  std::optional<std::chrono::milliseconds> deadline;  ///< The time that the whole call may take.
  Exploration exploration;                            ///< How freely the agent acts.
  bool skip_failed_episodes = false;                  ///< Whether to leave out episodes that fail in every attempt.
  /// Which policies act in an environment with many agents, instead of the sampler's own map: the episode of index i
  /// has the map at position i modulo their number. Not for populations.
  std::vector<PolicyMap> policy_maps;
  bool return_episodes = false;              ///< Whether the result has the episodes themselves; not for populations.
  bool different_episodes = false;           ///< Whether members have episodes of their own; only for populations.
  std::optional<Cancellation> cancellation;  ///< What ends the call from other threads.
};

/// Options of sessions. The comments on DriveSpec in sampler_service.proto say more.
struct DriveOptions {
  std::optional<std::uint64_t> seed;  ///< The root seed of the episodes; by default, they are new ones.
  /// The number of steps of each row in a recorded fragment. After a loss, a worker makes at most so many steps again.
  std::int64_t fragment_length = 128;
  std::optional<std::int64_t> max_episode_length;  ///< The number of steps after which an episode is truncated.
  /// An example of each info that comes with a row's actions, for `agent_infos` of the recorded batches, such as
  /// `{{"log_prob", Array::scalar(0.0f)}}`.
  Columns agent_infos;
  /// The number of rows that are enough for a step, which Session::recv() returns; 0 if all rows step together.
  std::uint64_t min_ready = 0;
  /// How long the session outlives its connection, at most an hour: it goes on by itself when the server is in reach
  /// again, and Sampler::resume_session() takes it up in another process.
  std::chrono::milliseconds lease{0};
  bool infos = false;                                ///< Whether each step has the environments' infos.
  bool record = true;                                ///< Whether the steps are recorded, for Session::batch().
  std::optional<std::int64_t> env_version;           ///< The version of the environment; the current one by default.
  std::optional<std::chrono::milliseconds> timeout;  ///< The time without progress; by default Config::timeout.
  std::optional<Cancellation> cancellation;          ///< What ends the session from other threads.
};

/// Options of calls with a single answer.
struct CallOptions {
  std::optional<std::chrono::milliseconds> timeout;  ///< The time that the call may take; by default Config::timeout.
  std::optional<Cancellation> cancellation;          ///< What ends the call from other threads.
};

/// Options of Sampler::call_environments().
struct CallEnvironmentsOptions : CallOptions {
  std::optional<std::int64_t> env_version;  ///< The version of the environments; the current one by default.
};

/// Options of updates of the agent.
struct UpdateAgentOptions : CallOptions {
  /// Whether to do nothing if each worker's agent is already, to the last bit, what the update would make of it.
  bool skip_if_identical = false;
};

}  // namespace rollserve
