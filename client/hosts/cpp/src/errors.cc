#include "errors.h"

#include <stdexcept>

namespace rollserve::host {

void reject(const std::string& field, const std::string& expected, const std::string& got) {
  throw std::invalid_argument(field + ": expected " + expected + ", got " + got);
}

void expect(bool holds, const std::string& field, const std::string& expected, const std::string& got) {
  if (!holds) reject(field, expected, got);
}

std::string text_of_exception() {
  try {
    throw;
  } catch (const std::exception& error) {
    return error.what();
  } catch (...) {
    return "an exception that is no std::exception";
  }
}

}  // namespace rollserve::host
