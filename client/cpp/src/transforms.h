#pragma once

#include <optional>

#include "rollserve/transforms.h"
#include "rollserve/v1/environment.pb.h"

namespace rollserve::internal {

/// Write a transform into a message.
void write_transform(const Transform& transform, v1::Transform& message);

/// Return the transform that a message describes; nothing for a kind that only later clients know.
std::optional<Transform> transform_of(const v1::Transform& message);

}  // namespace rollserve::internal
