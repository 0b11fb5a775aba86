#pragma once

#include <memory>
#include <string>
#include <vector>

#include "leaves.h"
#include "rollserve/host.h"

namespace rollserve::host {

/// The rows of one connection, and the answers to its requests.
class Rows {
 public:
  /// Begin without rows. The host has to outlive this object.
  explicit Rows(const Host& host) : host_(host) {}

  /// Answer a request, given as the bytes of a message. A request that is refused leaves all rows as they are.
  rows::v1::Response answer(const std::string& message);

 private:
  struct Row {
    std::unique_ptr<Environment> environment;  // null once it has failed
    bool runs = false;                         // whether an episode has begun and not ended
  };
  using Indices = google::protobuf::RepeatedField<std::uint32_t>;
  using Act = std::function<Outcome(Row& row, std::size_t position)>;

  rows::v1::Made make(const rows::v1::Make& make);
  rows::v1::Results reset(const rows::v1::Reset& reset);
  rows::v1::Results step(const rows::v1::Step& step);
  rows::v1::Results run(const Indices& indices, const Act& act);
  void check_indices(const Indices& indices) const;

  const Host& host_;
  rows::v1::Make make_;
  std::vector<Row> rows_;
  std::vector<Leaf> observation_, action_;
  std::uint64_t number_ = 0;  // of the last request
};

}  // namespace rollserve::host
