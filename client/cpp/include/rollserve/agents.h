#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rollserve/array.h"
#include "rollserve/policies.h"
#include "rollserve/spaces.h"

/// @file
/// What a client sends as an agent: whole agents, or new parameters or settings for the present one.

namespace rollserve {

/// Parameters of an agent by name. As an update, they go into the present agent: all of an MLP, any of an ONNX or
/// Python agent, whose other parameters stay as they are.
using Parameters = Columns;

/// An action mask that an environment returns as an info with each observation.
struct InfoMask {
  std::string info;  ///< The name of the info.
};

/// An action mask that is a leaf of the observation space; the leaf is no part of an MlpAgent's input.
struct ObservationMask {
  std::string leaf;  ///< The name of the leaf.
};

/// The source of an agent's action mask, which says for each action of a Discrete or MultiDiscrete space whether it is
/// legal at a step; std::monostate for none. Batches have the mask as the agent's info `action_mask`.
using ActionMask = std::variant<std::monostate, InfoMask, ObservationMask>;

/// An agent that draws actions uniformly from the action space.
struct RandomAgent {
  ActionMask action_mask = {};  ///< The source of the action mask.
};

/// An agent that takes the same action at every step, for tests.
struct ConstantAgent {
  Columns action;  ///< One array for each leaf of the action space; the leaf of a plain space has the empty name.
  ActionMask action_mask = {};  ///< The source of the action mask; a call that takes a masked action fails.
};

/// The meaning of the output of an MlpAgent.
enum class Head {
  Categorical,       ///< The logits of a Discrete action.
  DiagonalGaussian,  ///< The means of a Box's elements.
  SquashedGaussian,  ///< The means before tanh, which maps samples into the bounds of a Box.
  MultiCategorical,  ///< The logits of all elements of a MultiDiscrete action, one after the other.
  Bernoulli,         ///< The logits of ones of a MultiBinary action.
  EpsilonGreedy,     ///< The Q-values of a Discrete action, of which the highest is taken, or a random one.
  Boltzmann,         ///< The Q-values of a Discrete action; divided by a temperature, they are logits.
};

/// The function that an MlpAgent applies to each element of a hidden layer; the numbers are those of the wire.
enum class Activation : int {
  Tanh = 1,      ///< The hyperbolic tangent.
  Relu = 2,      ///< max(x, 0).
  Elu = 3,       ///< x where x is positive, else exp(x) - 1.
  Gelu = 4,      ///< x · Φ(x), by the error function, as in PyTorch.
  GeluTanh = 5,  ///< JAX's approximation of GELU.
  Silu = 6,      ///< x / (1 + exp(-x)).
};

/// A multilayer perceptron that ends in a distribution over actions, evaluated in float32.
///
/// Layer i is `activation(norm(weight · input + bias))`; the last layer has no norm and no activation. The input is the
/// observation as `gymnasium.spaces.flatten` makes it. The names and shapes of the parameters say which layers and
/// parts there are, as the comment on MlpAgent in agent.proto describes them: `0/weight` (outputs, inputs) and `0/bias`
/// (outputs) and so on for each layer, `i/norm/weight` and `i/norm/bias` with layer norm, `value/weight` and
/// `value/bias` for a value on the last hidden layer, `value/0/weight` and so on for a value network of its own,
/// `log_std` for Gaussian heads that do not predict it, and `core/weight_ih` and so on for a recurrent core. With
/// `observation/mean` and `observation/variance`, float64 (inputs), observations are normalized first.
struct MlpAgent {
  Parameters parameters;                     ///< The parameters, in float32; those of the normalization in float64.
  Head head = Head::Categorical;             ///< The meaning of the output.
  Activation activation = Activation::Tanh;  ///< The activation of the hidden layers.
  std::optional<double> layer_norm_epsilon;  ///< What layer norm adds to the variance; 1e-5 by default.
  std::optional<double> min_log_std;         ///< The lower bound that log_std of a Gaussian head is clipped to.
  std::optional<double> max_log_std;         ///< The upper bound that log_std of a Gaussian head is clipped to.
  std::optional<double> epsilon;      ///< The probability of random actions of Head::EpsilonGreedy; 0 by default.
  std::optional<double> temperature;  ///< The divisor of the Q-values of Head::Boltzmann; 1 by default.
  std::optional<double> normalization_epsilon;  ///< What is added to `observation/variance`; 1e-8 by default.
  std::optional<double> normalization_clip;     ///< The bound of normalized observations; 10 by default.
  ActionMask action_mask = {};                  ///< The source of the action mask.

  /// Return an untrained agent for the spaces, as Sampler::update_env() and Sampler::status() return them.
  ///
  /// Its head is Categorical, DiagonalGaussian, MultiCategorical or Bernoulli, whichever fits the action space. Weights
  /// are normal with variance 1 / inputs; the last layer's standard deviation is a hundredth of that, so that the first
  /// policy is close to uniform. Biases and log_std are 0.
  ///
  /// @param observations the space of observations.
  /// @param actions the space of actions.
  /// @param hidden_sizes the size of each hidden layer, at least 1.
  /// @param seed the seed of the weights.
  /// @throws InvalidArgumentError for an action space that none of these heads is for, or a size below 1.
  static MlpAgent initial(const Space& observations, const Space& actions,
                          const std::vector<std::int64_t>& hidden_sizes = {64, 64}, std::uint64_t seed = 0);
};

/// The meaning of the outputs of an ONNX model.
enum class OnnxHead {
  Categorical,       ///< The output `logits`.
  DiagonalGaussian,  ///< The outputs `mean` and `log_std`.
  SquashedGaussian,  ///< The outputs `mean` and `log_std`; samples are mapped into the bounds by tanh.
  Actions,           ///< The output `action`, or `action/NAME` for each leaf, and optionally `log_prob`.
};

/// A model in the ONNX format. The comment on OnnxAgent in agent.proto describes its inputs and outputs.
struct OnnxAgent {
  std::string model;                           ///< The serialized ModelProto.
  OnnxHead head = OnnxHead::Categorical;       ///< The meaning of the outputs.
  std::map<std::string, std::string> inputs;   ///< The names of inputs by role, where they differ from the role.
  std::map<std::string, std::string> outputs;  ///< The names of outputs by role, where they differ from the role.
  std::vector<std::string> infos;              ///< The names of further outputs, which become agent infos.
  ActionMask action_mask = {};                 ///< The source of the action mask.
};

/// An agent in Python that is installed with the server.
struct PythonAgent {
  std::string name;             ///< The name of an entry point of the group `rollserve.agents`.
  std::string kwargs_json;      ///< The keyword arguments of its factory: a JSON object; empty for none.
  Parameters parameters;        ///< Its parameters.
  ActionMask action_mask = {};  ///< The source of the action mask, which the policy gets if it asks for it.
};

/// A change of settings of the present agent, a PythonAgent, which keeps its code and its other settings.
struct AgentChange {
  std::string kwargs_json;  ///< Keyword arguments that are added, or replace the present ones: a JSON object, or empty.
  Parameters parameters;    ///< Parameters that are added, or replace the present ones.
};

/// What a policy by name is updated by: a whole agent, which replaces any present one, or Parameters or an AgentChange.
using PolicyUpdate =
    std::variant<Parameters, RandomAgent, ConstantAgent, MlpAgent, OnnxAgent, PythonAgent, AgentChange>;

/// Policies by name, for an environment with many agents; or updates of some present policies. Policies that are left
/// out stay as they are, with their versions, as long as the map names them.
struct Policies {
  std::map<std::string, PolicyUpdate> updates;  ///< New or changed policies by their names.
  /// Which policy acts for which agent; by default the present map. At first, a policy acts for the agent of its name
  /// and for agents whose names are its name, `_` and more, and a single policy for all.
  std::optional<PolicyMap> policy_map = {};
};

/// A whole agent, which replaces any present one; Parameters or an AgentChange for the present agent; or Policies.
using AgentUpdate =
    std::variant<Parameters, RandomAgent, ConstantAgent, MlpAgent, OnnxAgent, PythonAgent, AgentChange, Policies>;

}  // namespace rollserve
