#pragma once

#include <rollserve/rollserve.h>

#include "json.h"

namespace conformance {

/// Describe a batch by its headers, by digests of its columns, and by its account.
Json description_of(const rollserve::EpisodeBatch& batch);

/// Describe an error by its class and its details.
Json description_of(const rollserve::Error& error);

}  // namespace conformance
