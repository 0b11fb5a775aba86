#include "leaves.h"

#include <cstring>
#include <numeric>
#include <stdexcept>
#include <utility>

#include "errors.h"

namespace rollserve::host {

namespace {

using Shape = std::vector<std::int64_t>;

std::size_t item_size(v1::DataType type) {
  switch (type) {
    case v1::DATA_TYPE_BOOL:
    case v1::DATA_TYPE_INT8:
    case v1::DATA_TYPE_UINT8:
      return 1;
    case v1::DATA_TYPE_INT16:
    case v1::DATA_TYPE_UINT16:
    case v1::DATA_TYPE_FLOAT16:
      return 2;
    case v1::DATA_TYPE_INT32:
    case v1::DATA_TYPE_UINT32:
    case v1::DATA_TYPE_FLOAT32:
      return 4;
    case v1::DATA_TYPE_INT64:
    case v1::DATA_TYPE_UINT64:
    case v1::DATA_TYPE_FLOAT64:
      return 8;
    default:
      throw std::invalid_argument("data_type: expected a member of DataType, got " + std::to_string(type));
  }
}

template <typename T>
std::int64_t element(const char* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return static_cast<std::int64_t>(value);
}

/// Return an element of one of the types that spaces of integers have.
std::int64_t integer_at(const v1::Tensor& tensor, std::size_t index) {
  const char* bytes = tensor.data().data() + index * item_size(tensor.data_type());
  switch (tensor.data_type()) {
    case v1::DATA_TYPE_INT8:
      return element<std::int8_t>(bytes);
    case v1::DATA_TYPE_INT16:
      return element<std::int16_t>(bytes);
    case v1::DATA_TYPE_INT32:
      return element<std::int32_t>(bytes);
    case v1::DATA_TYPE_INT64:
      return element<std::int64_t>(bytes);
    case v1::DATA_TYPE_UINT8:
      return element<std::uint8_t>(bytes);
    case v1::DATA_TYPE_UINT16:
      return element<std::uint16_t>(bytes);
    case v1::DATA_TYPE_UINT32:
      return element<std::uint32_t>(bytes);
    case v1::DATA_TYPE_UINT64:
      return element<std::uint64_t>(bytes);
    default:
      throw std::invalid_argument("data_type: expected integers, got " + v1::DataType_Name(tensor.data_type()));
  }
}

Leaf leaf(const std::string& name, v1::DataType type, const google::protobuf::RepeatedField<std::int64_t>& shape) {
  const std::size_t size = std::accumulate(shape.begin(), shape.end(), item_size(type),
                                           [](auto a, auto b) { return a * static_cast<std::size_t>(b); });
  return {name, type, Shape(shape.begin(), shape.end()), size, {}, {}};
}

void add_leaves(const v1::Space& space, const std::string& path, std::vector<Leaf>& leaves) {
  const std::string prefix = path.empty() ? "" : path + "/";
  switch (space.kind_case()) {
    case v1::Space::kBox:
      leaves.push_back(leaf(path, space.box().data_type(), space.box().shape()));
      break;
    case v1::Space::kDiscrete: {
      leaves.push_back(leaf(path, v1::DATA_TYPE_INT64, {}));
      leaves.back().low = {space.discrete().start()};
      leaves.back().high = {space.discrete().start() + space.discrete().n() - 1};
      break;
    }
    case v1::Space::kMultiDiscrete: {
      const v1::MultiDiscreteSpace& kind = space.multi_discrete();
      leaves.push_back(leaf(path, kind.data_type(), kind.nvec().shape()));
      const std::size_t count = leaves.back().size / item_size(kind.data_type());
      for (const v1::Tensor* tensor : {&kind.nvec(), &kind.start()}) {
        expect(tensor->data().size() == count * item_size(tensor->data_type()), "multi_discrete",
               std::to_string(count) + " elements of nvec and start", std::to_string(tensor->data().size()) + " bytes");
      }
      for (std::size_t i = 0; i < count; ++i) {
        leaves.back().low.push_back(integer_at(kind.start(), i));
        leaves.back().high.push_back(integer_at(kind.start(), i) + integer_at(kind.nvec(), i) - 1);
      }
      break;
    }
    case v1::Space::kMultiBinary:
      leaves.push_back(leaf(path, v1::DATA_TYPE_INT8, space.multi_binary().shape()));
      leaves.back().low.assign(leaves.back().size, 0);
      leaves.back().high.assign(leaves.back().size, 1);
      break;
    case v1::Space::kText: {
      google::protobuf::RepeatedField<std::int64_t> shape;
      shape.Add(space.text().max_length());
      leaves.push_back(leaf(path, v1::DATA_TYPE_UINT32, shape));
      break;
    }
    case v1::Space::kDict:
      for (const auto& named : space.dict().spaces()) add_leaves(named.space(), prefix + named.name(), leaves);
      break;
    case v1::Space::kTuple:
      for (int i = 0; i < space.tuple().spaces_size(); ++i) {
        add_leaves(space.tuple().spaces(i), prefix + std::to_string(i), leaves);
      }
      break;
    default:
      throw std::invalid_argument("kind: expected a kind of Space, got none");
  }
}

std::string text_of(const Shape& shape) {
  std::string text;
  for (const std::int64_t length : shape) text += (text.empty() ? "" : ", ") + std::to_string(length);
  return "(" + text + ")";
}

std::string form_of(v1::DataType type, const Shape& shape, std::size_t size) {
  return v1::DataType_Name(type) + " of shape " + text_of(shape) + ", " + std::to_string(size) + " bytes";
}

std::string form_of(const v1::Tensor& tensor) {
  return form_of(tensor.data_type(), Shape(tensor.shape().begin(), tensor.shape().end()), tensor.data().size());
}

}  // namespace

std::vector<Leaf> leaves_of(const v1::Space& space) {
  std::vector<Leaf> leaves;
  add_leaves(space, "", leaves);
  return leaves;
}

ObservationColumns::ObservationColumns(const std::vector<Leaf>& leaves, std::size_t num_rows)
    : leaves_(leaves), num_rows_(num_rows) {
  for (const Leaf& leaf : leaves) columns_.emplace_back(num_rows * leaf.size, '\0');
}

void ObservationColumns::set(std::size_t row, const Value& observation) {
  if (observation.size() != leaves_.size()) {
    reject("observation", std::to_string(leaves_.size()) + " tensors", std::to_string(observation.size()));
  }
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    const Leaf& leaf = leaves_[i];
    const v1::Tensor& tensor = observation[i];
    if (tensor.data_type() != leaf.data_type || tensor.data().size() != leaf.size) {
      reject("observation['" + leaf.name + "']", form_of(leaf.data_type, leaf.shape, leaf.size), form_of(tensor));
    }
    columns_[i].replace(row * leaf.size, leaf.size, tensor.data());
  }
}

void ObservationColumns::write(rows::v1::Results& results) {
  for (std::size_t i = 0; i < leaves_.size(); ++i) {
    v1::NamedTensor& column = *results.add_observations();
    column.set_name(leaves_[i].name);
    v1::Tensor& tensor = *column.mutable_tensor();
    tensor.set_data_type(leaves_[i].data_type);
    tensor.add_shape(static_cast<std::int64_t>(num_rows_));
    for (const std::int64_t length : leaves_[i].shape) tensor.add_shape(length);
    tensor.set_data(std::move(columns_[i]));
  }
}

void check_actions(const Columns& columns, const std::vector<Leaf>& leaves, std::size_t num_rows) {
  expect(static_cast<std::size_t>(columns.size()) == leaves.size(), "actions",
         "a tensor for each of " + std::to_string(leaves.size()) + " leaves", std::to_string(columns.size()));
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    const Leaf& leaf = leaves[i];
    const v1::NamedTensor& column = columns[static_cast<int>(i)];
    const std::string place = "actions['" + leaf.name + "']";
    expect(column.name() == leaf.name, place, "this name", "'" + column.name() + "'");
    const v1::Tensor& tensor = column.tensor();
    Shape shape{static_cast<std::int64_t>(num_rows)};
    shape.insert(shape.end(), leaf.shape.begin(), leaf.shape.end());
    expect(tensor.data_type() == leaf.data_type && Shape(tensor.shape().begin(), tensor.shape().end()) == shape &&
               tensor.data().size() == num_rows * leaf.size && tensor.compression() == v1::COMPRESSION_UNSPECIFIED,
           place, form_of(leaf.data_type, shape, num_rows * leaf.size), form_of(tensor));
    for (std::size_t j = 0; j < num_rows * leaf.low.size(); ++j) {
      const std::int64_t low = leaf.low[j % leaf.low.size()], high = leaf.high[j % leaf.low.size()];
      const std::int64_t value = integer_at(tensor, j);
      if (value < low || high < value) {
        reject(place, std::to_string(low) + " to " + std::to_string(high), std::to_string(value));
      }
    }
  }
}

Value action_of(const Columns& columns, const std::vector<Leaf>& leaves, std::size_t row) {
  Value value(leaves.size());
  for (std::size_t i = 0; i < leaves.size(); ++i) {
    value[i].set_data_type(leaves[i].data_type);
    for (const std::int64_t length : leaves[i].shape) value[i].add_shape(length);
    value[i].set_data(columns[static_cast<int>(i)].tensor().data().data() + row * leaves[i].size, leaves[i].size);
  }
  return value;
}

}  // namespace rollserve::host
