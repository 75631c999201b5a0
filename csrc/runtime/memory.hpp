// Bytes aligned for the widest vectors; growing forgets what they held. A vector that begins or ends outside them may
// still be read: what it holds there means nothing.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>

namespace tersify {

class AlignedBytes {
 public:
  static constexpr size_t kAlign = 64;
  static size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  void grow(size_t bytes) {
    if (bytes <= size_) return;
    void* fresh = std::aligned_alloc(kAlign, rounded(bytes) + 2 * kAlign);
    if (!fresh) throw std::bad_alloc();
    data_.reset(static_cast<char*>(fresh));
    size_ = bytes;
  }
  char* data() { return data_ ? data_.get() + kAlign : nullptr; }
  const char* data() const { return data_ ? data_.get() + kAlign : nullptr; }
  size_t size() const { return size_; }

 private:
  struct Free {
    void operator()(char* p) const { std::free(p); }
  };
  std::unique_ptr<char, Free> data_;
  size_t size_ = 0;
};

}  // namespace tersify
