#pragma once

#include "connection.h"
#include "rollserve/evaluation.h"

namespace rollserve::internal {

/// Make the call of an evaluation; if the connection or the server is lost, repeat it: nothing of an interrupted
/// evaluation is kept. The request changes so that it repeats the call that has begun.
///
/// @param options the options of the call that are not in the request: whether the result has the episodes, and what
/// cancels the call.
Evaluation evaluate(Connection& connection, v1::EvaluateRequest& request, const TimeLimits& limits,
                    const EvaluationOptions& options);

/// Make the call of an evaluation of a population, in the same way.
PopulationEvaluation evaluate_population(Connection& connection, v1::EvaluatePopulationRequest& request,
                                         const TimeLimits& limits, const EvaluationOptions& options);

}  // namespace rollserve::internal
