#include "pool.hpp"

#if defined(__x86_64__)
#include <immintrin.h>
#endif

namespace tersify {
namespace {

// Waits in three tempers: the next layer is usually microseconds away, another process may want the
// core, and an idle network must cost nothing.
constexpr int kSpins = 3000;
constexpr int kYields = 60;

constexpr uint64_t kNextJob = uint64_t{1} << 32;
int unclaimed(uint64_t state) { return static_cast<int>(state % kNextJob); }

void pause_briefly() {
#if defined(__x86_64__)
  _mm_pause();
#endif
}

template <class Ready>
bool spin_until(const Ready& ready) {
  for (int i = 0; i < kSpins; ++i) {
    if (ready()) return true;
    pause_briefly();
  }
  for (int i = 0; i < kYields; ++i) {
    if (ready()) return true;
    std::this_thread::yield();
  }
  return ready();
}

}  // namespace

Pool::Pool(int threads) {
  for (int i = 1; i < threads; ++i) workers_.emplace_back([this, i] { work(i); });
}

Pool::~Pool() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    stop_ = true;
    state_ += kNextJob;
  }
  wake_.notify_all();
  for (auto& worker : workers_) worker.join();
}

void Pool::drain(int thread) {
  for (uint64_t state = state_; unclaimed(state) > 0;) {
    if (!state_.compare_exchange_weak(state, state - 1)) continue;
    // Claimed: until it is done the job cannot end, so job_ and tasks_ stay as they are.
    job_.call(job_.self, tasks_ - unclaimed(state), thread);
    ++done_;
    state = state_;
  }
}

void Pool::run(int tasks, const Job& job) {
  if (tasks <= 1 || workers_.empty()) {
    for (int task = 0; task < tasks; ++task) job.call(job.self, task, 0);
    return;
  }
  job_ = job;
  tasks_ = tasks;
  done_ = 0;
  state_ = (state_ / kNextJob + 1) * kNextJob + static_cast<uint32_t>(tasks);
  if (sleepers_ > 0) {
    std::lock_guard<std::mutex> lock(mutex_);
    wake_.notify_all();
  }
  drain(0);
  while (!spin_until([&] { return done_ == tasks; })) std::this_thread::yield();
}

void Pool::work(int thread) {
  uint64_t seen = 0;
  for (;;) {
    auto called = [&] { return state_ / kNextJob != seen; };
    if (!spin_until(called)) {
      std::unique_lock<std::mutex> lock(mutex_);
      ++sleepers_;
      wake_.wait(lock, called);
      --sleepers_;
    }
    seen = state_ / kNextJob;
    if (stop_) return;
    drain(thread);
  }
}

}  // namespace tersify
