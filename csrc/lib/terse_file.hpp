// An open .terse file: its tensors by name, decoded when they are asked for, within a limit of memory.
#pragma once

#include <memory>
#include <mutex>

#include "lib/entries.hpp"
#include "lib/source.hpp"

namespace tersify::lib {

class TerseFile {
 public:
  TerseFile(std::shared_ptr<const Source> source, uint64_t max_bytes);  // throws BadFile, TooLarge

  const Sections& sections() const { return sections_; }
  uint64_t max_bytes() const { return max_bytes_; }
  const Entry& entry(std::string_view name) const { return directory_->entry(name); }
  // The entry that holds its parts: itself, or another of which it is a view.
  const Entry& content(const Entry& entry) const {
    return directory_->entries[size_t(directory_->index_of_content(entry))];
  }
  // Thread-safe. The codes of a tensor, one byte each; its numbers as 32-bit floats.
  Bytes codes(std::string_view name) const;
  std::vector<float> floats(std::string_view name) const;
  // Nothing is kept decoded from now on, until something is asked for again.
  void forget() const;

 private:
  std::shared_ptr<const Bytes> group(int64_t index) const;
  Bytes part(int entry, PartKind kind, int64_t first, int64_t blocks, int width) const;
  Bytes codes_of(int entry) const;
  std::vector<float> floats_of(int entry) const;
  std::vector<float> array(int entry, PartKind kind, const Part& part) const;

  Sections sections_;
  uint64_t max_bytes_;
  std::unique_ptr<const Directory> directory_;
  mutable std::mutex mutex_;
  mutable int64_t recent_ = -1;  // the last group: the next tensor is often in the same one
  mutable std::shared_ptr<const Bytes> decoded_;
};

}  // namespace tersify::lib
