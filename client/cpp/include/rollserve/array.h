#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

/// @file
/// Arrays of numbers and truth values, and columns of them by name.

namespace rollserve {

/// The type of the elements of an Array; the numbers are those of the wire.
enum class DataType : int {
  Bool = 1,      ///< One byte, 0 or 1; `bool`.
  Int8 = 2,      ///< `std::int8_t`.
  Int16 = 3,     ///< `std::int16_t`.
  Int32 = 4,     ///< `std::int32_t`.
  Int64 = 5,     ///< `std::int64_t`.
  UInt8 = 6,     ///< `std::uint8_t`.
  UInt16 = 7,    ///< `std::uint16_t`.
  UInt32 = 8,    ///< `std::uint32_t`.
  UInt64 = 9,    ///< `std::uint64_t`.
  Float16 = 10,  ///< `rollserve::Float16`.
  Float32 = 11,  ///< `float`.
  Float64 = 12,  ///< `double`.
};

/// Return the number of bytes of an element; 0 for a number that is no member of DataType.
std::size_t size_of(DataType data_type) noexcept;

/// Return the name of a type, such as `float32`.
std::string name_of(DataType data_type);

/// A number of IEEE 754 half precision: one bit for the sign, five for the exponent, ten for the fraction.
struct Float16 {
  std::uint16_t bits = 0;  ///< The bits of the number.

  /// Return the number in single precision, which has all numbers of half precision.
  explicit operator float() const noexcept;

  /// Whether two numbers have the same bits.
  friend bool operator==(Float16 a, Float16 b) noexcept { return a.bits == b.bits; }
  /// Whether two numbers have different bits.
  friend bool operator!=(Float16 a, Float16 b) noexcept { return a.bits != b.bits; }
};

/// The sizes of the axes of an array, outermost first; empty for a scalar.
using Shape = std::vector<std::int64_t>;

/// Return a shape as text, such as `(3, 4)`.
std::string text_of(const Shape& shape);

/// Consecutive elements in memory that belongs to somebody else.
///
/// C++20's `std::span` can be made of it. C++17 has none, and this package needs nothing else of C++20.
template <class T>
class Span {
 public:
  using element_type = T;                  ///< The type of an element, const if elements cannot be written.
  using value_type = std::remove_cv_t<T>;  ///< The type of an element.
  using iterator = T*;                     ///< The type of begin() and end().
  using reference = T&;                    ///< The type of an indexed element.

  /// Make a span without elements.
  constexpr Span() noexcept = default;
  /// Make a span of `size` elements from `data` on.
  constexpr Span(T* data, std::size_t size) noexcept : data_(data), size_(size) {}

  /// Return the address of the first element.
  constexpr T* data() const noexcept { return data_; }
  /// Return the number of elements.
  constexpr std::size_t size() const noexcept { return size_; }
  /// Whether there are no elements.
  constexpr bool empty() const noexcept { return size_ == 0; }
  /// Return the first element's position.
  constexpr T* begin() const noexcept { return data_; }
  /// Return the position behind the last element.
  constexpr T* end() const noexcept { return data_ + size_; }
  /// Return the element at an index below size().
  constexpr T& operator[](std::size_t index) const noexcept { return data_[index]; }
  /// Return `count` elements from `begin` on, which have to be there.
  constexpr Span subspan(std::size_t begin, std::size_t count) const noexcept { return {data_ + begin, count}; }

 private:
  T* data_ = nullptr;
  std::size_t size_ = 0;
};

/// The DataType for a type of C++, as `value`. Other types than those of DataType have none.
template <class T>
struct DataTypeOf;
/// @cond
template <>
struct DataTypeOf<bool> : std::integral_constant<DataType, DataType::Bool> {};
template <>
struct DataTypeOf<std::int8_t> : std::integral_constant<DataType, DataType::Int8> {};
template <>
struct DataTypeOf<std::int16_t> : std::integral_constant<DataType, DataType::Int16> {};
template <>
struct DataTypeOf<std::int32_t> : std::integral_constant<DataType, DataType::Int32> {};
template <>
struct DataTypeOf<std::int64_t> : std::integral_constant<DataType, DataType::Int64> {};
template <>
struct DataTypeOf<std::uint8_t> : std::integral_constant<DataType, DataType::UInt8> {};
template <>
struct DataTypeOf<std::uint16_t> : std::integral_constant<DataType, DataType::UInt16> {};
template <>
struct DataTypeOf<std::uint32_t> : std::integral_constant<DataType, DataType::UInt32> {};
template <>
struct DataTypeOf<std::uint64_t> : std::integral_constant<DataType, DataType::UInt64> {};
template <>
struct DataTypeOf<Float16> : std::integral_constant<DataType, DataType::Float16> {};
template <>
struct DataTypeOf<float> : std::integral_constant<DataType, DataType::Float32> {};
template <>
struct DataTypeOf<double> : std::integral_constant<DataType, DataType::Float64> {};
/// @endcond

/// A view of a dense array of numbers or truth values in C order: the last axis varies fastest.
///
/// Copies of an Array, and what slice() returns, share one memory, which lives as long as one of the arrays. Spans do
/// not keep it alive, so an array that is a temporary has none: name the array, or the batch that has it, first.
class Array {
 public:
  /// Make an array of no float64 elements.
  Array() = default;

  /// Make an array of a shape from its elements, whose memory it takes over (except for `std::vector<bool>`).
  ///
  /// @throws InvalidArgumentError for a shape that does not fit the number of values.
  template <class T>
  Array(std::vector<T> values, Shape shape) : data_type_(DataTypeOf<T>::value), shape_(std::move(shape)) {
    check_shape(values.size());
    if constexpr (std::is_same_v<T, bool>) {
      auto owner = std::shared_ptr<bool[]>(new bool[values.size()]);
      for (std::size_t i = 0; i < values.size(); ++i) owner[i] = values[i];
      data_ = std::shared_ptr<std::byte>(owner, reinterpret_cast<std::byte*>(owner.get()));
    } else {
      auto owner = std::make_shared<std::vector<T>>(std::move(values));
      data_ = std::shared_ptr<std::byte>(owner, reinterpret_cast<std::byte*>(owner->data()));
    }
  }

  /// Make an array of one axis from its elements.
  template <class T>
  explicit Array(std::vector<T> values) : Array(std::move(values), shape_of(values.size())) {}

  /// Make an array of elements in memory that the array shares, for as long as it needs it.
  ///
  /// @param data_type the type of the elements.
  /// @param shape the shape, with sizes of at least 0.
  /// @param data the address of the elements, aligned for their type, and what owns them.
  Array(DataType data_type, Shape shape, std::shared_ptr<std::byte> data)
      : data_type_(data_type), shape_(std::move(shape)), data_(std::move(data)) {}

  /// Return an array without axes that has one element.
  template <class T>
  static Array scalar(T value) {
    return Array(std::vector<T>{value}, Shape{});
  }

  /// Return an array of zeros.
  static Array zeros(DataType data_type, Shape shape);

  /// Return the type of the elements.
  DataType data_type() const noexcept { return data_type_; }
  /// Return the sizes of the axes.
  const Shape& shape() const& noexcept { return shape_; }
  /// Return the sizes of the axes.
  Shape shape() const&& { return shape_; }
  /// Return the sizes of the axes of a row, which is an element of the first axis.
  Shape row_shape() const { return shape_.empty() ? Shape{} : Shape(shape_.begin() + 1, shape_.end()); }
  /// Return the size of the first axis, the number of rows; 1 for a scalar.
  std::size_t num_rows() const noexcept { return shape_.empty() ? 1 : static_cast<std::size_t>(shape_[0]); }
  /// Return the number of elements.
  std::size_t size() const noexcept;
  /// Return the number of elements of a row.
  std::size_t row_size() const noexcept;
  /// Return the number of bytes of a row.
  std::size_t row_bytes() const noexcept { return row_size() * size_of(data_type_); }
  /// Return the bytes of the elements.
  Span<const std::byte> bytes() const& noexcept { return {data_.get(), size() * size_of(data_type_)}; }
  /// Return the bytes of the elements, which all copies of this array share.
  Span<std::byte> mutable_bytes() & noexcept { return {data_.get(), size() * size_of(data_type_)}; }

  /// Return the elements.
  ///
  /// @throws InvalidArgumentError if the elements have another type than T.
  template <class T>
  Span<const T> values() const& {
    check_type(DataTypeOf<T>::value);
    return {reinterpret_cast<const T*>(data_.get()), size()};
  }

  /// Return the elements, which all copies of this array share.
  ///
  /// @throws InvalidArgumentError if the elements have another type than T.
  template <class T>
  Span<T> mutable_values() & {
    check_type(DataTypeOf<T>::value);
    return {reinterpret_cast<T*>(data_.get()), size()};
  }

  /// @cond
  Span<const std::byte> bytes() const&& = delete;  // the memory would be freed at the end of the statement
  template <class T>
  Span<const T> values() const&& = delete;
  /// @endcond

  /// Return the rows from `begin` to `end`, without `end`, in shared memory.
  ///
  /// @throws InvalidArgumentError for rows that are not there.
  Array slice(std::size_t begin, std::size_t end) const;

  /// Return the rows at some positions, in new memory; throws as slice().
  Array gather(const std::vector<std::size_t>& rows) const;

  /// Return the array in memory of its own.
  Array copy() const;

  /// Describe the array by type and shape, such as `float32 (3, 4)`.
  std::string text() const;

 private:
  static Shape shape_of(std::size_t size) { return {static_cast<std::int64_t>(size)}; }
  void check_shape(std::size_t num_values) const;
  void check_type(DataType requested) const;

  DataType data_type_ = DataType::Float64;
  Shape shape_{0};
  std::shared_ptr<std::byte> data_;
};

/// A `std::optional` that does not reach its content through a temporary: `stream.next()->rewards` would refer to a
/// batch that is gone. `stream.next().value().rewards` is one, as is an optional with a name.
template <class T>
class Optional : public std::optional<T> {
 public:
  using std::optional<T>::optional;
  using std::optional<T>::operator=;
  /// Take over the content of another optional, if it has some.
  Optional(std::optional<T> content) : std::optional<T>(std::move(content)) {}

  /// Return the content's address; it has to be there.
  const T* operator->() const& noexcept { return std::optional<T>::operator->(); }
  /// Return the content's address; it has to be there.
  T* operator->() & noexcept { return std::optional<T>::operator->(); }
  /// @cond
  const T* operator->() const&& = delete;
  /// @endcond
};

/// Arrays by name, in the order in which they were added; as columns of a batch, each with a row for each step or for
/// each segment.
///
/// Observations and actions have one array for each leaf of their space. The only leaf of a plain space, which is no
/// Dict or Tuple, has the empty name. Other leaves are named by their path from the root, joined by `/`: the keys of
/// Dicts and the positions in Tuples.
///
/// Infos and recurrent states can have gaps. The rows without a value are 0 then, and the mask, a column of truth
/// values of the same name with `_` in front, is false there.
class Columns {
 public:
  using Entry = std::pair<std::string, Array>;                ///< A name and its array.
  using const_iterator = std::vector<Entry>::const_iterator;  ///< The type of begin() and end().

  /// Make columns without arrays.
  Columns() = default;
  /// Make columns of some arrays, as with set() for each.
  Columns(std::initializer_list<Entry> entries);

  /// Return the array of a name.
  ///
  /// @throws InvalidArgumentError for a name that is not there.
  const Array& at(std::string_view name) const&;
  /// Return the array of a name; throws as the other one.
  Array at(std::string_view name) const&& { return at(name); }
  /// Return the array of a name, or nullptr without one.
  const Array* find(std::string_view name) const& noexcept;
  /// Whether there is an array of a name.
  bool contains(std::string_view name) const noexcept { return find(name) != nullptr; }
  /// Add an array, or replace the one of this name.
  void set(std::string name, Array array);
  /// Remove the array of a name, if there is one, and return it.
  Array take(std::string_view name);

  /// Return the elements of the array of a name; the leaf of a plain space has the empty one.
  ///
  /// @throws InvalidArgumentError for a name that is not there, or if the elements have another type than T.
  template <class T>
  Span<const T> values(std::string_view name = "") const& {
    return at(name).values<T>();
  }

  /// Return the elements of the array of a name, which all copies of the array share; throws as values().
  template <class T>
  Span<T> mutable_values(std::string_view name = "") & {
    Array array = at(name);  // shares the memory of the one that stays here
    return array.mutable_values<T>();
  }

  /// Return whether each row of an info has a value; an empty span if all rows have one.
  Span<const bool> mask(std::string_view name) const&;

  /// @cond
  const Array* find(std::string_view name) const&& = delete;  // these would outlive their arrays
  template <class T>
  Span<const T> values(std::string_view name = "") const&& = delete;
  Span<const bool> mask(std::string_view name) const&& = delete;
  /// @endcond

  /// Return the texts of an info, one for each row, and nothing for a row without one. `text/NAME` has the texts of the
  /// info NAME, and `json/NAME` its other values as JSON, with EnvSpec::text_info_bytes.
  ///
  /// @throws InvalidArgumentError for a name that is not there, or a column that is not uint8 of shape (T, B).
  std::vector<std::optional<std::string>> texts(std::string_view name) const;

  /// Whether an array is the mask of another one.
  bool is_mask(std::string_view name) const noexcept;

  /// Return the number of arrays.
  std::size_t size() const noexcept { return entries_.size(); }
  /// Whether there are no arrays.
  bool empty() const noexcept { return entries_.empty(); }
  /// Return the first name and array.
  const_iterator begin() const& noexcept { return entries_.begin(); }
  /// Return the position behind the last name and array.
  const_iterator end() const& noexcept { return entries_.end(); }
  /// @cond
  const_iterator begin() const&& = delete;
  const_iterator end() const&& = delete;
  /// @endcond
  /// Return the names, in their order.
  std::vector<std::string> names() const;

  /// Return the rows from `begin` to `end` of each array, in shared memory; throws as Array::slice().
  Columns slice(std::size_t begin, std::size_t end) const;
  /// Return the rows at some positions of each array, in new memory; throws as Array::slice().
  Columns gather(const std::vector<std::size_t>& rows) const;

 private:
  std::vector<Entry> entries_;
};

}  // namespace rollserve

/// @cond
#if __cplusplus >= 202002L
#include <ranges>
template <class T>
inline constexpr bool std::ranges::enable_borrowed_range<rollserve::Span<T>> = true;
template <class T>
inline constexpr bool std::ranges::enable_view<rollserve::Span<T>> = true;
#endif
/// @endcond
