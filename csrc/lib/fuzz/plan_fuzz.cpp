// Files from stdin, each behind its length of 8 bytes, through the whole C border: open, describe, run, free. Built with
// sanitizers: tests/hostile/plan_fuzz.py makes the files and reads the counts.
#include <cstdint>
#include <cstdio>
#include <vector>

#include "lib/include/tersify.h"

namespace {

constexpr uint64_t kMaxBytes = uint64_t(1) << 26;

struct Tensors {
  std::vector<std::vector<int64_t>> memory;  // 8 bytes an element: room for floats and ids alike
  std::vector<tersify_tensor> tensors;

  // Small numbers of both signs; ids are 0 or 1.
  bool add(const tersify_port& port, const std::vector<int64_t>& shape) {
    uint64_t count = 1;
    for (const int64_t number : shape) {
      const uint64_t size = uint64_t(number);
      if (count > kMaxBytes / sizeof(int64_t) / size) return false;
      count *= size;
    }
    memory.emplace_back(count);
    float* floats = reinterpret_cast<float*>(memory.back().data());
    for (uint64_t i = 0; i < count; ++i) {
      if (port.dtype == TERSIFY_INT64)
        memory.back()[i] = int64_t(i % 2);
      else
        floats[i] = float(i % 17) / 8 - 1;
    }
    tensors.push_back({memory.back().data(), count});
    return true;
  }
};

// The sizes of a port, as the library says them.
bool sized(const tersify_model* model, int output, size_t number, int64_t batch, int64_t length, Tensors& tensors) {
  tersify_port port;
  if (output ? tersify_output(model, number, &port) : tersify_input(model, number, &port)) return false;
  std::vector<int64_t> shape(port.rank);
  return !tersify_sizes(model, output, number, batch, length, shape.data()) && tensors.add(port, shape);
}

tersify_status run(tersify_model* model, int64_t batch) {
  tersify_facts facts;
  if (const tersify_status status = tersify_describe(model, &facts)) return status;
  for (size_t i = 0; i <= facts.labels; ++i) tersify_label(model, i);
  const int64_t items = facts.batch ? facts.batch : batch;
  int64_t lengths[3];
  if (const tersify_status status = tersify_lengths(model, lengths)) return status;
  const int64_t length = lengths[0] + (lengths[1] ? lengths[1] * (batch % 3) : 0);
  Tensors inputs, outputs;
  for (size_t i = 0; i < facts.inputs; ++i)
    if (!sized(model, 0, i, items, length, inputs)) return TERSIFY_TOO_LARGE;
  for (size_t i = 0; i < facts.outputs; ++i)
    if (!sized(model, 1, i, items, length, outputs)) return TERSIFY_TOO_LARGE;
  tersify_options options{};
  options.max_bytes = kMaxBytes;
  tersify_session* session = nullptr;
  tersify_status status = tersify_session_new(model, &options, &session);
  if (status == TERSIFY_OK) status = tersify_run(session, items, inputs.tensors.data(), outputs.tensors.data());
  tersify_session_free(session);
  return status;
}

}  // namespace

int main() {
  long counts[TERSIFY_INTERNAL + 1] = {};
  uint64_t length = 0;
  int64_t number = 0;
  while (std::fread(&length, sizeof length, 1, stdin) == 1) {
    std::vector<char> file(length);  // its end is the end of an allocation: reading on is seen
    if (std::fread(file.data(), 1, length, stdin) != length) return 2;
    tersify_model* model = nullptr;
    tersify_status status = tersify_open_memory(file.data(), file.size(), kMaxBytes, &model);
    if (status == TERSIFY_OK) status = run(model, 1 + number % 3);
    tersify_close(model);
    ++counts[status];
    ++number;
    // An error that no rule of the file explains is a fault of ours.
    if (status == TERSIFY_INTERNAL) {
      std::fprintf(stderr, "file %lld: %s\n", static_cast<long long>(number - 1), tersify_last_error());
      return 3;
    }
  }
  for (int code = 0; code <= TERSIFY_INTERNAL; ++code) std::printf("%ld ", counts[code]);
  std::printf("\n");
  return 0;
}
