#include "rollserve/multi_agent_batch.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "batch_fields.h"
#include "failures.h"
#include "infos.h"
#include "multi_agent_fields.h"
#include "runs.h"
#include "segments.h"

namespace rollserve {

namespace internal {

namespace {

void check_size(const std::string& name, std::size_t size, std::size_t expected) {
  if (size != expected) throw Malformed(name, std::to_string(expected) + " values", std::to_string(size));
}

void check_policy(const PolicyBatch& part, std::size_t num_agents) {
  const std::string path = "policies['" + part.policy + "'].";
  check_size(path + "agent_positions", part.agent_positions.size(), part.batch.num_segments());
  check_size(path + "environment_steps", part.env_steps.size(), part.batch.num_steps());
  check_size(path + "rewards_before", part.rewards_before.size(), part.batch.num_segments());
  for (const std::uint32_t position : part.agent_positions) {
    if (position >= num_agents) {
      throw Malformed(path + "agent_positions", "positions among " + std::to_string(num_agents) + " agents",
                      std::to_string(position));
    }
  }
}

void check_states(const char* name, const Optional<Array>& states, std::size_t num_rows) {
  if (states && (states->shape().empty() || states->num_rows() != num_rows)) {
    throw Malformed(name, std::to_string(num_rows) + " states", states->text());
  }
}

}  // namespace

void check_batch(const MultiAgentBatch& batch) {
  const std::size_t num_parts = batch.num_episodes();
  if (num_parts == 0) throw Malformed("lengths", "at least one episode", "none");
  for (const std::int64_t length : batch.lengths) {
    if (length < 1) throw Malformed("lengths", "at least 1", std::to_string(length));
  }
  check_size("episode_indices", batch.episode_indices.size(), num_parts);
  check_size("first_steps", batch.first_steps.size(), num_parts);
  check_size("terminated", batch.terminated.size(), num_parts);
  check_size("truncated", batch.truncated.size(), num_parts);
  check_size("agent_step_counts", batch.agent_step_counts.size(), num_parts);
  if (std::set<std::string>(batch.agents.begin(), batch.agents.end()).size() != batch.agents.size()) {
    throw Malformed("agents", "unique names", "one twice");
  }
  for (const PolicyBatch& part : batch.policies) check_policy(part, batch.agents.size());
  check_states("global_states", batch.global_states, batch.num_steps());
  check_states("last_global_states", batch.last_global_states, num_parts);
  if (batch.global_states.has_value() != batch.last_global_states.has_value()) {
    throw Malformed("last_global_states", "states beside global_states", "none of one of both");
  }
}

namespace {

/// Return a part without the steps that its segments of an episode made before an environment step.
PolicyBatch without_steps_before(const PolicyBatch& part, std::uint64_t episode_index, std::uint64_t env_step) {
  std::vector<PolicyBatch> kept;
  std::size_t row = 0;
  for (std::size_t i = 0; i < part.batch.num_segments(); ++i) {
    const auto length = static_cast<std::size_t>(part.batch.lengths[i]);
    std::size_t dropped = 0;
    if (part.batch.episode_indices[i] == episode_index) {
      while (dropped < length && part.env_steps[row + dropped] < env_step) ++dropped;
    }
    const std::size_t first_row = std::exchange(row, row + length);
    if (dropped == length) continue;
    PolicyBatch segment = segments_of(part, i, i + 1, first_row);
    if (dropped > 0) {
      segment.batch = without_first_steps(segment.batch, dropped);
      segment.env_steps.erase(segment.env_steps.begin(), segment.env_steps.begin() + static_cast<long>(dropped));
      segment.rewards_before = {0};
    }
    kept.push_back(std::move(segment));
  }
  return kept.empty() ? PolicyBatch{} : concatenated(part.policy, std::move(kept));
}

}  // namespace

MultiAgentBatch without_first_steps(const MultiAgentBatch& batch, std::size_t num_steps,
                                    std::uint64_t num_agent_steps) {
  const auto length = static_cast<std::size_t>(batch.lengths[0]);
  if (num_steps > length) {
    throw Malformed("lengths[0]", "at least the " + std::to_string(num_steps) + " steps that had come",
                    std::to_string(length));
  }
  MultiAgentBatch rest = batch;
  rest.policies.clear();
  for (const PolicyBatch& part : batch.policies) {
    PolicyBatch kept = without_steps_before(part, batch.episode_indices[0], batch.first_steps[0] + num_steps);
    if (!kept.env_steps.empty()) rest.policies.push_back(std::move(kept));
  }
  if (num_steps == length) {
    for_each_header(rest, batch, [](auto& to, const auto&) { to.erase(to.begin()); });
  } else {
    rest.first_steps[0] += num_steps;
    rest.lengths[0] -= static_cast<std::int64_t>(num_steps);
    rest.agent_step_counts[0] -= num_agent_steps;
  }
  if (batch.global_states) {
    rest.global_states = batch.global_states->slice(num_steps, batch.num_steps());
    rest.last_global_states =
        batch.last_global_states->slice(num_steps == length ? 1 : 0, batch.last_global_states->num_rows());
  }
  return rest;
}

namespace {

/// Return the global states of all batches; nothing if none of them has some.
Optional<Array> concatenated_states(const char* name, Optional<Array> MultiAgentBatch::*states,
                                    const std::vector<MultiAgentBatch>& batches) {
  std::vector<Array> parts;
  for (const MultiAgentBatch& batch : batches) {
    if (batch.*states) parts.push_back(*(batch.*states));
  }
  if (parts.empty()) return std::nullopt;
  if (parts.size() < batches.size()) throw Malformed(name, "states in all batches or in none", "some without");
  for (const Array& part : parts) {
    if (part.data_type() != parts[0].data_type() || part.row_shape() != parts[0].row_shape()) {
      throw Malformed(name, "rows as in " + parts[0].text(), part.text());
    }
  }
  return parts.size() == 1 ? parts[0] : concatenate_arrays(parts);
}

MultiAgentBatch concatenated_batches(std::vector<MultiAgentBatch> batches) {
  MultiAgentBatch joined;
  joined.agents = batches[0].agents;
  for (const MultiAgentBatch& batch : batches) {
    check_batch(batch);
    if (batch.agents != joined.agents) throw Malformed("agents", "the same in all batches", "others");
  }
  joined.global_states = concatenated_states("global_states", &MultiAgentBatch::global_states, batches);
  joined.last_global_states = concatenated_states("last_global_states", &MultiAgentBatch::last_global_states, batches);
  for (MultiAgentBatch& batch : batches) {
    for_each_header(joined, batch, [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); });
    for (PolicyBatch& part : batch.policies) joined.policies.push_back(std::move(part));
  }
  return joined;
}

}  // namespace

}  // namespace internal

std::size_t MultiAgentBatch::num_steps() const noexcept {
  return static_cast<std::size_t>(std::accumulate(lengths.begin(), lengths.end(), std::int64_t{0}));
}

std::uint64_t MultiAgentBatch::num_agent_steps() const noexcept {
  return std::accumulate(agent_step_counts.begin(), agent_step_counts.end(), std::uint64_t{0});
}

std::map<std::string, EpisodeBatch> MultiAgentBatch::by_policy() const {
  std::map<std::string, EpisodeBatch> batches;
  for (PolicyBatch& part : joined().policies) batches.emplace(part.policy, std::move(part.batch));
  return batches;
}

std::map<std::string, EpisodeBatch> MultiAgentBatch::by_agent() const {
  return internal::segments_by_agent(agents, joined().policies);
}

std::map<std::string, AgentSteps> MultiAgentBatch::joint() const { return internal::aligned_steps(*this); }

MultiAgentBatch MultiAgentBatch::joined() const {
  const internal::Runs runs = internal::runs_of(num_episodes(), [&](std::size_t i) {
    return episode_indices[i] == episode_indices[i - 1] &&
           first_steps[i] == first_steps[i - 1] + static_cast<std::uint64_t>(lengths[i - 1]);
  });
  if (runs.begins.size() == num_episodes() && internal::are_joined(policies)) return *this;
  MultiAgentBatch joined;
  joined.agents = agents;
  joined.episode_indices = internal::picked(episode_indices, runs.begins);
  joined.first_steps = internal::picked(first_steps, runs.begins);
  joined.lengths = internal::sums_of(lengths, runs);
  joined.terminated = internal::picked(terminated, runs.ends);
  joined.truncated = internal::picked(truncated, runs.ends);
  joined.agent_step_counts = internal::sums_of(agent_step_counts, runs);
  joined.policies = internal::joined_policies(policies);
  joined.global_states = global_states;
  if (last_global_states) joined.last_global_states = last_global_states->gather(runs.ends);
  joined.account = account;
  return joined;
}

MultiAgentBatch MultiAgentBatch::concatenate(std::vector<MultiAgentBatch> batches) {
  if (batches.empty()) internal::raise_invalid("batches", "at least one", "none");
  try {
    return internal::concatenated_batches(std::move(batches));
  } catch (const internal::Malformed& violation) {
    internal::raise({violation.what(), {StatusCode::InvalidArgument, reason::INVALID_VALUE, "batches", ""}});
  }
}

std::string MultiAgentBatch::text() const {
  std::string names;
  for (const PolicyBatch& part : policies) names += (names.empty() ? "" : ", ") + part.policy;
  return "MultiAgentBatch(" + std::to_string(num_episodes()) + " episodes, " + std::to_string(num_steps()) +
         " environment steps, policies " + names + ")";
}

}  // namespace rollserve
