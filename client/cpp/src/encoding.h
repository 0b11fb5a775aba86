#pragma once

#include "rollserve/agents.h"
#include "rollserve/environments.h"
#include "rollserve/options.h"
#include "rollserve/v1/sampler_service.pb.h"

namespace rollserve::internal {

/// Return an update of the agent as a message. Errors are those of the arguments.
v1::AgentUpdate message_of(const AgentUpdate& update);

/// Return an MLP as a message, whose layers and parts follow from its parameters.
///
/// @throws InvalidArgumentError for parameters that are no MLP's, or a setting that the head does not have.
v1::MlpAgent message_of(const MlpAgent& agent);

/// Return an update of the environments as a message.
v1::EnvironmentUpdate message_of(const EnvUpdate& update);

/// Return an environment as a message.
v1::Environment message_of(const EnvSpec& env);

/// Whether an update keeps or changes any of the present environments.
bool keeps_any(const v1::EnvironmentUpdate& update);

/// Return a map from agents to policies as a message.
v1::PolicyMap message_of(const PolicyMap& policy_map);

/// Return the options of a sampling call as a message.
///
/// @throws InvalidArgumentError for an agent beside versions, or a larger one than a call may have.
v1::SamplingOptions message_of(const SamplingOptions& options, const Config& config);

/// Return the options of a session as a message.
v1::DriveSpec message_of(const DriveOptions& options, const Config& config);

/// Return the options of an evaluation as a message.
v1::EvaluationOptions message_of(const EvaluationOptions& options);

/// Write codecs in the order of preference.
void write_compressions(const std::vector<Compression>& codecs, google::protobuf::RepeatedField<int>& message);

}  // namespace rollserve::internal
