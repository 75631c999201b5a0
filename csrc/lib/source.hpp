// The bytes of a file, on disk or in memory, and the sections that its header names.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "lib/problem.hpp"

namespace tersify::lib {

using Bytes = std::vector<uint8_t>;

class Source {
 public:
  virtual ~Source() = default;
  virtual uint64_t size() const = 0;
  virtual void read(uint64_t at, uint8_t* out, size_t count) const = 0;  // within the size; thread-safe
};

std::shared_ptr<const Source> source_of_path(const std::string& path);  // throws CannotRead
std::shared_ptr<const Source> source_of_memory(const void* data, size_t size);  // keeps a copy

class Sections {
 public:
  explicit Sections(std::shared_ptr<const Source> source);  // throws BadFile
  bool has(std::string_view name) const { return spans_.find(name) != spans_.end(); }
  uint64_t size(std::string_view name) const;
  Bytes read(std::string_view name) const;
  uint64_t file_bytes() const { return source_->size(); }

 private:
  struct Span {
    uint64_t begin, end;
  };
  const Span& span(std::string_view name) const;
  void add_parts_of_small();  // the directory and the groups of a small file, which lie in one section
  std::shared_ptr<const Source> source_;
  std::map<std::string, Span, std::less<>> spans_;
  uint64_t data_ = 0;
};

// Of one zstd frame that states its content size, at most `limit` bytes; it may refer to the text `before` it.
Bytes unzip(const uint8_t* data, size_t size, uint64_t limit, const char* what, std::string_view before = {});
void unzip_into(const uint8_t* data, size_t size, uint8_t* out, size_t out_size, const char* what,
                std::string_view before = {});
uint32_t crc32(const uint8_t* data, size_t size);

}  // namespace tersify::lib
