// Matrix products of float vectors with every weight, as steps, and rows of the same matrix by their numbers.
#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

constexpr int kTasksPerThread = 4;

}  // namespace

int Engine::linear_rows(int in, std::shared_ptr<const RowWeights> weights, Epilogue epilogue) {
  use(weights, "linear layer");
  const RowMatrix& matrix = weights->matrix;
  const int rows = matrix.rows(), features = matrix.features(), per_item = vectors_of(in, features);
  auto constants = std::make_shared<Epilogue>(epilogue.checked(rows).folded());
  return add({in}, checked_shape(1, per_item, rows), [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {}), count = s.items(in) * per_item;
    const int blocks = weights->matrix.blocks(), tasks = std::min(blocks, kTasksPerThread * s.threads());
    Step step(weights->matrix.kernel_name());
    step.tasks = tasks;
    step.reads = {source};
    step.writes = {target};
    step.run = [=, k = &s.kernels()](char* const* b, int task, char*) {
      const int end = int(size_t(blocks) * (task + 1) / tasks);
      for (int block = int(size_t(blocks) * task / tasks); block < end; ++block) {
        RowsTask t = weights->matrix.task(block);
        t.vectors = count;
        t.x = reinterpret_cast<const float*>(b[source]);
        t.out = reinterpret_cast<float*>(b[target]) + t.first_row;
        t.out_stride = rows;
        t.epilogue = constants->view();
        k->linear_rows(t);
      }
    };
    s.add(std::move(step));
    s.add_cost(double(count) * rows * features / s.lanes());
  });
}

int Engine::embedding_rows(int in, std::shared_ptr<const RowWeights> weights, std::vector<float> scale) {
  use(weights, "embedding");
  const int width = weights->matrix.features();
  if (!scale.empty() && scale.size() != size_t(weights->matrix.rows()))
    throw std::invalid_argument("an embedding of " + std::to_string(weights->matrix.rows()) +
                                " rows needs as many scales or none, got " + std::to_string(scale.size()));
  auto factors = std::make_shared<std::vector<float>>(std::move(scale));
  return add_embedding(in, weights->matrix.rows(), width, [=](int64_t row, float* out) {
    weights->matrix.read(row, out);
    if (factors->empty()) return;
    for (int i = 0; i < width; ++i) out[i] *= (*factors)[row];
  });
}

}  // namespace tersify
