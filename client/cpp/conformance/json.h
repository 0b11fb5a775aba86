#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <stdexcept>
#include <string>
#include <utility>

namespace conformance {

using Json = nlohmann::ordered_json;

/// Something that an operation asks for, and the client does not have.
class Unsupported : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// The fields of a JSON object, all of which have to be taken: a field that is left asks for what the client lacks.
class Fields {
 public:
  explicit Fields(Json object) : left_(std::move(object)) {}

  /// Whether a field is there, and not taken yet.
  bool has(const char* name) const { return left_.contains(name); }
  /// Take a field that has to be there.
  Json take(const char* name) {
    Json value = std::move(left_.at(name));
    left_.erase(name);
    return value;
  }
  /// Take a field, or an empty object if it is absent.
  Json take_object(const char* name) { return has(name) ? take(name) : Json::object(); }
  /// Take a field into a variable, which stays as it is if the field is absent.
  template <class T>
  void read(const char* name, T& to) {
    if (has(name)) to = take(name).get<T>();
  }
  /// Take a field into an optional variable.
  template <class T>
  void read(const char* name, std::optional<T>& to) {
    if (has(name)) to = take(name).get<T>();
  }
  /// Take a field of any kind as JSON text.
  void read_text(const char* name, std::string& to) {
    if (has(name)) to = take(name).dump();
  }
  /// Throw Unsupported if a field is left.
  void finish() const {
    if (!left_.empty()) throw Unsupported("no '" + left_.begin().key() + "' here");
  }

 private:
  Json left_;
};

}  // namespace conformance
