// Memory on huge pages that the weights of a network share. A matrix of a few megabytes alone would end on small pages,
// where reading it in order waits for translations of addresses.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdlib>
#include <memory>
#include <mutex>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace tersify {

class HugePages {
 public:
  static constexpr size_t kPage = size_t(1) << 21;
  static constexpr size_t kLeast = kPage / 4;       // smaller matrices stay in the cache, or are few
  static constexpr size_t kStretch = 64 * kPage;    // taken at a time; what nobody writes takes no memory

  // `bytes`, a multiple of 64, that no part before has; what is left of a stretch when a part does not fit is not used.
  // Null: the caller allocates for itself.
  std::shared_ptr<char> part(size_t bytes) {
#if defined(__linux__)
    if (bytes < kLeast) return nullptr;
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!stretch_ || left_ < bytes) {
      const size_t size = std::max(kStretch, (bytes + kPage - 1) / kPage * kPage);
      void* made = mmap(nullptr, size + kPage, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (made == MAP_FAILED) return nullptr;
      char* first = static_cast<char*>(made) + (kPage - reinterpret_cast<size_t>(made) % kPage) % kPage;
      madvise(first, size, MADV_HUGEPAGE);  // no harm where refused
      stretch_ = std::shared_ptr<char>(first, [=](char*) { munmap(made, size + kPage); });
      left_ = size, used_ = 0;
    }
    const std::shared_ptr<char> found(stretch_, stretch_.get() + used_);
    used_ += bytes, left_ -= bytes;
    return found;
#else
    (void)bytes;
    return nullptr;
#endif
  }

 private:
  std::mutex mutex_;
  std::shared_ptr<char> stretch_;  // lives as long as any of its parts
  size_t used_ = 0, left_ = 0;
};

}  // namespace tersify
