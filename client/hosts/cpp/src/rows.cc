#include "rows.h"

#include <utility>

#include "errors.h"
#include "infos.h"

namespace rollserve::host {

namespace {

constexpr std::uint32_t max_rows = 1 << 16;

}  // namespace

rows::v1::Response Rows::answer(const std::string& message) {
  rows::v1::Response response;
  response.set_number(number_ + 1);
  try {
    rows::v1::Request request;
    expect(request.ParseFromString(message), "request", "a message Request", "other bytes");
    response.set_number(request.number());
    expect(request.number() == number_ + 1, "number", std::to_string(number_ + 1), std::to_string(request.number()));
    ++number_;
    switch (request.content_case()) {
      case rows::v1::Request::kMake:
        *response.mutable_made() = make(request.make());
        break;
      case rows::v1::Request::kReset:
        *response.mutable_results() = reset(request.reset());
        break;
      case rows::v1::Request::kStep:
        *response.mutable_results() = step(request.step());
        break;
      default:
        reject("content", "make, reset or step", "none that this host knows");
    }
  } catch (...) {
    response.mutable_refusal()->set_text(text_of_exception());
  }
  return response;
}

rows::v1::Made Rows::make(const rows::v1::Make& make) {
  expect(rows_.empty(), "make", "one request that makes rows", "a second one");
  expect(1 <= make.row_count() && make.row_count() <= max_rows, "row_count", "1 to " + std::to_string(max_rows),
         std::to_string(make.row_count()));
  std::vector<Row> rows(make.row_count());
  for (Row& row : rows) row.environment = host_.make(make);
  const Environment& first = *rows.front().environment;
  rows::v1::Made made;
  *made.mutable_observation_space() = first.observation_space();
  *made.mutable_action_space() = first.action_space();
  made.set_max_episode_steps(first.max_episode_steps());
  made.set_is_nondeterministic(first.is_nondeterministic());
  observation_ = leaves_of(made.observation_space());
  action_ = leaves_of(made.action_space());
  make_ = make;
  rows_ = std::move(rows);
  return made;
}

rows::v1::Results Rows::reset(const rows::v1::Reset& reset) {
  check_indices(reset.rows());
  expect(reset.seeds_size() == reset.rows_size(), "seeds", std::to_string(reset.rows_size()) + " seeds",
         std::to_string(reset.seeds_size()));
  rows::v1::Results results = run(reset.rows(), [&](Row& row, std::size_t position) {
    if (!row.environment) row.environment = host_.make(make_);
    return row.environment->reset(reset.seeds(static_cast<int>(position)), reset.options_json());
  });
  results.clear_rewards();
  results.clear_terminated();
  results.clear_truncated();
  return results;
}

rows::v1::Results Rows::step(const rows::v1::Step& step) {
  check_indices(step.rows());
  Indices indices = step.rows();
  for (std::uint32_t i = 0; step.rows().empty() && i < rows_.size(); ++i) indices.Add(i);
  for (const std::uint32_t index : indices) {
    if (!rows_[index].runs) {
      reject("rows", "rows whose episodes go on", std::to_string(index) + ", which has to be reset");
    }
  }
  check_actions(step.actions(), action_, static_cast<std::size_t>(indices.size()));
  return run(indices, [&](Row& row, std::size_t position) {
    return row.environment->step(action_of(step.actions(), action_, position));
  });
}

rows::v1::Results Rows::run(const Indices& indices, const Act& act) {
  rows::v1::Results results;
  const auto num_rows = static_cast<std::size_t>(indices.size());
  ObservationColumns observations(observation_, num_rows);
  InfoColumns infos;
  for (std::size_t position = 0; position < num_rows; ++position) {
    Row& row = rows_[indices[static_cast<int>(position)]];
    Outcome outcome;
    try {
      outcome = act(row, position);
      observations.set(position, outcome.observation);
      infos.add(position, outcome.infos);
      row.runs = !outcome.terminated && !outcome.truncated;
    } catch (...) {
      row = {};
      rows::v1::Failure& failure = *results.add_failures();
      failure.set_position(static_cast<std::uint32_t>(position));
      failure.set_text(text_of_exception());
    }
    results.add_rewards(outcome.reward);
    results.add_terminated(outcome.terminated);
    results.add_truncated(outcome.truncated);
  }
  observations.write(results);
  infos.write(num_rows, results);
  return results;
}

void Rows::check_indices(const Indices& indices) const {
  expect(!rows_.empty(), "content", "rows that have been made first", "none");
  for (int i = 0; i < indices.size(); ++i) {
    if (indices[i] >= rows_.size() || (i > 0 && indices[i - 1] >= indices[i])) {
      reject("rows", "rising indices below " + std::to_string(rows_.size()), std::to_string(indices[i]));
    }
  }
}

}  // namespace rollserve::host
