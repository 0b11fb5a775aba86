#pragma once

#include <cstdint>
#include <string>
#include <variant>
#include <vector>

#include "rollserve/array.h"

/// @file
/// Spaces of observations and actions, with the definitions of gymnasium.

namespace rollserve {

struct Space;
struct NamedSpace;

/// The arrays of one shape and type, each element within bounds.
struct BoxSpace {
  DataType data_type = DataType::Float32;  ///< The type of a value.
  Shape shape;                             ///< The shape of a value.
  Array low;   ///< The least value of each element, inclusive; of the space's shape, or a scalar for all elements.
  Array high;  ///< The greatest value of each element, inclusive; of the shape of `low`, or a scalar.
};

/// The integers `start`, `start` + 1, …, `start` + `n` - 1; a value is an int64 of shape ().
struct DiscreteSpace {
  std::int64_t n = 1;      ///< The number of values.
  std::int64_t start = 0;  ///< The least value.
};

/// The arrays of integers, each from a range of its own.
struct MultiDiscreteSpace {
  DataType data_type = DataType::Int64;  ///< The type of a value.
  Array nvec;                            ///< The number of values of each element, in the shape of a value.
  Array start;                           ///< The least value of each element, in the shape of `nvec`.
};

/// The arrays of zeros and ones, as int8.
struct MultiBinarySpace {
  Shape shape;  ///< The shape of a value.
};

/// Named subspaces, in the order of the environment's own space.
struct DictSpace {
  std::vector<NamedSpace> spaces;  ///< The subspaces.
};

/// Numbered subspaces.
struct TupleSpace {
  std::vector<Space> spaces;  ///< The subspaces; the path of each is its position, from 0.
};

/// A set of observations or actions. Each leaf is a column of batches.
struct Space {
  /// The kind of the space.
  std::variant<BoxSpace, DiscreteSpace, MultiDiscreteSpace, MultiBinarySpace, DictSpace, TupleSpace> kind;

  /// Return the size of a value after `gymnasium.spaces.flatten`, which is the input of an MLP.
  std::int64_t flat_size() const;
};

/// A subspace of a Dict.
struct NamedSpace {
  std::string name;  ///< The key, unique within its Dict.
  Space space;       ///< The subspace.
};

}  // namespace rollserve
