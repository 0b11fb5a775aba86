#include "rollserve/array.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "failures.h"

#if defined(__BYTE_ORDER__) && __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "The elements of arrays are little endian, and this package leaves them as they are."
#endif

namespace rollserve {

using internal::raise_invalid;

static_assert(sizeof(bool) == 1 && sizeof(Float16) == 2 && sizeof(float) == 4 && sizeof(double) == 8);

std::size_t size_of(DataType data_type) noexcept {
  switch (data_type) {
    case DataType::Bool:
    case DataType::Int8:
    case DataType::UInt8:
      return 1;
    case DataType::Int16:
    case DataType::UInt16:
    case DataType::Float16:
      return 2;
    case DataType::Int32:
    case DataType::UInt32:
    case DataType::Float32:
      return 4;
    case DataType::Int64:
    case DataType::UInt64:
    case DataType::Float64:
      return 8;
  }
  return 0;
}

std::string name_of(DataType data_type) {
  static constexpr const char* names[] = {"",       "bool",   "int8",   "int16",   "int32",   "int64",  "uint8",
                                          "uint16", "uint32", "uint64", "float16", "float32", "float64"};
  const int number = static_cast<int>(data_type);
  return number >= 1 && number <= 12 ? names[number] : "type " + std::to_string(number);
}

Float16::operator float() const noexcept {
  const int exponent = bits >> 10 & 0x1f;
  const int fraction = bits & 0x3ff;
  float magnitude = 0;
  if (exponent == 0x1f) {
    magnitude = fraction == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (exponent == 0) {  // zero, or a number without a leading 1
    magnitude = std::ldexp(static_cast<float>(fraction), -24);
  } else {
    magnitude = std::ldexp(static_cast<float>(fraction | 0x400), exponent - 25);
  }
  return bits >> 15 == 1 ? -magnitude : magnitude;
}

std::string text_of(const Shape& shape) {
  std::string text = "(";
  for (std::size_t i = 0; i < shape.size(); ++i) text += (i == 0 ? "" : ", ") + std::to_string(shape[i]);
  return text + (shape.size() == 1 ? ",)" : ")");
}

namespace {

std::size_t product(Shape::const_iterator begin, Shape::const_iterator end) {
  std::size_t size = 1;
  for (; begin != end; ++begin) size *= static_cast<std::size_t>(*begin);
  return size;
}

}  // namespace

Array Array::zeros(DataType data_type, Shape shape) {
  // Units of eight bytes are aligned for every type.
  const std::size_t num_bytes = product(shape.begin(), shape.end()) * size_of(data_type);
  auto owner = std::shared_ptr<std::uint64_t[]>(new std::uint64_t[(num_bytes + 7) / 8]());
  return Array(data_type, std::move(shape),
               std::shared_ptr<std::byte>(owner, reinterpret_cast<std::byte*>(owner.get())));
}

std::size_t Array::size() const noexcept { return product(shape_.begin(), shape_.end()); }

std::size_t Array::row_size() const noexcept { return shape_.empty() ? 1 : product(shape_.begin() + 1, shape_.end()); }

Array Array::slice(std::size_t begin, std::size_t end) const {
  if (shape_.empty() || begin > end || end > num_rows()) {
    raise_invalid("end", "rows of " + text(), std::to_string(begin) + " to " + std::to_string(end));
  }
  Shape shape = shape_;
  shape[0] = static_cast<std::int64_t>(end - begin);
  return Array(data_type_, std::move(shape), std::shared_ptr<std::byte>(data_, data_.get() + begin * row_bytes()));
}

Array Array::gather(const std::vector<std::size_t>& rows) const {
  for (const std::size_t row : rows) {
    if (shape_.empty() || row >= num_rows()) raise_invalid("rows", "rows of " + text(), std::to_string(row));
  }
  Shape shape = row_shape();
  shape.insert(shape.begin(), static_cast<std::int64_t>(rows.size()));
  Array gathered = zeros(data_type_, std::move(shape));
  const std::size_t count = row_bytes();
  std::byte* to = gathered.data_.get();
  for (const std::size_t row : rows) {
    if (count > 0) std::memcpy(to, data_.get() + row * count, count);
    to += count;
  }
  return gathered;
}

Array Array::copy() const {
  Array copied = zeros(data_type_, shape_);
  const auto from = bytes();
  if (!from.empty()) std::memcpy(copied.data_.get(), from.data(), from.size());
  return copied;
}

std::string Array::text() const { return name_of(data_type_) + " " + text_of(shape_); }

void Array::check_shape(std::size_t num_values) const {
  std::size_t size = 1;
  for (const std::int64_t length : shape_) {
    const auto unsigned_length = static_cast<std::size_t>(length);
    // A product that is no more than the number of values cannot overflow on its way, unless a size of 0 follows.
    if (length < 0 || (length > 0 && size > std::numeric_limits<std::size_t>::max() / unsigned_length)) {
      raise_invalid("shape", "sizes of at least 0 whose product can be counted", text_of(shape_));
    }
    size *= unsigned_length;
  }
  if (size != num_values) {
    raise_invalid("shape", "a shape for " + std::to_string(num_values) + " elements", text_of(shape_));
  }
}

void Array::check_type(DataType requested) const {
  if (requested != data_type_) {
    raise_invalid("T", "the type of the elements, " + name_of(data_type_), name_of(requested));
  }
}

Columns::Columns(std::initializer_list<Entry> entries) {
  for (const auto& [name, array] : entries) set(name, array);
}

const Array& Columns::at(std::string_view name) const& {
  if (const Array* array = find(name)) return *array;
  std::string known;
  for (const auto& entry : entries_) known += (known.empty() ? "'" : ", '") + entry.first + "'";
  raise_invalid("name", known.empty() ? "nothing, because there are no columns" : "one of " + known,
                "'" + std::string(name) + "'");
}

const Array* Columns::find(std::string_view name) const& noexcept {
  for (const auto& entry : entries_) {
    if (entry.first == name) return &entry.second;
  }
  return nullptr;
}

void Columns::set(std::string name, Array array) {
  for (auto& entry : entries_) {
    if (entry.first == name) {
      entry.second = std::move(array);
      return;
    }
  }
  entries_.emplace_back(std::move(name), std::move(array));
}

Array Columns::take(std::string_view name) {
  Array taken = at(name);
  for (auto entry = entries_.begin(); entry != entries_.end(); ++entry) {
    if (entry->first == name) {
      entries_.erase(entry);
      break;
    }
  }
  return taken;
}

Span<const bool> Columns::mask(std::string_view name) const& {
  const Array* mask = find("_" + std::string(name));
  return mask == nullptr || mask->data_type() != DataType::Bool ? Span<const bool>() : mask->values<bool>();
}

std::vector<std::optional<std::string>> Columns::texts(std::string_view name) const {
  const Array& column = at(name);
  if (column.data_type() != DataType::UInt8 || column.shape().size() != 2) {
    raise_invalid("name", "a column of texts, which is uint8 (T, B)", "'" + std::string(name) + "', " + column.text());
  }
  const auto present = mask(name);
  const auto* bytes = reinterpret_cast<const char*>(column.bytes().data());
  std::vector<std::optional<std::string>> texts(column.num_rows());
  for (std::size_t row = 0; row < texts.size(); ++row) {
    if (row < present.size() && !present[row]) continue;
    const std::string_view padded(bytes + row * column.row_bytes(), column.row_bytes());
    texts[row] = padded.substr(0, padded.find_last_not_of('\0') + 1);  // npos + 1 is 0
  }
  return texts;
}

bool Columns::is_mask(std::string_view name) const noexcept {
  return !name.empty() && name.front() == '_' && contains(name.substr(1));
}

std::vector<std::string> Columns::names() const {
  std::vector<std::string> names;
  for (const auto& entry : entries_) names.push_back(entry.first);
  return names;
}

Columns Columns::slice(std::size_t begin, std::size_t end) const {
  Columns sliced;
  for (const auto& [name, array] : entries_) sliced.entries_.emplace_back(name, array.slice(begin, end));
  return sliced;
}

Columns Columns::gather(const std::vector<std::size_t>& rows) const {
  Columns gathered;
  for (const auto& [name, array] : entries_) gathered.entries_.emplace_back(name, array.gather(rows));
  return gathered;
}

}  // namespace rollserve
