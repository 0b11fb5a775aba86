#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include "rollserve/session.h"
#include "rollserve/v1/sampler_service.pb.h"

namespace rollserve::internal {

/// The type and the shape of a row of a column.
struct RowForm {
  DataType data_type;
  Shape shape;
};

/// Forms of columns by name.
using RowForms = std::vector<std::pair<std::string, RowForm>>;

/// Return the form of each leaf's values, by the leaf's name.
RowForms leaf_forms(const Space& space);

/// Write columns with a row for each row of a session.
///
/// @param field the name that errors begin with.
/// @throws InvalidArgumentError for columns of other names, types or shapes.
void write_rows(const std::string& field, const Columns& columns, const RowForms& forms, std::size_t num_rows,
                google::protobuf::RepeatedPtrField<v1::NamedTensor>& tensors);

/// Return the step that a message describes, of all rows or of those that are ready. The message gives up the memory of
/// its columns.
///
/// @throws Malformed for a message that violates the contract.
DrivenStep step_of(v1::DrivenStep& message, bool is_ready);

}  // namespace rollserve::internal
