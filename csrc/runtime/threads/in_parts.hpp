// Work that is done once, such as packing weights, shared by threads that live no longer than it.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

namespace tersify {

constexpr size_t kWeightsPerThread = size_t(1) << 18;  // fewer take less time than starting a thread

// As many threads as so many weights are worth.
inline int threads_for(size_t weights, int threads) {
  return std::max(1, int(std::min<size_t>(weights / kWeightsPerThread, std::max(threads, 1))));
}

// Calls body(part, begin, end) for `parts` parts of [0, count), each on a thread of its own. What a part throws is
// thrown here, after all have ended.
template <class Body>
void in_parts(size_t count, int parts, const Body& body) {
#if defined(__wasm__)  // has no threads, and is fetched before it runs: it carries no code that starts them
  for (int part = 0; part < parts; ++part) body(part, count * part / parts, count * (part + 1) / parts);
#else
  std::vector<std::exception_ptr> thrown(parts);
  auto run = [&](int part) {
    try {
      body(part, count * part / parts, count * (part + 1) / parts);
    } catch (...) {
      thrown[part] = std::current_exception();
    }
  };
  std::vector<std::thread> others;
  others.reserve(parts);
  int next = 1;
  try {
    for (; next < parts; ++next) others.emplace_back(run, next);
  } catch (const std::system_error&) {  // the system gives no more threads: the rest is done here
  }
  run(0);
  for (; next < parts; ++next) run(next);
  for (std::thread& other : others) other.join();
  for (const std::exception_ptr& each : thrown)
    if (each) std::rethrow_exception(each);
#endif
}

}  // namespace tersify
