// A small pool of threads that share the tasks of one step.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <thread>
#include <vector>

namespace tersify {

// The body of a step: task number, then the number of the thread that runs it.
struct Job {
  void (*call)(const void* self, int task, int thread);
  const void* self;
};

class Pool {
 public:
  explicit Pool(int threads);
  ~Pool();
  Pool(const Pool&) = delete;
  Pool& operator=(const Pool&) = delete;

  int threads() const { return static_cast<int>(workers_.size()) + 1; }

  // Runs every task once and returns when all are done. The caller works too.
  void run(int tasks, const Job& job);

  template <class Body>
  void run(int tasks, const Body& body) {
    run(tasks, Job{[](const void* self, int task, int thread) {
                     (*static_cast<const Body*>(self))(task, thread);
                   },
                   &body});
  }

 private:
  void work(int thread);
  void drain(int thread);

  std::vector<std::thread> workers_;
  Job job_{};
  int tasks_ = 0;
  // The number of the job in the upper half, its unclaimed tasks in the lower: a thread that comes late can
  // neither claim a task of a job it has not seen nor be waited for.
  std::atomic<uint64_t> state_{0};
  std::atomic<int> done_{0};
  std::atomic<int> sleepers_{0};
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::condition_variable wake_;
};

}  // namespace tersify
