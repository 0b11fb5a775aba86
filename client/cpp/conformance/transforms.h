#pragma once

#include <rollserve/transforms.h>

#include "json.h"

namespace conformance {

/// Return a transform, which has one field: the settings by the name that the kind has in the protos.
///
/// @throws Unsupported for a kind or a setting that the client does not have.
rollserve::Transform transform_of(Fields transform);

}  // namespace conformance
