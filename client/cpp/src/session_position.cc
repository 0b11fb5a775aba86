#include "session_position.h"

#include <algorithm>
#include <string>
#include <utility>

#include "failures.h"

namespace rollserve::internal {

void SessionPosition::begin(std::size_t num_rows) {
  if (!made_.empty()) return;
  made_.assign(num_rows, -1);
  asked_.assign(num_rows, 0);
}

bool SessionPosition::advance(v1::DrivenStep& step) {
  if (!is_apart_) {
    if (step.step() < num_steps_) return false;
    num_steps_ = step.step() + 1;
    return true;
  }
  v1::DrivenStep news;
  for (v1::DrivenRows& worker : *step.mutable_workers()) {
    if (advance(worker)) news.add_workers()->Swap(&worker);
  }
  step.mutable_workers()->Swap(news.mutable_workers());
  return !step.workers().empty();
}

bool SessionPosition::advance(const v1::DrivenRows& worker) {
  const int num_rows = worker.episode_indices_size();
  if (worker.rows_size() != num_rows || worker.row_step_counts_size() != num_rows) {
    throw Malformed("rows", std::to_string(num_rows) + " rows, and step counts", std::to_string(worker.rows_size()));
  }
  bool is_new = false;
  for (int i = 0; i < num_rows; ++i) {
    const std::int64_t row = worker.rows(i);
    if (row < 0 || row >= static_cast<std::int64_t>(made_.size())) {
      throw Malformed("rows", "rows below " + std::to_string(made_.size()), std::to_string(row));
    }
    std::int64_t& made = made_[static_cast<std::size_t>(row)];
    is_new = is_new || worker.row_step_counts(i) > made;
    made = std::max(made, worker.row_step_counts(i));
  }
  return is_new;
}

void SessionPosition::ask(const std::vector<std::size_t>& rows, v1::DrivenActions& actions) {
  auto asked = asked_;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const std::size_t row = rows[i];
    if (row >= made_.size() || asked[row] > made_[row]) {
      raise_invalid("rows[" + std::to_string(i) + "]", "a row that waits for actions", std::to_string(row));
    }
    actions.add_rows(static_cast<std::int64_t>(row));
    actions.add_row_step_counts(made_[row]);
    asked[row] = made_[row] + 1;
  }
  asked_ = std::move(asked);
}

bool SessionPosition::is_behind(const v1::DrivenActions& actions) const {
  if (!is_apart_) return actions.step() + 1 < num_steps_;
  for (int i = 0; i < actions.rows_size(); ++i) {
    if (actions.row_step_counts(i) >= made_[static_cast<std::size_t>(actions.rows(i))]) return false;
  }
  return true;
}

}  // namespace rollserve::internal
