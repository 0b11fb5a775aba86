#pragma once

#include <rollserve/rollserve.h>

#include "json.h"

namespace conformance {

/// Take the fields `policies` and `policy_map`.
///
/// @throws Unsupported as all functions here do, for what the client does not have.
rollserve::Policies take_policies(Fields& from);

/// Return the map of some rules.
rollserve::PolicyMap policy_map_of(Json rules);

}  // namespace conformance
