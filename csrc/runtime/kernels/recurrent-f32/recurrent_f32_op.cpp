// Recurrent layers, as steps: an item runs through its sequence in one task.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

constexpr int kMostTogether = 64;  // items of a task: their states stay near

int gates_of(Cell cell) { return cell == Cell::Lstm ? 4 : 3; }

// As many numbers, and a vector more: items that lie a power of two apart would share few places of a cache.
size_t apart(int numbers) { return AlignedBytes::rounded(size_t(numbers) * sizeof(float)) / sizeof(float) + 16; }

// What an item needs while it runs: its state and its cell, each padded, and its gates.
struct Scratch {
  Scratch(const StateMatrix& m, int items, char* bytes)
      : width(apart(m.padded_features())),
        rows(apart(m.rows())),
        states(reinterpret_cast<float*>(bytes)),
        cells(states + items * width),
        gates(cells + items * width) {}
  size_t bytes(int items) const { return items * (2 * width + rows) * sizeof(float); }

  const size_t width, rows;
  float *const states, *const cells, *const gates;
};

// One layer in one direction, for a range of items.
struct RecurrentRun {
  const Kernels* k;
  std::shared_ptr<const RecurrentWeights> weights;
  bool backwards, keeps_cell;
  int steps;

  // first: the states and cells that the items begin with, of all of them; null: zeros.
  void run(const float* given, const float* first[2], float* out, int begin, int items, char* bytes) const {
    const StateMatrix& matrix = weights->matrix;
    const int size = matrix.features(), rows = matrix.rows();
    const size_t kept = size_t(steps + keeps_cell) * size;
    const Scratch own(matrix, items, bytes);
    std::memset(bytes, 0, own.bytes(items));
    for (int i = 0; i < items; ++i) {
      if (first[0]) std::memcpy(own.states + i * own.width, first[0] + size_t(begin + i) * size, size * sizeof(float));
      if (first[1]) std::memcpy(own.cells + i * own.width, first[1] + size_t(begin + i) * size, size * sizeof(float));
    }
    const bool lstm = weights->cell == Cell::Lstm;
    for (int step = 0; step < steps; ++step) {
      const int at = backwards ? steps - 1 - step : step;
      const float* x = given + (size_t(begin) * steps + at) * rows;
      StateTask task{};
      task.state = own.states;
      task.start = lstm ? x : weights->bias.data();
      task.out = own.gates;
      task.items = items;
      task.state_stride = own.width;
      task.start_stride = lstm ? size_t(steps) * rows : 0;
      task.out_stride = own.rows;
      matrix.multiply(*k, task);
      for (int i = 0; i < items; ++i) {
        float *state = own.states + i * own.width, *cell = own.cells + i * own.width, *gates = own.gates + i * own.rows;
        lstm ? k->lstm_cell(gates, size, cell, state) : k->gru_cell(x + size_t(i) * steps * rows, gates, size, state);
        std::memcpy(out + (begin + i) * kept + size_t(at) * size, state, size * sizeof(float));
      }
    }
    for (int i = 0; keeps_cell && i < items; ++i)
      std::memcpy(out + (begin + i) * kept + size_t(steps) * size, own.cells + i * own.width, size * sizeof(float));
  }
};

}  // namespace

int Engine::recurrent(int in, std::shared_ptr<const RecurrentWeights> weights, bool backwards,
                      const std::vector<int>& first, bool keeps_cell) {
  use(weights, "recurrent layer");
  const bool lstm = weights->cell == Cell::Lstm;
  const int size = weights->matrix.features(), rows = weights->matrix.rows(), steps = vectors_of(in, rows);
  if (!first.empty() && first.size() != (lstm ? 2u : 1u))
    throw std::invalid_argument("a recurrent layer begins with a state and, if it is an LSTM, a cell, or with zeros");
  for (int value : first)
    if (at(value).items != at(in).items || at(value).shape.numel() != size)
      throw std::invalid_argument("a first state has " + std::to_string(size) + " numbers for each of " +
                                  std::to_string(at(in).items) + " items, got " + std::to_string(at(value).items) +
                                  " × " + to_string(at(value).shape));
  if (keeps_cell && !lstm) throw std::invalid_argument("a GRU has no cell to keep");
  std::vector<int> inputs{in};
  inputs.insert(inputs.end(), first.begin(), first.end());
  return add(inputs, checked_shape(1, int64_t(steps) + keeps_cell, size), [=](Schedule& s, const Op& op) {
    std::vector<int> from;
    for (int value : op.inputs) from.push_back(s.buffer_of(value, {}));
    const int target = s.new_buffer_for(op.output, {}), items = s.items(in);
    const int tasks = std::max((items + kMostTogether - 1) / kMostTogether, std::min(items, s.threads()));
    const RecurrentRun layer{&s.kernels(), weights, backwards, keeps_cell, steps};
    Step step(weights->matrix.kernel_name());
    step.tasks = tasks;
    step.reads = from;
    step.writes = {target};
    const int most = (items + tasks - 1) / tasks;
    step.scratch_bytes = Scratch(weights->matrix, most, nullptr).bytes(most);
    step.run = [=](char* const* b, int task, char* bytes) {
      const auto floats = [&](size_t input) {
        return input < from.size() ? reinterpret_cast<const float*>(b[from[input]]) : nullptr;
      };
      const float* begins[2] = {floats(1), floats(2)};
      const int begin = int(int64_t(items) * task / tasks), end = int(int64_t(items) * (task + 1) / tasks);
      layer.run(floats(0), begins, reinterpret_cast<float*>(b[target]), begin, end - begin, bytes);
    };
    s.add(std::move(step));
    s.add_cost(steps * weights->matrix.cost(items) / s.lanes());
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
