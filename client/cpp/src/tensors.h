#pragma once

#include <string>

#include "rollserve/array.h"
#include "rollserve/v1/tensor.pb.h"

namespace rollserve::internal {

/// The largest decompressed size of a message, in bytes: the wire contract has no larger messages.
inline constexpr std::size_t max_raw_bytes = std::size_t{256} << 20;

/// Whether a tensor is a column of a batch, which may be compressed.
enum class TensorUse { Column, Other };

/// Return the elements of a tensor, which gives up its data: the array has them without a copy, unless they are
/// compressed or not aligned.
///
/// @throws Malformed for a tensor that violates the contract; its text begins with a field of Tensor.
Array array_of(v1::Tensor& tensor, TensorUse use);

/// Write an array into a tensor.
///
/// @param field the path that errors name.
/// @throws InvalidArgumentError for an array without a type of the wire.
void write_tensor(const std::string& field, const Array& array, v1::Tensor& tensor);

/// Write named arrays, in their order; throws as write_tensor().
void write_named(const std::string& field, const Columns& arrays,
                 google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors);

/// Return data as it was before its compression. Never allocates more than `num_bytes`, and nothing if the data cannot
/// stand for as many.
///
/// @throws Malformed for an unknown codec, malformed data, or data of another decompressed size.
std::shared_ptr<std::byte> decompressed(const std::string& data, v1::Compression compression, std::size_t num_bytes);

}  // namespace rollserve::internal
