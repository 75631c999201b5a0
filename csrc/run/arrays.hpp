// Arrays as tersify-run reads and writes them: .npy files, and .png images as bytes of channels × height × width.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace tersify::run {

struct Array {
  char kind = 'f';  // f: 32-bit floats, i: 64-bit whole numbers, u: bytes
  std::vector<int64_t> shape;
  std::vector<uint8_t> bytes;
  size_t count() const {
    size_t n = 1;
    for (const int64_t size : shape) n *= size_t(size);
    return n;
  }
};

struct BadInput : std::runtime_error {
  using std::runtime_error::runtime_error;
};

std::vector<uint8_t> read_whole(const std::string& path);
Array read_npy(const std::string& path);
// Throws unless there is nothing yet or a regular file, which is none of those that are `read`.
void check_replaceable(const std::string& path, const std::vector<std::string>& read);
void write_npy(const std::string& path, const float* numbers, const std::vector<int64_t>& shape);
Array read_png(const std::string& path);  // [1, 1 or 3, height, width]; transparency is left out

}  // namespace tersify::run
