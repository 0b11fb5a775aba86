#include "driving.h"

#include <variant>

#include "decoding.h"
#include "failures.h"
#include "infos.h"
#include "tensors.h"

namespace rollserve::internal {

namespace {

void add_forms(const Space& space, const std::string& path, RowForms& forms);

/// Adds the forms of a space's leaves, by its kind.
struct FormsOf {
  const std::string& path;
  RowForms& forms;

  void operator()(const BoxSpace& box) const { forms.push_back({path, {box.data_type, box.shape}}); }
  void operator()(const DiscreteSpace&) const { forms.push_back({path, {DataType::Int64, {}}}); }
  void operator()(const MultiDiscreteSpace& space) const {
    forms.push_back({path, {space.data_type, space.nvec.shape()}});
  }
  void operator()(const MultiBinarySpace& space) const { forms.push_back({path, {DataType::Int8, space.shape}}); }
  void operator()(const DictSpace& dict) const {
    for (const NamedSpace& named : dict.spaces) add_forms(named.space, below(named.name), forms);
  }
  void operator()(const TupleSpace& tuple) const {
    for (std::size_t i = 0; i < tuple.spaces.size(); ++i) add_forms(tuple.spaces[i], below(std::to_string(i)), forms);
  }
  std::string below(const std::string& name) const { return path.empty() ? name : path + "/" + name; }
};

void add_forms(const Space& space, const std::string& path, RowForms& forms) {
  std::visit(FormsOf{path, forms}, space.kind);
}

template <class Named>
std::string names_of(const Named& columns) {
  std::string text;
  for (const auto& [name, column] : columns) text += (text.empty() ? "'" : ", '") + name + "'";
  return text.empty() ? "none" : text;
}

void check_rows(const v1::DrivenRows& rows) {
  const int num_rows = rows.episode_indices_size();
  const auto check = [](const char* field, int expected, int got) {
    if (got != expected) throw Malformed(field, std::to_string(expected) + " values", std::to_string(got));
  };
  if (rows.rewards_size() > 0) check("rewards", num_rows, rows.rewards_size());
  check("environment_seeds", num_rows, rows.environment_seeds_size());
  check("terminated", rows.ended_rows_size(), rows.terminated_size());
  check("truncated", rows.ended_rows_size(), rows.truncated_size());
  for (const std::int64_t row : rows.ended_rows()) {
    if (row < 0 || row >= num_rows) {
      throw Malformed("ended_rows", "rows below " + std::to_string(num_rows), std::to_string(row));
    }
  }
}

/// The columns of all workers, one behind the other.
struct Parts {
  std::vector<Columns> observations;
  std::vector<Columns> last_observations;  // of workers with rows that have ended
  std::vector<Columns> infos;
  std::vector<Columns> last_infos;
  std::vector<std::size_t> num_rows;
  std::vector<std::size_t> num_ended;
};

Columns joined(const char* field, std::vector<Columns> parts) {
  return parts.size() == 1 ? std::move(parts.front()) : concatenate_columns(field, std::move(parts));
}

}  // namespace

RowForms leaf_forms(const Space& space) {
  RowForms forms;
  add_forms(space, "", forms);
  return forms;
}

void write_rows(const std::string& field, const Columns& columns, const RowForms& forms, std::size_t num_rows,
                google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors) {
  bool fits = columns.size() == forms.size();
  for (const auto& [name, form] : forms) fits = fits && columns.contains(name);
  if (!fits) raise_invalid(field, "the columns " + names_of(forms), names_of(columns));
  for (const auto& [name, form] : forms) {
    const Array& array = columns.at(name);
    Shape shape = form.shape;
    shape.insert(shape.begin(), static_cast<std::int64_t>(num_rows));
    if (array.data_type() != form.data_type || array.shape() != shape) {
      const std::string path = name.empty() ? field : field + "['" + name + "']";
      raise_invalid(path, name_of(form.data_type) + " " + text_of(shape), array.text());
    }
  }
  write_named(field, columns, tensors);
}

DrivenStep step_of(v1::DrivenStep& message, bool is_ready) {
  if (message.workers().empty()) throw Malformed("workers", "at least one", "none");
  DrivenStep step;
  step.number = message.step();
  Parts parts;
  for (v1::DrivenRows& rows : *message.mutable_workers()) {
    check_rows(rows);
    const std::size_t start = step.episode_indices.size();
    const auto num_rows = static_cast<std::size_t>(rows.episode_indices_size());
    step.episode_indices.insert(step.episode_indices.end(), rows.episode_indices().begin(),
                                rows.episode_indices().end());
    for (std::size_t i = 0; i < num_rows; ++i) {
      const auto at = static_cast<int>(i);
      step.rows.push_back(is_ready ? static_cast<std::size_t>(rows.rows(at)) : start + i);
      step.row_steps.push_back(is_ready ? static_cast<std::uint64_t>(rows.row_step_counts(at)) : message.step());
    }
    step.env_seeds.insert(step.env_seeds.end(), rows.environment_seeds().begin(), rows.environment_seeds().end());
    step.rewards.insert(step.rewards.end(), rows.rewards().begin(), rows.rewards().end());
    step.rewards.resize(start + num_rows);
    step.terminated.resize(start + num_rows);
    step.truncated.resize(start + num_rows);
    for (int i = 0; i < rows.ended_rows_size(); ++i) {
      const std::size_t row = start + static_cast<std::size_t>(rows.ended_rows(i));
      step.ended_rows.push_back(row);
      step.terminated[row] = rows.terminated(i);
      step.truncated[row] = rows.truncated(i);
    }
    parts.num_rows.push_back(num_rows);
    parts.num_ended.push_back(static_cast<std::size_t>(rows.ended_rows_size()));
    parts.observations.push_back(columns_of("observations", *rows.mutable_observations()));
    Columns last = columns_of("last_observations", *rows.mutable_last_observations());
    if (rows.ended_rows_size() > 0) parts.last_observations.push_back(std::move(last));
    parts.infos.push_back(columns_of("infos", *rows.mutable_infos()));
    parts.last_infos.push_back(columns_of("last_infos", *rows.mutable_last_infos()));
  }
  step.observations = joined("observations", std::move(parts.observations));
  step.last_observations = parts.last_observations.empty()
                               ? step.observations.slice(0, 0)
                               : joined("last_observations", std::move(parts.last_observations));
  step.infos = concatenate_infos("infos", parts.infos, parts.num_rows);
  step.last_infos = concatenate_infos("last_infos", parts.last_infos, parts.num_ended);
  return step;
}

}  // namespace rollserve::internal
