#include "segments.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <utility>

#include "batch_fields.h"
#include "runs.h"

namespace rollserve::internal {

namespace {

/// Where a segment is: a part, its position there, and the row of its first step.
struct Place {
  const PolicyBatch* part;
  std::size_t position;
  std::size_t row;

  std::uint64_t episode_index() const { return part->batch.episode_indices[position]; }
  std::uint32_t agent_position() const { return part->agent_positions[position]; }
  std::uint32_t first_env_step() const { return part->env_steps[row]; }
};

std::vector<Place> places_of(const std::vector<PolicyBatch>& parts) {
  std::vector<Place> places;
  for (const PolicyBatch& part : parts) {
    std::size_t row = 0;
    for (std::size_t i = 0; i < part.batch.num_segments(); ++i) {
      places.push_back({&part, i, row});
      row += static_cast<std::size_t>(part.batch.lengths[i]);
    }
  }
  return places;
}

/// Return the segments at some places, in their order. Those that are consecutive are copied together.
PolicyBatch gathered(const std::string& policy, const std::vector<Place>& places) {
  const Runs runs = runs_of(places.size(), [&](std::size_t i) {
    return places[i].part == places[i - 1].part && places[i].position == places[i - 1].position + 1;
  });
  std::vector<PolicyBatch> parts;
  for (std::size_t run = 0; run < runs.begins.size(); ++run) {
    const Place& first = places[runs.begins[run]];
    parts.push_back(segments_of(*first.part, first.position, places[runs.ends[run]].position + 1, first.row));
  }
  return concatenated(policy, std::move(parts));
}

PolicyBatch merged_lives(PolicyBatch ordered) {
  const auto& agents = ordered.agent_positions;
  const Runs runs = runs_of(agents.size(), [&](std::size_t i) {
    return agents[i] == agents[i - 1] && follows(ordered.batch, i, ordered.batch, i - 1);
  });
  ordered.batch = merged(ordered.batch, runs);
  ordered.agent_positions = picked(ordered.agent_positions, runs.begins);
  ordered.rewards_before = picked(ordered.rewards_before, runs.begins);
  return ordered;
}

template <class T>
std::vector<T> part_of(const std::vector<T>& values, std::size_t begin, std::size_t end) {
  using Offset = typename std::vector<T>::difference_type;
  return {values.begin() + static_cast<Offset>(begin), values.begin() + static_cast<Offset>(end)};
}

}  // namespace

PolicyBatch segments_of(const PolicyBatch& part, std::size_t begin, std::size_t end, std::size_t first_row) {
  std::size_t end_row = first_row;
  for (std::size_t i = begin; i < end; ++i) end_row += static_cast<std::size_t>(part.batch.lengths[i]);
  return {part.policy, part_of(part.batch, first_row, end_row, begin, end), part_of(part.agent_positions, begin, end),
          part_of(part.env_steps, first_row, end_row), part_of(part.rewards_before, begin, end)};
}

PolicyBatch concatenated(const std::string& policy, std::vector<PolicyBatch> parts) {
  PolicyBatch joined;
  joined.policy = policy;
  std::vector<EpisodeBatch> batches;
  for (PolicyBatch& part : parts) {
    batches.push_back(std::move(part.batch));
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(joined.agent_positions, part.agent_positions);
    append(joined.env_steps, part.env_steps);
    append(joined.rewards_before, part.rewards_before);
  }
  joined.batch = EpisodeBatch::concatenate(std::move(batches));
  return joined;
}

bool are_joined(const std::vector<PolicyBatch>& parts) {
  std::set<std::string> policies;
  for (const PolicyBatch& part : parts) {
    const auto& steps = part.batch.first_steps;
    const auto& indices = part.batch.episode_indices;
    const bool begins_lives = std::all_of(steps.begin(), steps.end(), [](std::uint64_t step) { return step == 0; });
    if (!policies.insert(part.policy).second || !begins_lives) return false;
    if (!std::is_sorted(indices.begin(), indices.end())) return false;
  }
  return true;
}

std::vector<PolicyBatch> joined_policies(const std::vector<PolicyBatch>& parts) {
  std::map<std::string, std::vector<Place>> policies;
  for (const Place& place : places_of(parts)) policies[place.part->policy].push_back(place);
  std::vector<PolicyBatch> joined;
  for (auto& [policy, places] : policies) {
    // Stable: the segments of an agent's episode stay in the order of time.
    std::stable_sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
      return std::make_tuple(a.episode_index(), a.agent_position()) <
             std::make_tuple(b.episode_index(), b.agent_position());
    });
    joined.push_back(merged_lives(gathered(policy, places)));
  }
  return joined;
}

std::map<std::string, EpisodeBatch> segments_by_agent(const std::vector<std::string>& agents,
                                                      const std::vector<PolicyBatch>& parts) {
  std::map<std::string, std::vector<Place>> places;
  for (const Place& place : places_of(parts)) places[agents.at(place.agent_position())].push_back(place);
  std::map<std::string, EpisodeBatch> batches;
  for (auto& [agent, its] : places) {
    std::stable_sort(its.begin(), its.end(), [](const Place& a, const Place& b) {
      return std::make_tuple(a.episode_index(), a.first_env_step()) <
             std::make_tuple(b.episode_index(), b.first_env_step());
    });
    batches.emplace(agent, gathered("", its).batch);
  }
  return batches;
}

}  // namespace rollserve::internal
