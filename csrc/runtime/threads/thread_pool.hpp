// A small pool of threads that share the tasks of one step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

namespace tersify {

// The body of a step: task number, then the number of the thread that runs it.
struct Job {
  void (*call)(const void* self, int task, int thread);
  const void* self;
};

class ThreadPool {
 public:
  explicit ThreadPool(int threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int threads() const { return threads_; }

  // Jobs will follow soon: threads that sleep wake up meanwhile.
  void wake();

  // From now on every thread takes its tasks in the other order: what it read last is still in its cache, where not all
  // of it fits.
  void reverse_order() { backwards_ = !backwards_; }

  // Runs every task once and returns when all are done. The caller works too.
  void run(int tasks, const Job& job);

  template <class Body>
  void run(int tasks, const Body& body) {
    run(tasks,
        Job{[](const void* self, int task, int thread) { (*static_cast<const Body*>(self))(task, thread); }, &body});
  }

 private:
  // Every thread has a queue of tasks, the same in every run, so that what it reads is still in its cache. A thread
  // whose queue is empty takes tasks of the others; a thread that wakes late finds its queue empty, and nobody waits
  // for it.
  struct alignas(64) Queue {
    // The number of the job in the upper half, the unclaimed tasks in the lower: a thread can neither claim a task of a
    // job it has not seen nor one of a job that has ended.
    std::atomic<uint64_t> state{0};
  };

  void work(int thread);
  void join();
  void drain(int thread);
  int claimed_task(int owner, int unclaimed) const {
    return backwards_ ? first_task(owner) + unclaimed - 1 : first_task(owner + 1) - unclaimed;
  }
  int first_task(int thread) const { return static_cast<int>(int64_t(tasks_) * thread / threads_); }

  int threads_;
  std::unique_ptr<Queue[]> queues_;
  Job job_{};
  int tasks_ = 0;
  bool backwards_ = false;
  alignas(64) std::atomic<uint64_t> calls_{0};  // jobs, and calls to wake up
  alignas(64) std::atomic<int> done_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable called_;
  std::vector<std::thread> workers_;
};

}  // namespace tersify
