#pragma once

#include "rollserve/account.h"
#include "rollserve/evaluation.h"
#include "rollserve/status.h"
#include "rollserve/v1/sampler_service.pb.h"

namespace rollserve::internal {

/// Return the account that a message describes.
Account account_of(const v1::Account& message);

/// Return the returns of agents that a message describes.
///
/// @throws Malformed unless there is a return and a policy for each agent in each episode.
AgentReturns agent_returns_of(const v1::AgentReturns& message);

/// Return the evaluation that a message describes, without its episodes; throws as agent_returns_of().
Evaluation evaluation_of(const v1::Evaluation& message);

/// Return the evaluation of a population that a message describes.
///
/// @throws Malformed unless there is a return for each episode of each member.
PopulationEvaluation evaluation_of(const v1::PopulationEvaluation& message);

/// Return the space that a message describes, which gives up the memory of its arrays.
///
/// @throws Malformed for a kind of space that this client does not know, or arrays that violate the contract.
Space space_of(v1::Space& message);

/// Return the result of an update that a message describes; throws as space_of().
EnvUpdated env_updated_of(v1::UpdateEnvResponse& message);

/// Return the status that a message describes; throws as space_of().
Status status_of(v1::GetSamplerResponse& message);

}  // namespace rollserve::internal
