#include "encoding.h"
#include "transforms.h"

namespace rollserve::internal {

namespace {

void write_task(const Task& task, v1::Task& message) {
  message.set_method(task.method);
  message.set_argument_json(task.argument_json);
}

v1::EnvironmentChange message_of_change(const EnvChange& change) {
  v1::EnvironmentChange message;
  message.set_kwargs_json(change.kwargs_json);
  if (change.task) write_task(*change.task, *message.mutable_task());
  if (change.reset_options_json) message.set_reset_options_json(*change.reset_options_json);
  return message;
}

void write_update(std::monostate, v1::EnvironmentUpdate&) {}

void write_update(const EnvSpec& env, v1::EnvironmentUpdate& message) {
  *message.mutable_environment() = message_of(env);
}

void write_update(const EnvChange& change, v1::EnvironmentUpdate& message) {
  *message.mutable_change() = message_of_change(change);
}

void write_update(const RowEnvUpdates& rows, v1::EnvironmentUpdate& message) {
  auto& updates = *message.mutable_per_row()->mutable_updates();
  for (const auto& row : rows) {
    v1::EnvironmentUpdate& update = *updates.Add();
    std::visit([&](const auto& content) { write_update(content, update); }, row);
  }
}

}  // namespace

v1::Environment message_of(const EnvSpec& env) {
  v1::Environment message;
  message.set_id(env.id);
  message.set_kwargs_json(env.kwargs_json);
  for (const Wrapper& wrapper : env.wrappers) {
    v1::Wrapper& added = *message.add_wrappers();
    added.set_name(wrapper.name);
    added.set_kwargs_json(wrapper.kwargs_json);
  }
  if (env.task) write_task(*env.task, *message.mutable_task());
  message.set_reset_options_json(env.reset_options_json);
  message.set_vectorization(static_cast<v1::Vectorization>(env.vectorization));
  message.set_row_count(env.num_rows);
  message.set_episodes_per_row(env.num_episodes_per_row);
  for (const Transform& transform : env.transforms) write_transform(transform, *message.add_transforms());
  message.set_text_info_bytes(env.text_info_bytes);
  message.set_multi_agent(static_cast<v1::MultiAgentApi>(env.multi_agent));
  message.set_global_state(env.global_state);
  return message;
}

v1::EnvironmentUpdate message_of(const EnvUpdate& update) {
  v1::EnvironmentUpdate message;
  std::visit([&](const auto& content) { write_update(content, message); }, update);
  return message;
}

bool keeps_any(const v1::EnvironmentUpdate& update) {
  if (!update.has_per_row()) return !update.has_environment();
  for (const v1::EnvironmentUpdate& row : update.per_row().updates()) {
    if (!row.has_environment()) return true;
  }
  return false;
}

}  // namespace rollserve::internal
