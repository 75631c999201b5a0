// Bytes aligned for the widest vectors; growing forgets what they held. A vector that begins or ends outside them may
// still be read: what it holds there means nothing.
#pragma once

#include <cstddef>
#include <cstdlib>
#include <memory>
#include <new>
#include <utility>

#if defined(__linux__)
#include <sys/mman.h>
#elif defined(_WIN32)
#include <malloc.h>
#endif

#include "layout/huge_pages.hpp"

namespace tersify {

class AlignedBytes {
 public:
  static constexpr size_t kAlign = 64;
  static constexpr size_t kHugePage = size_t(1) << 21, kLarge = 2 * kHugePage;
  AlignedBytes() = default;
  AlignedBytes(AlignedBytes&& other) noexcept { *this = std::move(other); }
  AlignedBytes& operator=(AlignedBytes&& other) noexcept {
    data_ = std::move(other.data_);
    size_ = std::exchange(other.size_, 0);
    return *this;
  }
  static size_t rounded(size_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; }

  // `shared`: pages that others have parts of, too.
  void grow(size_t bytes, HugePages* shared = nullptr) {
    if (bytes <= size_) return;
    if (shared)
      if (auto part = shared->part(rounded(bytes) + 2 * kAlign)) {
        data_ = std::move(part);
        size_ = bytes;
        return;
      }
    const size_t align = bytes < kLarge ? kAlign : kHugePage;
    const size_t all = rounded(bytes) + 2 * kAlign;
    void* fresh = allocate(align, all);
    if (!fresh) throw std::bad_alloc();
#if defined(__linux__)
    if (align == kHugePage) {                // fewer translations of addresses; no harm where refused
      const size_t whole = all / kHugePage * kHugePage;   // the rest lies on small pages, or it would take a huge one
      madvise(fresh, whole, MADV_DONTNEED);  // what was used before lies on small pages and would stay there
      madvise(fresh, whole, MADV_HUGEPAGE);
    }
#endif
    data_.reset(static_cast<char*>(fresh), release);
    size_ = bytes;
  }
  char* data() { return data_ ? data_.get() + kAlign : nullptr; }
  const char* data() const { return data_ ? data_.get() + kAlign : nullptr; }
  size_t size() const { return size_; }

 private:
#if defined(_WIN32)  // which has no posix_memalign
  static void* allocate(size_t align, size_t bytes) { return _aligned_malloc(bytes, align); }
  static void release(char* p) { _aligned_free(p); }
#else
  static void* allocate(size_t align, size_t bytes) {
    void* made = nullptr;
    return posix_memalign(&made, align, bytes) == 0 ? made : nullptr;
  }
  static void release(char* p) { std::free(p); }
#endif
  std::shared_ptr<char> data_;
  size_t size_ = 0;
};

}  // namespace tersify
