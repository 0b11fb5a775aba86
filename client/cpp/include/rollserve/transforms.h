#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "rollserve/array.h"

/// @file
/// Transforms: changes of what passes between an agent and the rows of its environment, which the server makes.
///
/// The comments on the messages of the same names in environment.proto say which settings the server refuses.

namespace rollserve {

/// Rewards by their signs: -1, 0 or 1.
struct SignRewards {};

/// Rewards moved into bounds, of which at least one is set.
struct ClipRewards {
  std::optional<double> low;   ///< The least reward; not set for no bound.
  std::optional<double> high;  ///< The greatest reward; not set for no bound.
};

/// Rewards times a factor, plus an offset.
struct ScaleRewards {
  double factor = 1;  ///< The factor, other than 0.
  double offset = 0;  ///< The offset.
};

/// Actions of a range that is mapped to the bounds of the environment's Boxes.
struct RescaleActions {
  std::optional<double> low;   ///< The action that stands for the lower bounds; -1 by default.
  std::optional<double> high;  ///< The action that stands for the upper bounds; 1 by default.
};

/// Actions moved into the bounds of the environment's Boxes.
struct ClipActions {};

/// Observations of another type.
struct CastObservations {
  DataType data_type = DataType::Float32;  ///< The type, other than DataType::Bool.
  std::vector<std::string> leaves = {};    ///< The leaves of the observation space by name; empty for all Boxes.
};

/// Observations times a factor, plus an offset.
struct ScaleObservations {
  double factor = 1;                     ///< The factor, other than 0.
  double offset = 0;                     ///< The offset.
  std::vector<std::string> leaves = {};  ///< The leaves of the observation space by name; empty for all Boxes.
};

/// Observations whose bounds are mapped to other bounds; for Boxes of floats.
struct RescaleObservations {
  double low = 0;                        ///< The value of the lower bounds.
  double high = 1;                       ///< The value of the upper bounds.
  std::vector<std::string> leaves = {};  ///< The leaves of the observation space by name; empty for all Boxes.
};

/// A rectangle of each image, in pixels.
struct CropObservations {
  std::uint32_t top = 0;                 ///< The first line.
  std::uint32_t left = 0;                ///< The first column.
  std::uint32_t height = 0;              ///< The number of lines, at least 1.
  std::uint32_t width = 0;               ///< The number of columns, at least 1.
  bool channels_first = false;           ///< Whether images are (C, H, W), not (H, W) or (H, W, C).
  std::vector<std::string> leaves = {};  ///< The leaves of the observation space by name; empty for all Boxes.
};

/// Images of another size, in pixels.
struct ResizeObservations {
  std::uint32_t height = 0;              ///< The number of lines, from 1 to 4096.
  std::uint32_t width = 0;               ///< The number of columns, from 1 to 4096.
  bool channels_first = false;           ///< Whether images are (C, H, W), not (H, W) or (H, W, C).
  std::vector<std::string> leaves = {};  ///< The leaves of the observation space by name; empty for all Boxes.
};

/// Images of red, green and blue in shades of grey.
struct GrayscaleObservations {
  bool keep_channel = false;             ///< Whether the axis of the channels stays, with one channel.
  bool channels_first = false;           ///< Whether images are (3, H, W), not (H, W, 3).
  std::vector<std::string> leaves = {};  ///< The leaves of the observation space by name; empty for all Boxes.
};

/// Observations as one vector of all leaves, as `gymnasium.spaces.flatten` makes it.
struct FlattenObservations {};

/// A change of rewards, actions or observations.
using Transform = std::variant<SignRewards, ClipRewards, ScaleRewards, RescaleActions, ClipActions, CastObservations,
                               ScaleObservations, RescaleObservations, CropObservations, ResizeObservations,
                               GrayscaleObservations, FlattenObservations>;

}  // namespace rollserve
