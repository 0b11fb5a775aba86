#pragma once

#include "rollserve/episode_batch.h"

namespace rollserve::internal {

/// Throw Malformed unless a batch has segments, and a value of each header for each segment.
void check_headers(const EpisodeBatch& batch);

/// Throw Malformed unless the columns of a batch have as many rows as its headers say.
void check_columns(const EpisodeBatch& batch);

}  // namespace rollserve::internal
