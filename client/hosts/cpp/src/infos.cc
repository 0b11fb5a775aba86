#include "infos.h"

#include <utility>

#include "errors.h"

namespace rollserve::host {

namespace {

using Value = Infos::mapped_type;

/// Return the type and shape of an info's values.
std::string form_of(const v1::Tensor& tensor) {
  std::string text = v1::DataType_Name(tensor.data_type()) + " of shape (";
  for (const std::int64_t length : tensor.shape()) text += std::to_string(length) + ",";
  return text + ")";
}

std::string form_of(const Value& value) {
  return std::holds_alternative<Json>(value) ? "JSON" : form_of(std::get<v1::Tensor>(value));
}

std::string form_of(const rows::v1::Info& info) { return info.has_json() ? "JSON" : form_of(info.tensor()); }

}  // namespace

void InfoColumns::add(std::size_t position, const Infos& infos) {
  for (const auto& [name, value] : infos) {
    const auto found = infos_.find(name);
    if (found == infos_.end()) continue;
    const std::string form = form_of(found->second);
    if (form_of(value) != form) reject("infos['" + name + "']", form + ", as in other rows", form_of(value));
  }
  for (const auto& [name, value] : infos) {
    rows::v1::Info& info = infos_[name];
    info.add_positions(static_cast<std::uint32_t>(position));
    if (const auto* json = std::get_if<Json>(&value)) {
      info.mutable_json()->add_texts(json->text);
    } else if (info.has_tensor()) {
      info.mutable_tensor()->mutable_data()->append(std::get<v1::Tensor>(value).data());
    } else {
      *info.mutable_tensor() = std::get<v1::Tensor>(value);
    }
  }
}

void InfoColumns::write(std::size_t num_rows, rows::v1::Results& results) {
  for (auto& [name, info] : infos_) {
    info.set_name(name);
    if (info.has_tensor()) {
      auto& shape = *info.mutable_tensor()->mutable_shape();
      shape.Add(info.positions_size());
      for (int i = shape.size() - 1; i > 0; --i) shape.SwapElements(i, i - 1);
    }
    if (static_cast<std::size_t>(info.positions_size()) == num_rows) info.clear_positions();
    *results.add_infos() = std::move(info);
  }
}

}  // namespace rollserve::host
