#pragma once

#include <string>

namespace rollserve::host {

/// Throw the error of a field.
[[noreturn]] void reject(const std::string& field, const std::string& expected, const std::string& got);

/// Throw the error of a field unless a condition holds.
void expect(bool holds, const std::string& field, const std::string& expected, const std::string& got);

/// Return the text of the exception that is being handled.
std::string text_of_exception();

}  // namespace rollserve::host
