#pragma once

/// @file
/// All of the client: connect() makes a Sampler, and its multi_agent() has the calls for many agents.

#include "rollserve/account.h"
#include "rollserve/agents.h"
#include "rollserve/array.h"
#include "rollserve/cancellation.h"
#include "rollserve/environments.h"
#include "rollserve/episode_batch.h"
#include "rollserve/errors.h"
#include "rollserve/evaluation.h"
#include "rollserve/multi_agent_batch.h"
#include "rollserve/multi_agent_sampler.h"
#include "rollserve/options.h"
#include "rollserve/policies.h"
#include "rollserve/reasons.h"
#include "rollserve/sampler.h"
#include "rollserve/session.h"
#include "rollserve/spaces.h"
#include "rollserve/status.h"
#include "rollserve/stream.h"
#include "rollserve/transforms.h"
