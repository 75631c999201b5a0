#include "kernels/linear-picks-i8/pick_matrix.hpp"

#include <algorithm>

#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr uint8_t kPlus = 0x40, kMinus = 0xc0;  // an entry without a sign adds nothing
constexpr double kPerStep = 1.5, kPerWindow = 1.2,
                 kReading = 2.0;  // measured, in vector operations; reading: of a step

struct Windows {
  int steps = 1;  // of each
  std::vector<uint16_t> positions;
  std::vector<uint8_t> entries;
  int32_t signs[kPickRows] = {};  // their sums

  uint8_t* add(int position) {
    positions.push_back(static_cast<uint16_t>(position));
    entries.resize(entries.size() + size_t(steps) * kPickStepBytes);
    return entries.data() + entries.size() - size_t(steps) * kPickStepBytes;
  }
};

// Every row takes what comes next of its own, as much as the steps hold and the window reaches, and the row that is
// furthest behind says where the next window begins. So rows with many entries do not leave the others idle.
Windows fill_windows(const int8_t* weight, int rows, int features, int steps) {
  Windows windows{steps, {}, {}};
  int next[kPickRows];
  auto advance = [&](int row) {
    while (next[row] < features && weight[size_t(row) * features + next[row]] == 0) ++next[row];
  };
  for (int row = 0; row < rows; ++row) {
    next[row] = 0;
    advance(row);
  }
  for (int position; (position = *std::min_element(next, next + rows)) < features;) {
    uint8_t* entries = windows.add(position);
    for (int row = 0; row < rows; ++row)
      for (int i = 0; i < steps * kPickEntries && next[row] < std::min(features, position + kPickWindow); ++i) {
        const bool positive = weight[size_t(row) * features + next[row]] > 0;
        entries[i / kPickEntries * kPickStepBytes + row * kPickEntries + i % kPickEntries] =
            static_cast<uint8_t>((next[row] - position) | (positive ? kPlus : kMinus));
        windows.signs[row] += positive ? 1 : -1;
        ++next[row];
        advance(row);
      }
  }
  while (windows.positions.size() % kPickUnroll) windows.add(0);
  return windows;
}

double cost_of(size_t windows, int steps, int vectors) {
  return double(windows) * (vectors * (steps * kPerStep + kPerWindow) + steps * kReading);
}

}  // namespace

PickMatrix::PickMatrix(const ByteRows& weight, int threads)
    : rows_(weight.rows), steps_(1), vector_bytes_(weight.features + kPickWindow) {
  const int features = weight.features;
  auto block = [&](int number, int steps) {
    const int first = number * kPickRows, rows = std::min(kPickRows, rows_ - first);
    std::vector<int8_t> bytes(size_t(rows) * features);
    for (int row = 0; row < rows; ++row) weight.read(first + row, bytes.data() + size_t(row) * features);
    return fill_windows(bytes.data(), rows, features, steps);
  };
  // The first block tells for all how many steps should share a window.
  for (int steps = 2; steps <= kPickMostSteps; ++steps)
    if (cost_of(block(0, steps).positions.size(), steps, 1) < cost_of(block(0, steps_).positions.size(), steps_, 1))
      steps_ = steps;
  std::vector<Windows> all(blocks());
  in_parts(blocks(), std::min(blocks(), threads_for(size_t(rows_) * features, threads)),
           [&](int, size_t begin, size_t end) {
             for (size_t number = begin; number < end; ++number) all[number] = block(int(number), steps_);
           });
  size_t bytes = 0;
  for (const Windows& windows : all) {
    first_window_.push_back(positions_.size());
    positions_.insert(positions_.end(), windows.positions.begin(), windows.positions.end());
    for (int32_t sum : windows.signs) zeros_.push_back(sum * kByteZero);
    bytes += windows.entries.size();
  }
  first_window_.push_back(positions_.size());
  entries_.grow(std::max(bytes, size_t(kPickStepBytes)));
  char* to = entries_.data();
  for (const Windows& windows : all) to = std::copy(windows.entries.begin(), windows.entries.end(), to);
}

PickTask PickMatrix::task(int block) const {
  PickTask t{};
  t.windows = int(first_window_[block + 1] - first_window_[block]);
  t.steps = steps_;
  t.positions = positions_.data() + first_window_[block];
  t.entries = reinterpret_cast<const uint8_t*>(entries_.data()) + first_window_[block] * steps_ * kPickStepBytes;
  t.zeros = zeros_.data() + size_t(block) * kPickRows;
  return t;
}

double PickMatrix::cost(int vectors) const { return cost_of(positions_.size(), steps_, vectors); }

size_t PickMatrix::resident_bytes() const {
  return entries_.size() + positions_.size() * sizeof(uint16_t) + zeros_.size() * sizeof(int32_t) +
         first_window_.size() * sizeof(size_t);
}

}  // namespace tersify
