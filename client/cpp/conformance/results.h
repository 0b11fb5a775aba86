#pragma once

#include <rollserve/rollserve.h>

#include "json.h"

namespace conformance {

/// Describe a batch by its headers, by digests of its columns, and by its account.
Json description_of(const rollserve::EpisodeBatch& batch);

/// Describe a batch of many agents in the same way.
Json description_of(const rollserve::MultiAgentBatch& batch);

/// Describe the views of a batch that are asked for.
Json views_of(const rollserve::MultiAgentBatch& batch, const Json& views);

/// Describe a batch without its account.
Json segments_of(const rollserve::EpisodeBatch& batch);

/// Describe a step of a session.
Json description_of(const rollserve::DrivenStep& step);

/// Describe what rows of a session have shown, (T, N, …).
Json shown_of(const rollserve::Columns& observations, const rollserve::Array& rewards);

/// Describe an account.
Json description_of(const rollserve::Account& account);

/// Describe the returns of agents.
Json description_of(const rollserve::AgentReturns& returns);

/// Describe an error by its class and its details.
Json description_of(const rollserve::Error& error);

}  // namespace conformance
