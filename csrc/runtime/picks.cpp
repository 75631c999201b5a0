#include "picks.hpp"

#include <algorithm>
#include <cstring>

namespace tersify {
namespace {

constexpr int kPlus = 0x40, kMinus = 0xc0;  // an entry without a sign adds nothing
constexpr int kStepEntries = kPickStepBytes / kPickRows;
// Measured, in vector operations.
constexpr double kPerStep = 1.6, kPerWindow = 1.0, kReadPerStep = 2.0;

// The non-zeros of up to kPickRows rows, feature by feature.
struct Column {
  std::vector<uint8_t> rows;
};

std::vector<Column> columns_of(const float* weight, int rows, int features) {
  std::vector<Column> columns(features);
  for (int row = 0; row < rows; ++row)
    for (int f = 0; f < features; ++f)
      if (weight[size_t(row) * features + f] != 0) columns[f].rows.push_back(static_cast<uint8_t>(row));
  return columns;
}

// Where windows begin. Each reaches as far as one permutation does, or until a row has no room for one more entry; their
// number is even.
std::vector<uint16_t> cut_windows(const std::vector<Column>& columns, int steps) {
  std::vector<uint16_t> begins;
  int counts[kPickRows] = {};
  for (int f = 0; f < int(columns.size()); ++f) {
    const auto& rows = columns[f].rows;
    const bool full = std::any_of(rows.begin(), rows.end(), [&](int row) { return counts[row] == steps * kStepEntries; });
    if (begins.empty() || full || f == begins.back() + kPickWindow) {
      begins.push_back(static_cast<uint16_t>(f));
      std::fill(counts, counts + kPickRows, 0);
    }
    for (int row : rows) ++counts[row];
  }
  if (begins.size() % 2) begins.push_back(begins.back());  // an empty one: see fill_windows
  return begins;
}

void fill_windows(const std::vector<uint16_t>& begins, const std::vector<Column>& columns, int steps, const float* weight,
                  uint8_t* entries) {
  for (size_t w = 0; w < begins.size(); ++w, entries += size_t(steps) * kPickStepBytes) {
    const bool padding = w > 0 && begins[w] == begins[w - 1];
    const int end = padding ? begins[w] : w + 1 < begins.size() && begins[w + 1] > begins[w] ? begins[w + 1] : int(columns.size());
    int counts[kPickRows] = {};
    for (int f = begins[w]; f < end; ++f)
      for (int row : columns[f].rows) {
        const int at = counts[row]++;
        const bool positive = weight[size_t(row) * columns.size() + f] > 0;
        entries[at / kStepEntries * kPickStepBytes + row * kStepEntries + at % kStepEntries] =
            static_cast<uint8_t>((f - begins[w]) | (positive ? kPlus : kMinus));
      }
  }
}

double cost_of(size_t windows, int steps, int vectors) {
  return double(windows) * (vectors * (steps * kPerStep + kPerWindow) + steps * kReadPerStep);
}

}  // namespace

PickMatrix::PickMatrix(const float* weight, int rows, int features) : rows_(rows), vector_bytes_(features + kPickWindow) {
  std::vector<std::vector<Column>> columns;
  for (int block = 0; block < blocks(); ++block)
    columns.push_back(columns_of(weight + size_t(block) * kPickRows * features, rows_of(block), features));
  // All windows have as many steps, so that the kernel never wonders how long the next one is. How many are best, the
  // first block tells.
  for (int steps = 1; steps <= kPickMostSteps; ++steps) {
    auto cost = [&](int s) { return cost_of(cut_windows(columns[0], s).size(), s, 1); };
    if (steps_ == 0 || cost(steps) < cost(steps_)) steps_ = steps;
  }
  for (const auto& block : columns) {
    first_window_.push_back(places_.size());
    const std::vector<uint16_t> begins = cut_windows(block, steps_);
    places_.insert(places_.end(), begins.begin(), begins.end());
  }
  first_window_.push_back(places_.size());
  const size_t window_bytes = size_t(steps_) * kPickStepBytes, bytes = places_.size() * window_bytes;
  entries_.grow(bytes);
  std::memset(entries_.data(), 0, bytes);
  for (int block = 0; block < blocks(); ++block) {
    const float* first = weight + size_t(block) * kPickRows * features;
    const std::vector<uint16_t> begins(places_.begin() + first_window_[block], places_.begin() + first_window_[block + 1]);
    fill_windows(begins, columns[block], steps_, first,
                 reinterpret_cast<uint8_t*>(entries_.data()) + first_window_[block] * window_bytes);
    for (int row = 0; row < kPickRows; ++row) {
      int sum = 0;
      for (int f = 0; row < rows_of(block) && f < features; ++f) sum += int(first[size_t(row) * features + f]);
      zeros_.push_back(sum * kByteZero);
    }
  }
}

int PickMatrix::rows_of(int block) const { return std::min(kPickRows, rows_ - block * kPickRows); }

PickTask PickMatrix::task(int block) const {
  PickTask t{};
  t.steps = steps_;
  t.windows = int(first_window_[block + 1] - first_window_[block]);
  t.places = places_.data() + first_window_[block];
  t.entries = reinterpret_cast<const uint8_t*>(entries_.data()) + first_window_[block] * steps_ * kPickStepBytes;
  t.zeros = zeros_.data() + size_t(block) * kPickRows;
  return t;
}

double PickMatrix::cost(int vectors) const { return cost_of(places_.size(), steps_, vectors); }

size_t PickMatrix::resident_bytes() const {
  return entries_.size() + places_.size() * sizeof(uint16_t) + zeros_.size() * sizeof(int32_t) +
         first_window_.size() * sizeof(size_t);
}

}  // namespace tersify
