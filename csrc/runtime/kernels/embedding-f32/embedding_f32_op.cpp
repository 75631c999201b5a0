// Rows of a matrix by their numbers.
#include <algorithm>
#include <cstring>

#include "engine/schedule.hpp"

namespace tersify {

int Engine::embedding(int in, std::shared_ptr<const EmbeddingWeights> weights) {
  use(weights, "embedding");
  return add_embedding(in, weights->rows, weights->width,
                       [=](int64_t row, float* out) { weights->table.read(row, out); });
}

int Engine::add_embedding(int in, int rows, int width, std::function<void(int64_t row, float* out)> read) {
  if (in < 0 || in >= int(values_.size()) || !values_[in].ids)
    throw std::invalid_argument("an embedding reads ids, and value " + std::to_string(in) + " is none");
  const Value ids = values_[in];
  Value& root = values_[ids.root];
  root.rows = root.rows ? std::min<int64_t>(root.rows, rows) : rows;
  const int per_item = ids.shape.numel();
  return add({in}, checked_shape(1, per_item, width), [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    const int count = s.items(in) * per_item, tasks = std::min(count, s.threads());
    Step step("embedding");
    step.tasks = tasks;
    step.reads = {source};
    step.writes = {target};
    step.run = [=](char* const* b, int task, char*) {
      const int end = int(size_t(count) * (task + 1) / tasks);
      for (int i = int(size_t(count) * task / tasks); i < end; ++i) {
        int64_t row;
        std::memcpy(&row, b[source] + size_t(i) * sizeof row, sizeof row);
        read(row, reinterpret_cast<float*>(b[target]) + size_t(i) * width);
      }
    };
    s.add(std::move(step));
  });
}

}  // namespace tersify
