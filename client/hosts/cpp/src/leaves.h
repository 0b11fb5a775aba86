#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "rollserve/host.h"

namespace rollserve::host {

/// A leaf of a space: a column of the wire.
struct Leaf {
  std::string name;                 // the path from the root
  v1::DataType data_type;           // of each element
  std::vector<std::int64_t> shape;  // of a value
  std::size_t size;                 // of a value, in bytes
  std::vector<std::int64_t> low;    // the least value of each element, inclusive; empty for no bounds
  std::vector<std::int64_t> high;   // the greatest value of each element, inclusive
};

/// Return the leaves of a space, in its order.
std::vector<Leaf> leaves_of(const v1::Space& space);

/// The columns of observations of some rows.
class ObservationColumns {
 public:
  /// Begin with zeros. The leaves have to outlive this object.
  ObservationColumns(const std::vector<Leaf>& leaves, std::size_t num_rows);

  /// Set the observation of a row, or throw if it is not of the leaves.
  void set(std::size_t row, const Value& observation);

  /// Move all columns into results.
  void write(rows::v1::Results& results);

 private:
  const std::vector<Leaf>& leaves_;
  std::size_t num_rows_;
  std::vector<std::string> columns_;
};

/// Columns of a message.
using Columns = google::protobuf::RepeatedPtrField<v1::NamedTensor>;

/// Check that actions have the names, types and shapes of leaves for a number of rows, and integers in range.
void check_actions(const Columns& columns, const std::vector<Leaf>& leaves, std::size_t num_rows);

/// Return the action of a row in columns that have been checked.
Value action_of(const Columns& columns, const std::vector<Leaf>& leaves, std::size_t row);

}  // namespace rollserve::host
