// What can go wrong with a file or a call, one class for each code of the C API.
#pragma once

#include <stdexcept>

namespace tersify::lib {

struct BadFile : std::runtime_error {  // the bytes are not what docs/reference/format.md says
  using std::runtime_error::runtime_error;
};
// Throws one: a call is smaller than a throw, and there are many.
[[noreturn]] void bad_file(const char* sentence);
struct CannotRead : std::runtime_error {  // there is no such file
  using std::runtime_error::runtime_error;
};
struct NoPlan : std::runtime_error {
  using std::runtime_error::runtime_error;
};
struct TooLarge : std::runtime_error {  // more memory than the caller allows
  using std::runtime_error::runtime_error;
};
struct NotFinite : std::runtime_error {
  using std::runtime_error::runtime_error;
};

}  // namespace tersify::lib
