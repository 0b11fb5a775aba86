#pragma once

#include <rollserve/rollserve.h>

#include "json.h"

namespace conformance {

/// Return how to connect; the target is another field.
///
/// @throws Unsupported as all functions here do, for what the client does not have.
rollserve::Config config_of(Fields connect);

/// Take the environment of `update_env`.
rollserve::EnvSpec take_env(Fields& operation);

/// Take the field `agent` or `parameters`, of which one is there.
rollserve::AgentUpdate take_agent(Fields& from);

/// Return the options of a call that samples.
rollserve::SamplingOptions sampling_options_of(Fields options);

/// Return the options of an evaluation.
rollserve::EvaluationOptions evaluation_options_of(Fields options);

}  // namespace conformance
