// What the engines of one network share: an instruction set, a thread pool, and memory for activations.
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "isa/isa.hpp"
#include "layout/aligned_bytes.hpp"
#include "threads/thread_pool.hpp"

namespace tersify {

class Workspace {
 public:
  // In order: fp32 sums have the same bits on every instruction set, which int8 networks promise.
  Workspace(Isa isa, int threads, bool in_order = false);
  ~Workspace();
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  Isa isa() const { return isa_; }
  const Kernels& kernels() const { return kernels_; }
  int threads() const { return threads_; }
  bool in_order() const { return in_order_; }
  size_t arena_bytes();
  HugePages& pages() { return pages_; }  // for weights that are read whole in every run

  // Whoever holds it is alone with everything that runs change: the pool, the memory, lazily packed weights.
  std::unique_lock<std::mutex> lock() { return std::unique_lock<std::mutex>(running_); }

  // One run: it holds the lock for as long as it lives.
  class Turn {
   public:
    explicit Turn(Workspace& workspace);
    ThreadPool& pool() { return *workspace_.pool_; }
    // Memory for the first `arenas` threads, and scratch for all.
    void reserve(int arenas, size_t arena_bytes, size_t scratch_bytes);
    char* arena(int thread) { return workspace_.arenas_[thread].data(); }
    char* scratch(int thread) { return workspace_.scratch_[thread].data(); }

   private:
    Workspace& workspace_;
    std::unique_lock<std::mutex> lock_;
  };

 private:
  friend struct ForkGuard;
  void shrink_memory();

  Isa isa_;
  const Kernels& kernels_;
  int threads_;
  bool in_order_;
  std::mutex running_;
  HugePages pages_;
  std::unique_ptr<ThreadPool> pool_;            // made by the first run, in each process
  std::vector<AlignedBytes> arenas_, scratch_;  // one a thread
  int turns_ = 0;                               // since memory was last shrunk
  size_t most_arena_ = 0, most_scratch_ = 0;    // that any of these turns needed
};

}  // namespace tersify
