#pragma once

#include <rollserve/rollserve.h>

#include <optional>
#include <utility>
#include <vector>

#include "json.h"

namespace conformance {

/// Return how to connect; the target is another field.
///
/// @throws Unsupported as all functions here do, for what the client does not have.
rollserve::Config config_of(Fields connect);

/// Take an environment, which has an `id`, or a change of the present one.
rollserve::EnvUpdate take_env(Fields& operation);

/// Take the field `agent`, `parameters` or `change`, of which one is there.
rollserve::PolicyUpdate take_policy(Fields& from);

/// Take one of the same fields, or `policies` and `policy_map`.
rollserve::AgentUpdate take_agent(Fields& from);

/// Return a change of the present agent.
rollserve::AgentChange agent_change_of(Fields change);

/// Take the field `updates`, which has null or the fields of an update for each worker.
template <class Update>
std::vector<std::optional<Update>> take_updates(Fields& operation, Update (*take)(Fields&)) {
  std::vector<std::optional<Update>> updates;
  for (Json& update : operation.take_object("updates")) {
    auto& added = updates.emplace_back();
    if (update.is_null()) continue;
    Fields fields(std::move(update));
    added = take(fields);
    fields.finish();
  }
  return updates;
}

/// Return the options of a call that samples.
rollserve::SamplingOptions sampling_options_of(Fields options);

/// Take the fields of a session.
rollserve::DriveOptions take_drive_options(Fields& operation);

/// Return arrays by name.
rollserve::Columns columns_of(const Json& json);

/// Return the options of an evaluation.
rollserve::EvaluationOptions evaluation_options_of(Fields options);

}  // namespace conformance
