#include "infos.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "failures.h"

namespace rollserve::internal {

namespace {

/// Kinds of numbers, in the order in which they fit into each other.
enum class Kind { Truth, Unsigned, Signed, Floating };

Kind kind_of(DataType type) {
  switch (type) {
    case DataType::Bool:
      return Kind::Truth;
    case DataType::UInt8:
    case DataType::UInt16:
    case DataType::UInt32:
    case DataType::UInt64:
      return Kind::Unsigned;
    case DataType::Int8:
    case DataType::Int16:
    case DataType::Int32:
    case DataType::Int64:
      return Kind::Signed;
    default:
      return Kind::Floating;
  }
}

DataType type_of(Kind kind, std::size_t size) {
  for (const DataType type :
       {DataType::UInt8, DataType::UInt16, DataType::UInt32, DataType::UInt64, DataType::Int8, DataType::Int16,
        DataType::Int32, DataType::Int64, DataType::Float16, DataType::Float32, DataType::Float64}) {
    if (kind_of(type) == kind && size_of(type) == size) return type;
  }
  return DataType::Float64;
}

/// Return the smallest type that the values of two types fit into. For numpy, and so here, float64 counts as one for
/// integers of 64 bits.
DataType promoted(DataType a, DataType b) {
  if (kind_of(a) > kind_of(b)) std::swap(a, b);
  const Kind low = kind_of(a);
  const Kind high = kind_of(b);
  if (low == Kind::Truth) return b;
  // Room for a sign, or for all digits in the fraction of a float.
  const std::size_t low_size = low == high ? size_of(a) : 2 * size_of(a);
  const std::size_t size = std::max(low_size, size_of(b));
  return size > 8 ? DataType::Float64 : type_of(high, size);
}

/// Call a function with a value of the C++ type of a DataType; a truth value is a byte.
template <class Function>
void visit_type(DataType type, Function function) {
  switch (type) {
    case DataType::Bool:
    case DataType::UInt8:
      return function(std::uint8_t{});
    case DataType::Int8:
      return function(std::int8_t{});
    case DataType::Int16:
      return function(std::int16_t{});
    case DataType::Int32:
      return function(std::int32_t{});
    case DataType::Int64:
      return function(std::int64_t{});
    case DataType::UInt16:
      return function(std::uint16_t{});
    case DataType::UInt32:
      return function(std::uint32_t{});
    case DataType::UInt64:
      return function(std::uint64_t{});
    case DataType::Float16:
      return function(Float16{});
    case DataType::Float32:
      return function(float{});
    case DataType::Float64:
      return function(double{});
  }
}

/// Return a whole number of up to eight bits in half precision, which has all of them.
Float16 half_of(int value) {
  if (value == 0) return {};
  const int magnitude = value < 0 ? -value : value;
  int exponent = 0;
  while (magnitude >> (exponent + 1) != 0) ++exponent;
  const int fraction = (magnitude << (10 - exponent)) & 0x3ff;
  return {static_cast<std::uint16_t>((value < 0 ? 0x8000 : 0) | (exponent + 15) << 10 | fraction)};
}

template <class To, class From>
To converted(From value) {
  if constexpr (std::is_same_v<To, From>) {
    return value;
  } else if constexpr (std::is_same_v<To, Float16>) {
    return half_of(static_cast<int>(value));  // half precision is chosen for truth values and integers of 8 bits only
  } else if constexpr (std::is_same_v<From, Float16>) {
    return static_cast<To>(static_cast<float>(value));
  } else {
    return static_cast<To>(value);
  }
}

/// Write the elements of an array as a type that they fit into.
void convert(const Array& from, DataType type, std::byte* to) {
  if (from.size() == 0) return;
  if (from.data_type() == type) {
    std::memcpy(to, from.bytes().data(), from.bytes().size());
    return;
  }
  visit_type(type, [&](auto to_value) {
    visit_type(from.data_type(), [&](auto from_value) {
      using To = decltype(to_value);
      using From = decltype(from_value);
      const auto* source = reinterpret_cast<const From*>(from.bytes().data());
      std::transform(source, source + from.size(), reinterpret_cast<To*>(to), converted<To, From>);
    });
  });
}

/// Magnitude up to which float64 holds every integer.
constexpr std::uint64_t max_exact = std::uint64_t{1} << 53;

/// Throw Malformed for an integer of an array that the common type of it and others does not hold.
void check_fits(const std::string& field, const Array& array, DataType common) {
  if (array.data_type() == common || (common != DataType::UInt64 && common != DataType::Float64)) return;
  visit_type(array.data_type(), [&](auto element) {
    using Element = decltype(element);
    if constexpr (std::is_integral_v<Element>) {
      const auto* values = reinterpret_cast<const Element*>(array.bytes().data());
      for (std::size_t i = 0; i < array.size(); ++i) {
        const bool is_negative = std::is_signed_v<Element> && static_cast<std::int64_t>(values[i]) < 0;
        const auto bits = static_cast<std::uint64_t>(values[i]);
        const bool fits = common == DataType::UInt64 ? !is_negative : (is_negative ? 0 - bits : bits) <= max_exact;
        if (!fits) throw Malformed(field, "numbers that " + name_of(common) + " can hold", std::to_string(values[i]));
      }
    }
  });
}

Array zero_rows(DataType type, std::size_t num_rows, Shape row_shape) {
  row_shape.insert(row_shape.begin(), static_cast<std::int64_t>(num_rows));
  return Array::zeros(type, std::move(row_shape));
}

struct Filled {
  Array column;
  Array mask;
};

/// Return an info of all parts, and which rows have a value.
Filled filled(const std::string& field, const std::string& name, const std::vector<Columns>& parts,
              const std::vector<std::size_t>& lengths) {
  const std::string path = field + "['" + name + "']";
  std::vector<const Array*> arrays;
  std::size_t total = 0;
  for (std::size_t i = 0; i < parts.size(); ++i) {
    total += lengths[i];
    const Array* array = parts[i].find(name);
    if (array == nullptr) continue;
    arrays.push_back(array);
    const Shape row_shape = arrays.front()->row_shape();
    if (array->row_shape() != row_shape) {
      throw Malformed(path, "rows of shape " + text_of(row_shape) + " in each message", array->text());
    }
  }
  const DataType type = common_type(path, arrays);
  Filled filled{zero_rows(type, total, arrays.front()->row_shape()), zero_rows(DataType::Bool, total, {})};
  std::byte* to = filled.column.mutable_bytes().data();
  bool* to_mask = filled.mask.mutable_values<bool>().data();
  for (std::size_t i = 0; i < parts.size(); to += lengths[i] * filled.column.row_bytes(), to_mask += lengths[i], ++i) {
    const Array* array = parts[i].find(name);
    if (array == nullptr) continue;
    convert(*array, type, to);
    const auto mask = parts[i].mask(name);
    if (mask.empty())
      std::fill_n(to_mask, lengths[i], true);
    else
      std::copy(mask.begin(), mask.end(), to_mask);
  }
  return filled;
}

bool all(Span<const bool> values) {
  return std::all_of(values.begin(), values.end(), [](bool value) { return value; });
}

}  // namespace

DataType common_type(const std::string& field, const std::vector<const Array*>& arrays) {
  DataType common = arrays.front()->data_type();
  bool has_floats = false;
  for (const Array* array : arrays) {
    common = promoted(common, array->data_type());
    has_floats = has_floats || kind_of(array->data_type()) == Kind::Floating;
  }
  if (kind_of(common) == Kind::Floating && !has_floats) common = DataType::UInt64;
  for (const Array* array : arrays) check_fits(field, *array, common);
  return common;
}

Array concatenate_arrays(const std::vector<Array>& arrays) {
  std::size_t num_rows = 0;
  for (const Array& array : arrays) num_rows += array.num_rows();
  Array joined = zero_rows(arrays[0].data_type(), num_rows, arrays[0].row_shape());
  std::byte* to = joined.mutable_bytes().data();
  for (const Array& array : arrays) {
    const auto from = array.bytes();
    if (!from.empty()) std::memcpy(to, from.data(), from.size());
    to += from.size();
  }
  return joined;
}

Columns concatenate_columns(const std::string& field, std::vector<Columns> parts) {
  const auto names = parts[0].names();
  for (const Columns& part : parts) {
    if (part.size() != names.size()) {
      throw Malformed(field, std::to_string(names.size()) + " columns in each message", std::to_string(part.size()));
    }
  }
  Columns joined;
  for (const std::string& name : names) {
    std::vector<Array> arrays;
    for (Columns& part : parts) {
      const std::string path = field + "['" + name + "']";
      if (!part.contains(name)) throw Malformed(path, "this column in each message", "a message without it");
      arrays.push_back(part.take(name));
      const Array& first = arrays.front();
      const Array& array = arrays.back();
      if (array.data_type() != first.data_type() || array.row_shape() != first.row_shape()) {
        throw Malformed(path, "rows as in " + first.text() + " in each message", array.text());
      }
    }
    joined.set(name, concatenate_arrays(arrays));
  }
  return joined;
}

Columns concatenate_infos(const std::string& field, const std::vector<Columns>& parts,
                          const std::vector<std::size_t>& lengths) {
  Columns joined;
  for (const Columns& part : parts) {
    for (const auto& [name, array] : part) {
      if (joined.contains(name) || part.is_mask(name)) continue;
      auto [column, mask] = filled(field, name, parts, lengths);
      joined.set(name, std::move(column));
      if (!all(mask.values<bool>())) joined.set("_" + name, std::move(mask));
    }
  }
  return joined;
}

Columns without_full_masks(const Columns& columns) {
  Columns kept;
  for (const auto& [name, array] : columns) {
    const bool is_mask = columns.is_mask(name) && array.data_type() == DataType::Bool;
    if (!is_mask || !all(array.values<bool>())) kept.set(name, array);
  }
  return kept;
}

std::vector<std::int64_t> integers_of(const Array& array) {
  std::vector<std::int64_t> integers(array.size());
  convert(array, DataType::Int64, reinterpret_cast<std::byte*>(integers.data()));
  return integers;
}

}  // namespace rollserve::internal
