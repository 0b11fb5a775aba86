#pragma once

#include <cstddef>
#include <string>
#include <vector>

#include "rollserve/array.h"

namespace rollserve::internal {

/// Return a value of each part in one array, in new memory. Each part gives up its columns, so that memory that nobody
/// else needs is freed column by column.
///
/// @param field the name that errors begin with.
/// @param parts columns of the same names, types and row shapes.
/// @throws Malformed for columns that differ.
Columns concatenate_columns(const std::string& field, std::vector<Columns> parts);

/// Return the rows of arrays of one type and row shape in a new array.
Array concatenate_arrays(const std::vector<Array>& arrays);

/// Return the infos of all parts, one part after the other, in new memory. An info that a part lacks is a gap of the
/// part's length. An info of several types gets one that holds each value; see `common_type`.
///
/// @param field the name that errors begin with.
/// @param parts infos of each part.
/// @param lengths the number of rows of each part.
/// @throws Malformed for an info whose row shape differs between parts, or that no common type holds.
Columns concatenate_infos(const std::string& field, const std::vector<Columns>& parts,
                          const std::vector<std::size_t>& lengths);

/// Return the type that holds each value of all arrays: numpy's `result_type`, but uint64 for signed integers beside
/// uint64.
///
/// @param field the name that errors begin with.
/// @throws Malformed for a negative integer beside uint64, or one beyond 2^53 beside floats.
DataType common_type(const std::string& field, const std::vector<const Array*>& arrays);

/// Return the columns without masks that are true in every row.
Columns without_full_masks(const Columns& columns);

/// Return the elements of an array of integers as int64.
std::vector<std::int64_t> integers_of(const Array& array);

}  // namespace rollserve::internal
