#include "batch_checks.h"

#include <numeric>

#include "batch_fields.h"
#include "failures.h"

namespace rollserve::internal {

namespace {

std::string quoted(const std::string& name) { return "['" + name + "']"; }

template <class T>
void check_header(const char* name, const std::vector<T>& header, std::size_t num_segments) {
  if (header.size() != num_segments) {
    throw Malformed(name, std::to_string(num_segments) + " values", std::to_string(header.size()));
  }
}

}  // namespace

void check_headers(const EpisodeBatch& batch) {
  const std::size_t num_segments = batch.num_segments();
  if (num_segments == 0) throw Malformed("lengths", "at least one segment", "none");
  for (const std::int64_t length : batch.lengths) {
    if (length < 1) throw Malformed("lengths", "at least 1", std::to_string(length));
  }
  check_header("terminated", batch.terminated, num_segments);
  check_header("truncated", batch.truncated, num_segments);
  check_header("policy_versions", batch.policy_versions, num_segments);
  check_header("episode_indices", batch.episode_indices, num_segments);
  check_header("first_steps", batch.first_steps, num_segments);
  check_header("environment_seeds", batch.env_seeds, num_segments);
  if (!batch.returns_before.empty()) check_header("returns_before", batch.returns_before, num_segments);
  if (!batch.worker_indices.empty()) check_header("worker_indices", batch.worker_indices, num_segments);
}

void check_columns(const EpisodeBatch& batch) {
  if (batch.rewards.data_type() != DataType::Float64 || batch.rewards.shape().size() != 1) {
    throw Malformed("rewards", "float64 of shape (T)", batch.rewards.text());
  }
  const auto num_steps = std::accumulate(batch.lengths.begin(), batch.lengths.end(), std::int64_t{0});
  if (static_cast<std::size_t>(num_steps) != batch.num_steps()) {
    throw Malformed("rewards", std::to_string(num_steps) + " steps, the sum of lengths", batch.rewards.text());
  }
  if (batch.raw_rewards) {
    const Array& raw = *batch.raw_rewards;
    if (raw.data_type() != DataType::Float64 || raw.shape() != batch.rewards.shape()) {
      throw Malformed("raw_rewards", "as rewards, " + batch.rewards.text(), raw.text());
    }
  }
  if (batch.last_values) {
    const Shape expected{static_cast<std::int64_t>(batch.num_segments())};
    if (batch.last_values->shape() != expected) {
      throw Malformed("last_values", "shape " + text_of(expected), batch.last_values->text());
    }
  }
  for (const ColumnField& field : column_fields) {
    const Columns& columns = batch.*field.columns;
    const std::size_t length = field.rows_of == RowsOf::Steps ? batch.num_steps() : batch.num_segments();
    for (const auto& [name, array] : columns) {
      const std::string path = field.name + quoted(name);
      if (array.shape().empty() || array.num_rows() != length) {
        throw Malformed(path, std::to_string(length) + " rows", array.text());
      }
      const bool is_mask = field.kind == ColumnKind::Infos && columns.is_mask(name);
      if (is_mask && (array.data_type() != DataType::Bool || array.shape().size() != 1)) {
        throw Malformed(path, "a mask, with one truth value for each row", array.text());
      }
    }
  }
  if (batch.observations.size() != batch.last_observations.size()) {
    throw Malformed("last_observations", std::to_string(batch.observations.size()) + " leaves, as in observations",
                    std::to_string(batch.last_observations.size()));
  }
  for (const auto& [name, last] : batch.last_observations) {
    const Array* model = batch.observations.find(name);
    if (model == nullptr || model->data_type() != last.data_type() || model->row_shape() != last.row_shape()) {
      throw Malformed("last_observations" + quoted(name),
                      "rows as in observations, " + (model == nullptr ? "which lack it" : model->text()), last.text());
    }
  }
}

}  // namespace rollserve::internal
