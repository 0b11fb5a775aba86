#include "tensors.h"

#include <lz4.h>
#include <zstd.h>

#include <cstring>
#include <memory>

#include "failures.h"

namespace rollserve::internal {

namespace {

constexpr int max_axes = 32;
constexpr std::int64_t max_elements = std::int64_t{1} << 59;  // as many can be counted in bytes, in 64 bits

/// Return uninitialized memory that is aligned for every type.
std::shared_ptr<std::byte> allocate(std::size_t num_bytes) {
  auto owner = std::shared_ptr<std::uint64_t[]>(new std::uint64_t[(num_bytes + 7) / 8]);
  return {owner, reinterpret_cast<std::byte*>(owner.get())};
}

Shape shape_of(const v1::Tensor& tensor) {
  const Shape shape(tensor.shape().begin(), tensor.shape().end());
  if (tensor.shape_size() > max_axes) {
    throw Malformed("shape", "at most " + std::to_string(max_axes) + " sizes", std::to_string(shape.size()));
  }
  std::int64_t count = 1;
  for (const std::int64_t length : shape) {
    if (length < 0) throw Malformed("shape", "sizes of at least 0", text_of(shape));
    if (length > 0 && count > max_elements / length) {
      throw Malformed("shape", "sizes whose product is at most 2^59", text_of(shape));
    }
    if (length > 0) count *= length;
  }
  return shape;
}

/// Return the data of a tensor, without a copy if it is aligned for elements of a size.
std::shared_ptr<std::byte> shared_data(v1::Tensor& tensor, std::size_t element_size) {
  if (tensor.data().empty()) return allocate(0);
  auto owner = std::shared_ptr<std::string>(tensor.release_data());
  auto* const data = reinterpret_cast<std::byte*>(owner->data());
  if (reinterpret_cast<std::uintptr_t>(data) % element_size == 0) return {owner, data};
  auto copied = allocate(owner->size());
  std::memcpy(copied.get(), data, owner->size());
  return copied;
}

/// Return the largest number of bytes that a compressed byte can stand for, by the definition of the format.
std::size_t max_ratio(v1::Compression compression) {
  switch (compression) {
    case v1::COMPRESSION_LZ4:
      return 255;
    case v1::COMPRESSION_ZSTD:
      return 1 << 15;
    default:
      throw Malformed("compression", "a member of Compression", std::to_string(static_cast<int>(compression)));
  }
}

}  // namespace

Array array_of(v1::Tensor& tensor, TensorUse use) {
  const auto data_type = static_cast<DataType>(tensor.data_type());
  const std::size_t element_size = size_of(data_type);
  if (element_size == 0) throw Malformed("data_type", "a member of DataType", std::to_string(tensor.data_type()));
  Shape shape = shape_of(tensor);
  std::size_t num_bytes = element_size;
  for (const std::int64_t length : shape) num_bytes *= static_cast<std::size_t>(length);

  std::shared_ptr<std::byte> data;
  if (tensor.compression() == v1::COMPRESSION_UNSPECIFIED) {
    if (tensor.data().size() != num_bytes) {
      throw Malformed("data", std::to_string(num_bytes) + " bytes", std::to_string(tensor.data().size()));
    }
    data = shared_data(tensor, element_size);
  } else if (use == TensorUse::Column) {
    data = decompressed(tensor.data(), tensor.compression(), num_bytes);
  } else {
    throw Malformed("compression", "none, as only columns of batches may be compressed", "one");
  }
  if (data_type == DataType::Bool) {  // other bytes would be undefined behaviour
    for (std::size_t i = 0; i < num_bytes; ++i) {
      const int value = std::to_integer<int>(data.get()[i]);
      if (value > 1) throw Malformed("data", "truth values of 0 or 1", std::to_string(value));
    }
  }
  return Array(data_type, std::move(shape), std::move(data));
}

void write_tensor(const std::string& field, const Array& array, v1::Tensor& tensor) {
  if (size_of(array.data_type()) == 0) raise_invalid(field, "an array of a known type", array.text());
  tensor.set_data_type(static_cast<v1::DataType>(array.data_type()));
  tensor.mutable_shape()->Add(array.shape().begin(), array.shape().end());
  const auto bytes = array.bytes();
  if (!bytes.empty()) tensor.set_data(bytes.data(), bytes.size());
}

void write_named(const std::string& field, const Columns& arrays,
                 google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors) {
  for (const auto& [name, array] : arrays) {
    v1::NamedTensor& named = *tensors.Add();
    named.set_name(name);
    write_tensor(field + "['" + name + "']", array, *named.mutable_tensor());
  }
}

std::shared_ptr<std::byte> decompressed(const std::string& data, v1::Compression compression, std::size_t num_bytes) {
  if (num_bytes > max_raw_bytes || num_bytes > max_ratio(compression) * data.size()) {
    throw Malformed("data", "enough bytes for " + std::to_string(num_bytes),
                    std::to_string(data.size()) + " compressed bytes");
  }
  auto raw = allocate(num_bytes);
  std::string got;
  if (compression == v1::COMPRESSION_LZ4) {
    // num_bytes is at most 256 MiB, so that both sizes fit into an int: more compressed bytes are malformed.
    const bool fits = data.size() <= static_cast<std::size_t>(LZ4_MAX_INPUT_SIZE);
    const int size = fits ? LZ4_decompress_safe(data.data(), reinterpret_cast<char*>(raw.get()),
                                                static_cast<int>(data.size()), static_cast<int>(num_bytes))
                          : -1;
    if (size < 0)
      got = "no block of LZ4 of that size";
    else if (static_cast<std::size_t>(size) != num_bytes)
      got = std::to_string(size) + " bytes";
  } else {
    const std::size_t size = ZSTD_decompress(raw.get(), num_bytes, data.data(), data.size());
    if (ZSTD_isError(size) != 0)
      got = ZSTD_getErrorName(size);
    else if (size != num_bytes)
      got = std::to_string(size) + " bytes";
  }
  if (!got.empty()) {
    throw Malformed(
        "data", std::to_string(num_bytes) + " bytes, compressed by " + std::string(v1::Compression_Name(compression)),
        got);
  }
  return raw;
}

}  // namespace rollserve::internal
