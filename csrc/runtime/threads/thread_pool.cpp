#include "threads/thread_pool.hpp"

#include <chrono>

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tersify {
namespace {

using Clock = std::chrono::steady_clock;

// A thread that waits spins, then yields, then sleeps: the next layer is usually microseconds away, another process may
// want the core meanwhile, and an idle network must cost nothing.
constexpr int kSpins = 2000;
constexpr std::chrono::microseconds kPatience(500);  // covers what a caller does between two images

constexpr uint64_t kNextJob = uint64_t{1} << 32;
int unclaimed(uint64_t state) { return static_cast<int>(state % kNextJob); }

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

template <class Ready>
bool wait_awake(const Ready& ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    pause_briefly();
  }
  const auto end = Clock::now() + kPatience;
  do {
    if (ready()) return true;
    std::this_thread::yield();
  } while (Clock::now() < end);
  return ready();
}

}  // namespace

ThreadPool::ThreadPool(int threads) : threads_(threads), queues_(new Queue[threads]) {
  try {
    for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
  } catch (...) {  // the system gives no more threads
    join();
    throw;
  }
}

ThreadPool::~ThreadPool() { join(); }

void ThreadPool::join() {
  stop_ = true;
  wake();
  for (auto& worker : workers_) worker.join();
}

void ThreadPool::wake() {
  ++calls_;
  if (sleepers_ == 0) return;
  std::lock_guard<std::mutex> lock(mutex_);
  called_.notify_all();
}

void ThreadPool::drain(int thread) {
  for (int i = 0; i < threads_; ++i) {
    const int owner = (thread + i) % threads_;
    std::atomic<uint64_t>& queue = queues_[owner].state;
    for (uint64_t state = queue; unclaimed(state) > 0;) {
      if (!queue.compare_exchange_weak(state, state - 1)) continue;
      // Claimed: until it is done the job cannot end, so job_, tasks_ and backwards_ stay as they are.
      job_.call(job_.self, claimed_task(owner, unclaimed(state)), thread);
      ++done_;
      state = queue;
    }
  }
}

void ThreadPool::run(int tasks, const Job& job) {
  if (tasks <= 1 || workers_.empty()) {
    for (int task = 0; task < tasks; ++task) job.call(job.self, backwards_ ? tasks - 1 - task : task, 0);
    return;
  }
  job_ = job;
  tasks_ = tasks;
  done_ = 0;
  for (int t = 0; t < threads_; ++t) {
    std::atomic<uint64_t>& queue = queues_[t].state;
    queue = (queue / kNextJob + 1) * kNextJob + static_cast<uint32_t>(first_task(t + 1) - first_task(t));
  }
  wake();
  drain(0);
  while (!wait_awake([&] { return done_ == tasks; })) {
  }
}

void ThreadPool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    auto called = [&] { return calls_ != seen; };
    if (!wait_awake(called)) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleepers_;
      called_.wait(lock, called);
      --sleepers_;
    }
    seen = calls_;
    if (stop_) return;
    drain(thread);
  }
}

}  // namespace tersify
