// Recurrent layers, as steps: an item runs through its sequence in one task.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

int gates_of(Cell cell) { return cell == Cell::Lstm ? 4 : 3; }

// Scratch of one item: the state and the cell, each padded, and the gates.
struct Scratch {
  float *state, *cell, *gates;
};

size_t padded_bytes(const StateMatrix& m) { return AlignedBytes::rounded(size_t(m.padded_features()) * sizeof(float)); }

Scratch scratch_of(const StateMatrix& m, char* bytes) {
  const size_t one = padded_bytes(m);
  return {reinterpret_cast<float*>(bytes), reinterpret_cast<float*>(bytes + one),
          reinterpret_cast<float*>(bytes + 2 * one)};
}

}  // namespace

int Engine::recurrent(int in, std::shared_ptr<const RecurrentWeights> weights, bool backwards) {
  use(weights, "recurrent layer");
  const int size = weights->matrix.features(), rows = weights->matrix.rows(), steps = vectors_of(in, rows);
  return add({in}, checked_shape(1, steps, size), [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    const Kernels* k = &s.kernels();
    const StateMatrix* matrix = &weights->matrix;
    Step step(matrix->kernel_name());
    step.tasks = s.items(in);
    step.reads = {source};
    step.writes = {target};
    step.scratch_bytes = 2 * padded_bytes(*matrix) + AlignedBytes::rounded(size_t(rows) * sizeof(float));
    step.run = [=](char* const* b, int item, char* bytes) {
      const Scratch own = scratch_of(*matrix, bytes);
      std::memset(bytes, 0, 2 * padded_bytes(*matrix));
      const float* given = reinterpret_cast<const float*>(b[source]) + size_t(item) * steps * rows;
      float* out = reinterpret_cast<float*>(b[target]) + size_t(item) * steps * size;
      for (int i = 0; i < steps; ++i) {
        const int at = backwards ? steps - 1 - i : i;
        const float* x = given + size_t(at) * rows;
        if (weights->cell == Cell::Lstm) {
          matrix->multiply(*k, own.state, x, own.gates);
          k->lstm_cell(own.gates, size, own.cell, own.state);
        } else {
          matrix->multiply(*k, own.state, weights->bias.data(), own.gates);
          k->gru_cell(x, own.gates, size, own.state);
        }
        std::memcpy(out + size_t(at) * size, own.state, size_t(size) * sizeof(float));
      }
    };
    s.add(std::move(step));
    s.add_cost(double(s.items(in)) * steps * rows * size / s.lanes());
  });
}

RecurrentWeights::RecurrentWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features,
                                   Cell cell, std::vector<float> bias)
    : PackedWeights(std::move(workspace)),
      cell(cell),
      bias(std::move(bias)),
      matrix((check_weights({weight, rows, features, 1, 1}), workspace_->kernels()), weight, rows, features) {
  if (rows != gates_of(cell) * features)
    throw std::invalid_argument("the state's matrix has a row for each gate and feature, got " + std::to_string(rows) +
                                " rows and " + std::to_string(features) + " features");
  const size_t wanted = cell == Cell::Gru ? size_t(rows) : 0;
  if (this->bias.size() != wanted)
    throw std::invalid_argument("the bias of the state's gates has " + std::to_string(wanted) + " numbers, got " +
                                std::to_string(this->bias.size()));
}

}  // namespace tersify
