#include "decoding.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "batch_checks.h"
#include "column_table.h"
#include "failures.h"
#include "multi_agent_fields.h"
#include "tensors.h"

namespace rollserve::internal {

namespace {

std::string quoted(const std::string& name) { return "['" + name + "']"; }

/// Return the array of a tensor; errors begin with a path.
Array array_at(const std::string& path, v1::Tensor& tensor) {
  try {
    return array_of(tensor, TensorUse::Column);
  } catch (const Malformed& violation) {
    throw Malformed(path + "." + violation.what());
  }
}

}  // namespace

Columns columns_of(const std::string& field, google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors) {
  Columns columns;
  for (v1::NamedTensor& named : tensors) {
    const std::string path = field + quoted(named.name());
    if (columns.contains(named.name())) throw Malformed(path, "unique names", "this name twice");
    columns.set(named.name(), array_at(path, *named.mutable_tensor()));
  }
  return columns;
}

namespace {

template <class T, class Field>
void read(const ColumnSpec&, std::vector<T>& header, const Field* values) {
  header.assign(values->begin(), values->end());
}

void read(const ColumnSpec& spec, Array& array, v1::Tensor* tensor) { array = array_at(spec.name, *tensor); }

void read(const ColumnSpec& spec, Optional<Array>& array, v1::Tensor* tensor) {
  if (tensor != nullptr) array = array_at(spec.name, *tensor);
}

void read(const ColumnSpec& spec, Columns& columns, google::protobuf::RepeatedPtrField<v1::NamedTensor>* tensors) {
  columns = columns_of(spec.name, *tensors);
}

/// Leave a column as it is that messages lack.
template <class T>
void read(const ColumnSpec&, T&, std::nullptr_t) {}

/// Add the observations (T, K, *F) and last observations (N, K, *F) of segments whose frames (T + N·K, *F) come once.
void add_stacks(EpisodeBatch& batch, v1::FrameStack& stack) {
  const std::string path = "frame_stacks" + quoted(stack.name());
  if (batch.observations.contains(stack.name()) || batch.last_observations.contains(stack.name())) {
    throw Malformed(path, "a leaf that observations lack", "one of them");
  }
  const Array frames = array_at(path + ".frames", *stack.mutable_frames());
  const std::size_t num_frames = stack.frame_count();
  if (num_frames < 2) throw Malformed(path + ".frame_count", "at least 2", std::to_string(num_frames));
  const auto num_steps =
      static_cast<std::size_t>(std::accumulate(batch.lengths.begin(), batch.lengths.end(), std::int64_t{0}));
  const std::size_t num_observations = num_steps + batch.num_segments();
  const std::size_t expected = num_steps + batch.num_segments() * num_frames;
  if (frames.shape().empty() || frames.num_rows() != expected) {
    throw Malformed(path + ".frames", std::to_string(expected) + " frames", frames.text());
  }
  const std::size_t frame_bytes = frames.row_bytes();
  if (frame_bytes > 0 && num_observations > max_raw_bytes / frame_bytes / num_frames) {
    throw Malformed(path + ".frames", "at most 256 MiB of observations", frames.text());
  }
  Shape shape = frames.row_shape();
  shape.insert(shape.begin(), {0, static_cast<std::int64_t>(num_frames)});
  const auto stacks_of = [&](std::size_t count) {
    shape[0] = static_cast<std::int64_t>(count);
    return Array::zeros(frames.data_type(), shape);
  };
  Array observations = stacks_of(num_steps);
  Array last = stacks_of(batch.num_segments());
  const std::size_t stack_bytes = num_frames * frame_bytes;
  if (stack_bytes > 0) {
    const std::byte* from = frames.bytes().data();
    std::byte* to = observations.mutable_bytes().data();
    std::byte* to_last = last.mutable_bytes().data();
    for (const std::int64_t length : batch.lengths) {
      for (std::int64_t step = 0; step < length; ++step, from += frame_bytes, to += stack_bytes) {
        std::memcpy(to, from, stack_bytes);
      }
      std::memcpy(to_last, from, stack_bytes);
      to_last += stack_bytes;
      from += stack_bytes;
    }
  }
  batch.observations.set(stack.name(), std::move(observations));
  batch.last_observations.set(stack.name(), std::move(last));
}

}  // namespace

EpisodeBatch batch_of(v1::EpisodeBatch& message, std::uint64_t num_rows) {
  EpisodeBatch batch;
  for_each_column([&](const auto& column) { read(column, batch.*column.values, column.field(message)); });
  check_headers(batch);
  if (batch.returns_before.empty()) batch.returns_before = unknown_returns(batch.first_steps);
  if (num_rows > 0) {
    for (const std::uint64_t index : batch.episode_indices) batch.row_indices.push_back(index % num_rows);
  }
  for (v1::FrameStack& stack : *message.mutable_frame_stacks()) add_stacks(batch, stack);
  check_columns(batch);
  return batch;
}

namespace {

PolicyBatch policy_of(v1::PolicyBatch& message) {
  PolicyBatch part;
  part.policy = message.policy();
  const bool has_returns_before = message.batch().returns_before_size() > 0;
  part.batch = batch_of(*message.mutable_batch(), 0);
  part.agent_positions.assign(message.agent_positions().begin(), message.agent_positions().end());
  part.env_steps.assign(message.environment_steps().begin(), message.environment_steps().end());
  part.rewards_before.assign(message.rewards_before().begin(), message.rewards_before().end());
  const std::size_t num_segments = part.batch.num_segments();
  if (part.rewards_before.empty()) part.rewards_before.resize(num_segments);
  if (has_returns_before) return part;  // they have the rewards before
  for (std::size_t i = 0; i < std::min(num_segments, part.rewards_before.size()); ++i) {
    part.batch.returns_before[i] += part.rewards_before[i];
  }
  return part;
}

}  // namespace

MultiAgentBatch batch_of(v1::MultiAgentBatch& message) {
  MultiAgentBatch batch;
  batch.agents.assign(message.agents().begin(), message.agents().end());
  batch.episode_indices.assign(message.episode_indices().begin(), message.episode_indices().end());
  batch.first_steps.assign(message.first_steps().begin(), message.first_steps().end());
  batch.lengths.assign(message.lengths().begin(), message.lengths().end());
  batch.terminated.assign(message.terminated().begin(), message.terminated().end());
  batch.truncated.assign(message.truncated().begin(), message.truncated().end());
  batch.agent_step_counts.assign(message.agent_step_counts().begin(), message.agent_step_counts().end());
  for (v1::PolicyBatch& policy : *message.mutable_policies()) batch.policies.push_back(policy_of(policy));
  if (message.has_global_states()) {
    batch.global_states = array_at("global_states", *message.mutable_global_states());
  }
  if (message.has_last_global_states()) {
    batch.last_global_states = array_at("last_global_states", *message.mutable_last_global_states());
  }
  check_batch(batch);
  return batch;
}

}  // namespace rollserve::internal
