#include "engine/workspace.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#if !defined(_WIN32)
#include <pthread.h>
#endif

namespace tersify {

// A child process has a copy of all memory but only the thread that called fork. Every workspace is therefore locked
// before a fork, so that no run is halfway through a change, and the child forgets the pools: their threads are not
// there.
struct ForkGuard {
  std::mutex mutex;
  std::vector<Workspace*> workspaces;

  static ForkGuard& instance() {
    static ForkGuard* guard = new ForkGuard;  // never destroyed: a process may fork while it ends
    return *guard;
  }

  ForkGuard() {
#if !defined(_WIN32)
    pthread_atfork([] { instance().lock_all(); }, [] { instance().unlock_all(); }, [] { instance().leave_parent(); });
#endif
  }

  void add(Workspace* workspace) {
    std::lock_guard<std::mutex> lock(mutex);
    workspaces.push_back(workspace);
  }

  void remove(Workspace* workspace) {
    std::lock_guard<std::mutex> lock(mutex);
    workspaces.erase(std::find(workspaces.begin(), workspaces.end(), workspace));
  }

  void lock_all() {
    mutex.lock();
    for (Workspace* workspace : workspaces) workspace->running_.lock();
  }

  void unlock_all() {
    for (Workspace* workspace : workspaces) workspace->running_.unlock();
    mutex.unlock();
  }

  void leave_parent() {
    // Leaked on purpose: destroying a pool joins its threads, which would wait for ever here.
    for (Workspace* workspace : workspaces) static_cast<void>(workspace->pool_.release());
    unlock_all();
  }
};

namespace {

constexpr int kMaxThreads = 1024;
constexpr int kTurnsBetweenShrinks = 256;
constexpr size_t kWorthShrinking = size_t(1) << 22;

int checked_threads(int threads) {
  if (threads < 1 || threads > kMaxThreads)
    throw std::invalid_argument("threads must be 1.." + std::to_string(kMaxThreads) + ", got " +
                                std::to_string(threads));
  return threads;
}

}  // namespace

Workspace::Workspace(Isa isa, int threads, bool in_order)
    : isa_(isa),
      kernels_(kernels_of(isa)),
      threads_(checked_threads(threads)),
      in_order_(in_order),
      arenas_(threads),
      scratch_(threads) {
  ForkGuard::instance().add(this);
}

Workspace::~Workspace() { ForkGuard::instance().remove(this); }

size_t Workspace::arena_bytes() {
  const auto held = lock();
  size_t bytes = 0;
  for (const AlignedBytes& arena : arenas_) bytes += arena.size();
  return bytes;
}

// Memory that one large run needed is given back when no run of the last few hundred came near it.
void Workspace::shrink_memory() {
  auto shrink = [](std::vector<AlignedBytes>& all, size_t most) {
    for (AlignedBytes& bytes : all)
      if (bytes.size() > kWorthShrinking && bytes.size() / 4 > most) bytes = AlignedBytes();
  };
  shrink(arenas_, most_arena_);
  shrink(scratch_, most_scratch_);
  turns_ = 0;
  most_arena_ = most_scratch_ = 0;
}

Workspace::Turn::Turn(Workspace& workspace) : workspace_(workspace), lock_(workspace.running_) {
  if (!workspace_.pool_) workspace_.pool_ = std::make_unique<ThreadPool>(workspace_.threads_);
  if (++workspace_.turns_ > kTurnsBetweenShrinks) workspace_.shrink_memory();
}

void Workspace::Turn::reserve(int arenas, size_t arena_bytes, size_t scratch_bytes) {
  for (int thread = 0; thread < arenas; ++thread) workspace_.arenas_[thread].grow(arena_bytes);
  for (AlignedBytes& scratch : workspace_.scratch_) scratch.grow(scratch_bytes);
  workspace_.most_arena_ = std::max(workspace_.most_arena_, arena_bytes);
  workspace_.most_scratch_ = std::max(workspace_.most_scratch_, scratch_bytes);
}

}  // namespace tersify
