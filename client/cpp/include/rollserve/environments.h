#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "rollserve/spaces.h"
#include "rollserve/transforms.h"

/// @file
/// Environments as a client specifies and changes them. Their arguments are JSON text, written as the caller likes.

namespace rollserve {

/// How the rows of an environment are stepped; the numbers are those of the wire.
enum class Vectorization : int {
  Default = 0,  ///< The server's setting.
  Rows = 1,     ///< One by one.
  Native = 2,   ///< All rows of a worker at once, by the environment's own vector code.
  EnvPool = 3,  ///< All rows of a worker at once, by EnvPool.
};

/// Which unit of work the same seed, indices and versions give again; the numbers are those of the wire.
enum class Reproducibility : int {
  Unspecified = 0,  ///< Not known to this client.
  Episode = 1,      ///< Every episode, to the last bit.
  Worker = 2,       ///< At best everything that one worker does from its start on.
  Block = 3,        ///< Every block of episodes, to the last bit.
};

/// The interface of an environment with many agents; the numbers are those of the wire.
enum class MultiAgentApi : int {
  None = 0,      ///< The environment has one agent, and the interface of gymnasium.
  Parallel = 1,  ///< All agents act in each step, as in PettingZoo's parallel environments.
  Aec = 2,       ///< Agents act one after the other, as in PettingZoo's AEC environments; a step is one agent's action.
};

/// A class of `gymnasium.wrappers`.
struct Wrapper {
  std::string name;         ///< The name of the class.
  std::string kwargs_json;  ///< The keyword arguments without the environment: a JSON object; empty for none.
};

/// A task that an environment can be set to without being made again.
struct Task {
  std::string method;         ///< The method that sets the task.
  std::string argument_json;  ///< The method's only argument, as JSON.
};

/// The specification of an environment.
struct EnvSpec {
  /// Make a specification without an id.
  EnvSpec() = default;
  /// Make a specification of an id, with keyword arguments as a JSON object such as `{"max_episode_steps": 200}`.
  explicit EnvSpec(std::string env_id, std::string env_kwargs_json = {})
      : id(std::move(env_id)), kwargs_json(std::move(env_kwargs_json)) {}

  std::string id;  ///< An id of gymnasium, such as `CartPole-v1`; or `module:Id`, `module:Class` or `profile:NAME`.
  std::string kwargs_json;            ///< The keyword arguments of `gymnasium.make`: a JSON object; empty for none.
  std::vector<Wrapper> wrappers;      ///< Wrappers around the environment, innermost first.
  std::vector<Transform> transforms;  ///< Changes of rewards, actions and observations, innermost first.
  std::optional<Task> task;           ///< The task that is set after the environment is made.
  std::string reset_options_json;     ///< The `options` of each reset: a JSON object; empty for none.
  Vectorization vectorization = Vectorization::Default;  ///< How rows are stepped.
  std::uint32_t num_rows = 0;  ///< The number of rows that each worker steps at once; 0 for the server's setting.
  std::uint32_t num_episodes_per_row = 0;  ///< The number of episodes of each row in a block; 0 for the server's.
  /// The number of bytes of UTF-8 that batches have of each text among the infos, at most 65,536; see Columns::texts().
  /// 0: infos that are no numbers are not delivered.
  std::uint32_t text_info_bytes = 0;
  /// The interface of an environment with many agents. `id` is then one of PettingZoo's registry, such as
  /// `classic/connect_four-v3`, or `mpe/NAME-vN` or `module:factory`.
  MultiAgentApi multi_agent = MultiAgentApi::None;
  bool global_state = false;  ///< Whether batches have the environment's global state; for many agents.
};

/// A change of the present environments. What is left out stays as it is; episodes start over in any case.
struct EnvChange {
  std::string kwargs_json;                        ///< Keyword arguments that are added, or replace the present ones.
  std::optional<Task> task;                       ///< The new task.
  std::optional<std::string> reset_options_json;  ///< The `options` of each reset from now on.
};

/// An update for each row of a worker, in their order; std::monostate leaves the row's environment as it is.
using RowEnvUpdates = std::vector<std::variant<std::monostate, EnvSpec, EnvChange>>;

/// One update of an environment.
using EnvUpdate = std::variant<EnvSpec, EnvChange, RowEnvUpdates>;

/// The result of an update of the environments.
struct EnvUpdated {
  std::int64_t env_version = 0;                                    ///< The version of the new environments.
  Space observation_space;                                         ///< The space of their observations.
  Space action_space;                                              ///< The space of their actions.
  Reproducibility reproducibility = Reproducibility::Unspecified;  ///< The class of their episodes.
  std::uint32_t num_rows = 0;              ///< The number of rows that each worker steps at once for a call.
  std::uint32_t num_episodes_per_row = 0;  ///< The number of episodes of each row in a block; 0 unless class Block.
  /// The names of the possible agents of an environment with many, whose spaces are Dict spaces of the agents' by these
  /// names; empty for an environment with one agent.
  std::vector<std::string> agents;
};

}  // namespace rollserve
