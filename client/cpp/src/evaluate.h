#pragma once

#include "connection.h"
#include "rollserve/evaluation.h"

namespace rollserve::internal {

/// Make the call of an evaluation; if the connection or the server is lost, repeat it: nothing of an interrupted
/// evaluation is kept. The request changes so that it repeats the call that has begun.
///
/// @param returns_episodes whether the result has the episodes, which the request asks for.
Evaluation evaluate(Connection& connection, v1::EvaluateRequest& request, const TimeLimits& limits,
                    bool returns_episodes);

/// Make the call of an evaluation of a population, in the same way.
PopulationEvaluation evaluate(Connection& connection, v1::EvaluatePopulationRequest& request, const TimeLimits& limits);

}  // namespace rollserve::internal
