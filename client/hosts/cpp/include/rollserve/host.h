#pragma once

#include <rollserve/rows/v1/rows.pb.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <type_traits>
#include <variant>
#include <vector>

/// @file
/// The host of an environment: a process whose rows a worker of Rollserve steps. A program derives a class from
/// Environment, and calls serve().

namespace rollserve::host {

/// A value of a space: one tensor for each leaf, in the order of the space.
using Value = std::vector<v1::Tensor>;

/// A value as JSON.
struct Json {
  std::string text;  ///< The text.
};

/// Infos by name. In all rows, the values of a name have one type and shape, or are JSON.
using Infos = std::map<std::string, std::variant<v1::Tensor, Json>>;

/// What a reset or a step has led to.
struct Outcome {
  Value observation;        ///< The observation.
  double reward = 0;        ///< The reward; of a reset, of no meaning, as the flags.
  bool terminated = false;  ///< Whether the environment has ended the episode.
  bool truncated = false;   ///< Whether a limit has ended the episode.
  Infos infos = {};         ///< Infos.
};

/// One environment. An exception that it throws fails its row alone, whose next reset makes another environment.
class Environment {
 public:
  virtual ~Environment() = default;

  /// Return the space of observations.
  virtual v1::Space observation_space() const = 0;
  /// Return the space of actions. The actions that step() gets have its types and shapes, and the integers among them
  /// are in range; elements of a Box may be out of bounds.
  virtual v1::Space action_space() const = 0;
  /// Return the number of steps after which an episode is truncated; 0 for none.
  virtual std::uint64_t max_episode_steps() const { return 0; }
  /// Return whether an episode is more than a function of its seed and actions.
  virtual bool is_nondeterministic() const { return false; }

  /// Begin an episode. The options are a JSON object, or empty for none.
  virtual Outcome reset(std::uint64_t seed, const std::string& options_json) = 0;
  /// Make a step of an episode that has begun and not ended.
  virtual Outcome step(const Value& action) = 0;
};

/// An environment that is offered to workers.
struct Host {
  std::string name;                             ///< The name of the environment, for people.
  std::map<std::string, std::string> versions;  ///< Versions that determine what the environment does, by package.
  /// Make an environment with the arguments and the task of a request; throw if they are not understood.
  std::function<std::unique_ptr<Environment>(const rows::v1::Make&)> make;
};

/// Serve a host until its connections end, and return the exit status of the program.
///
/// It serves the worker whose socket is the descriptor in the environment variable `ROLLSERVE_ROWS_FD`, or with the
/// arguments `--listen HOST:PORT`, each worker that connects, in a process of its own.
int serve(const Host& host, int argc, char** argv);

/// Return the wire's type for elements of type T.
template <typename T>
constexpr v1::DataType data_type() {
  static_assert(std::is_arithmetic_v<T>, "expected numbers or truth values");
  if constexpr (std::is_same_v<T, bool>) return v1::DATA_TYPE_BOOL;
  if constexpr (std::is_same_v<T, float>) return v1::DATA_TYPE_FLOAT32;
  if constexpr (std::is_same_v<T, double>) return v1::DATA_TYPE_FLOAT64;
  constexpr bool has_sign = std::is_signed_v<T>;
  if constexpr (sizeof(T) == 1) return has_sign ? v1::DATA_TYPE_INT8 : v1::DATA_TYPE_UINT8;
  if constexpr (sizeof(T) == 2) return has_sign ? v1::DATA_TYPE_INT16 : v1::DATA_TYPE_UINT16;
  if constexpr (sizeof(T) == 4) return has_sign ? v1::DATA_TYPE_INT32 : v1::DATA_TYPE_UINT32;
  return has_sign ? v1::DATA_TYPE_INT64 : v1::DATA_TYPE_UINT64;
}

/// Return a tensor with a copy of elements in C order.
template <typename T>
v1::Tensor tensor(const T* elements, const std::vector<std::int64_t>& shape) {
  v1::Tensor made;
  made.set_data_type(data_type<T>());
  std::size_t size = sizeof(T);
  for (const std::int64_t length : shape) {
    made.add_shape(length);
    size *= static_cast<std::size_t>(length);
  }
  made.set_data(elements, size);
  return made;
}

/// Return a tensor of one dimension.
template <typename T>
v1::Tensor tensor(const std::vector<T>& elements) {
  return tensor(elements.data(), {static_cast<std::int64_t>(elements.size())});
}

/// Return a tensor of no dimension.
template <typename T>
v1::Tensor scalar(T value) {
  return tensor(&value, {});
}

/// Return the elements of a tensor, whose type has to be T.
template <typename T>
const T* values(const v1::Tensor& tensor) {
  return reinterpret_cast<const T*>(tensor.data().data());
}

/// Return the Box of the arrays of one dimension between two bounds, inclusive.
template <typename T>
v1::Space box(const std::vector<T>& low, const std::vector<T>& high) {
  v1::Space space;
  v1::BoxSpace& made = *space.mutable_box();
  made.set_data_type(data_type<T>());
  made.add_shape(static_cast<std::int64_t>(low.size()));
  *made.mutable_low() = tensor(low);
  *made.mutable_high() = tensor(high);
  return space;
}

/// Return the Discrete space of the integers from `start` to `start + n - 1`.
inline v1::Space discrete(std::int64_t n, std::int64_t start = 0) {
  v1::Space space;
  space.mutable_discrete()->set_n(n);
  space.mutable_discrete()->set_start(start);
  return space;
}

}  // namespace rollserve::host
