#pragma once

#include <map>
#include <string>

#include "rollserve/host.h"

namespace rollserve::host {

/// The infos of the rows of one message, by name.
class InfoColumns {
 public:
  /// Add the infos of a row, or none of them if one differs in type or shape from that of another row.
  void add(std::size_t position, const Infos& infos);

  /// Write all infos into the results of a number of rows.
  void write(std::size_t num_rows, rows::v1::Results& results);

 private:
  std::map<std::string, rows::v1::Info> infos_;
};

}  // namespace rollserve::host
