#include "batch_checks.h"

#include <numeric>

#include "column_table.h"
#include "failures.h"

namespace rollserve::internal {

namespace {

std::string quoted(const std::string& name) { return "['" + name + "']"; }

template <class T>
void check_header(const ColumnSpec& spec, const std::vector<T>& header, std::size_t num_segments) {
  if (header.size() != num_segments && !(spec.is_optional && header.empty())) {
    throw Malformed(spec.name, std::to_string(num_segments) + " values", std::to_string(header.size()));
  }
}

/// check_rows() checks the other columns.
template <class T>
void check_header(const ColumnSpec&, const T&, std::size_t) {}

void check_rows(const ColumnSpec& spec, const Optional<Array>& numbers, const EpisodeBatch& batch) {
  if (!numbers) return;
  if (spec.kind == ColumnKind::Rewards) {
    if (numbers->data_type() != DataType::Float64 || numbers->shape() != batch.rewards.shape()) {
      throw Malformed(spec.name, "as rewards, " + batch.rewards.text(), numbers->text());
    }
    return;
  }
  const Shape expected{static_cast<std::int64_t>(num_rows(spec, batch))};
  if (numbers->shape() != expected) throw Malformed(spec.name, "shape " + text_of(expected), numbers->text());
}

void check_rows(const ColumnSpec& spec, const Columns& columns, const EpisodeBatch& batch) {
  const std::size_t length = num_rows(spec, batch);
  for (const auto& [name, array] : columns) {
    const std::string path = spec.name + quoted(name);
    if (array.shape().empty() || array.num_rows() != length) {
      throw Malformed(path, std::to_string(length) + " rows", array.text());
    }
    const bool is_mask = spec.kind == ColumnKind::Infos && columns.is_mask(name);
    if (is_mask && (array.data_type() != DataType::Bool || array.shape().size() != 1)) {
      throw Malformed(path, "a mask, with one truth value for each row", array.text());
    }
  }
}

/// Headers and rewards have been checked before.
template <class T>
void check_rows(const ColumnSpec&, const T&, const EpisodeBatch&) {}

}  // namespace

void check_headers(const EpisodeBatch& batch) {
  const std::size_t num_segments = batch.num_segments();
  if (num_segments == 0) throw Malformed("lengths", "at least one segment", "none");
  for (const std::int64_t length : batch.lengths) {
    if (length < 1) throw Malformed("lengths", "at least 1", std::to_string(length));
  }
  for_each_column([&](const auto& column) { check_header(column, batch.*column.values, num_segments); });
}

void check_columns(const EpisodeBatch& batch) {
  if (batch.rewards.data_type() != DataType::Float64 || batch.rewards.shape().size() != 1) {
    throw Malformed("rewards", "float64 of shape (T)", batch.rewards.text());
  }
  const auto num_steps = std::accumulate(batch.lengths.begin(), batch.lengths.end(), std::int64_t{0});
  if (static_cast<std::size_t>(num_steps) != batch.num_steps()) {
    throw Malformed("rewards", std::to_string(num_steps) + " steps, the sum of lengths", batch.rewards.text());
  }
  for_each_column([&](const auto& column) { check_rows(column, batch.*column.values, batch); });
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
