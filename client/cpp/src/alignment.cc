#include <cstring>
#include <unordered_map>
#include <utility>

#include "failures.h"
#include "segments.h"

namespace rollserve::internal {

namespace {

/// Where environment steps are among those of all parts of a batch.
class Rows {
 public:
  explicit Rows(const MultiAgentBatch& batch) : batch_(batch) {
    for (std::size_t i = 0; i < batch.num_episodes(); ++i) {
      parts_[batch.episode_indices[i]].push_back({i, num_steps_});
      num_steps_ += static_cast<std::size_t>(batch.lengths[i]);
    }
  }

  /// Return the number of all environment steps.
  std::size_t num_steps() const { return num_steps_; }

  /// Return the row of a step, or nothing for one that the batch does not have.
  std::optional<std::size_t> find(std::uint64_t episode_index, std::uint64_t env_step) const {
    const auto parts = parts_.find(episode_index);
    if (parts == parts_.end()) return std::nullopt;
    for (const auto& [part, first_row] : parts->second) {
      const std::uint64_t first_step = batch_.first_steps[part];
      const auto length = static_cast<std::uint64_t>(batch_.lengths[part]);
      if (env_step >= first_step && env_step - first_step < length) return first_row + (env_step - first_step);
    }
    return std::nullopt;
  }

 private:
  const MultiAgentBatch& batch_;
  std::unordered_map<std::uint64_t, std::vector<std::pair<std::size_t, std::size_t>>> parts_;
  std::size_t num_steps_ = 0;
};

Array zeros_like(const Array& model, std::size_t num_rows) {
  Shape shape = model.row_shape();
  shape.insert(shape.begin(), static_cast<std::int64_t>(num_rows));
  return Array::zeros(model.data_type(), std::move(shape));
}

Columns zeros_like(const Columns& models, std::size_t num_rows) {
  Columns zeros;
  for (const auto& [name, model] : models) zeros.set(name, zeros_like(model, num_rows));
  return zeros;
}

AgentSteps no_steps(const EpisodeBatch& model, std::size_t num_steps) {
  AgentSteps steps;
  steps.acted.resize(num_steps);
  steps.observations = zeros_like(model.observations, num_steps);
  steps.actions = zeros_like(model.actions, num_steps);
  steps.rewards = zeros_like(model.rewards, num_steps);
  steps.terminated.resize(num_steps);
  steps.truncated.resize(num_steps);
  steps.policy_versions.resize(num_steps);
  return steps;
}

/// Copy a row of an array to a row of another one.
void copy_row(const Array& from, std::size_t from_row, Array to, std::size_t row) {
  if (from.data_type() != to.data_type() || from.row_shape() != to.row_shape()) {
    raise_invalid("policies", "rows as in " + to.text() + " of the same agent", from.text());
  }
  const std::size_t count = from.row_bytes();
  if (count == 0) return;
  std::memcpy(to.mutable_bytes().data() + row * count, from.bytes().data() + from_row * count, count);
}

void copy_row(const Columns& from, std::size_t from_row, const Columns& to, std::size_t row) {
  for (const auto& [name, array] : from) copy_row(array, from_row, to.at(name), row);
}

/// Write the steps of a segment, whose first one is at a row of the batch.
void write_segment(const PolicyBatch& part, std::size_t segment, std::size_t first_row, const Rows& rows,
                   AgentSteps& steps) {
  const EpisodeBatch& batch = part.batch;
  const std::size_t end = first_row + static_cast<std::size_t>(batch.lengths[segment]);
  for (std::size_t from = first_row; from < end; ++from) {
    const auto row = rows.find(batch.episode_indices[segment], part.env_steps[from]);
    if (!row) continue;
    steps.acted[*row] = true;
    copy_row(batch.observations, from, steps.observations, *row);
    copy_row(batch.actions, from, steps.actions, *row);
    copy_row(batch.rewards, from, steps.rewards, *row);
    steps.policy_versions[*row] = batch.policy_versions[segment];
    steps.terminated[*row] = from + 1 == end && batch.terminated[segment];
    steps.truncated[*row] = from + 1 == end && batch.truncated[segment];
  }
}

}  // namespace

std::map<std::string, AgentSteps> aligned_steps(const MultiAgentBatch& batch) {
  const Rows rows(batch);
  std::map<std::string, AgentSteps> agents;
  for (const PolicyBatch& part : batch.policies) {
    std::size_t first_row = 0;
    for (std::size_t i = 0; i < part.batch.num_segments(); ++i) {
      const std::string& agent = batch.agents.at(part.agent_positions[i]);
      auto found = agents.find(agent);
      if (found == agents.end()) found = agents.emplace(agent, no_steps(part.batch, rows.num_steps())).first;
      write_segment(part, i, first_row, rows, found->second);
      first_row += static_cast<std::size_t>(part.batch.lengths[i]);
    }
  }
  return agents;
}

}  // namespace rollserve::internal
