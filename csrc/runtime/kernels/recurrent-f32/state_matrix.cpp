#include "kernels/recurrent-f32/state_matrix.hpp"

#include <algorithm>

namespace tersify {
namespace {

// A picked entry costs about what three weights of a dense block cost, and lanes wait for the longest of sixteen rows.
constexpr double kPickedCost = 3.0;
// Measured, in products: a weight is read for every few items, and from beyond the second-level cache once.
constexpr double kRead = 4.0, kReadFar = 12.0, kNearBytes = 2 << 20;
constexpr int kTogether = 8;

}  // namespace

StateMatrix::StateMatrix(const Kernels& kernels, const float* weight, int rows, int features)
    : rows_(rows), features_(features) {
  if (kernels.state_picks) {
    pick(weight);
    if (double(indices_.size()) * kPickedCost < double(rows) * features) return;
    std::vector<float>().swap(values_);
    std::vector<uint16_t>().swap(counts_);
    std::vector<uint8_t>().swap(indices_);
  }
  lay(weight);
}

void StateMatrix::pick(const float* weight) {
  for (int row = 0; row < rows_; row += kPickedRows)
    for (int first = 0; first < features_; first += kPickedWindow) {
      const int last = std::min(features_, first + kPickedWindow);
      std::vector<uint8_t> found[kPickedRows];
      for (int r = row; r < std::min(rows_, row + kPickedRows); ++r)
        for (int f = first; f < last; ++f)
          if (weight[size_t(r) * features_ + f] != 0) found[r - row].push_back(uint8_t(f - first));
      size_t most = 0;
      for (const auto& one : found) most = std::max(most, one.size());
      counts_.push_back(uint16_t(most));
      for (size_t e = 0; e < most; ++e)
        for (int r = 0; r < kPickedRows; ++r) {
          const bool there = e < found[r].size();
          indices_.push_back(there ? found[r][e] : 0);
          values_.push_back(there ? weight[size_t(row + r) * features_ + first + found[r][e]] : 0.0f);
        }
    }
}

void StateMatrix::lay(const float* weight) {
  for (int row = 0; row < rows_; row += kStateRows)
    for (int f = 0; f < features_; ++f)
      for (int r = row; r < row + kStateRows; ++r)
        dense_.push_back(r < rows_ ? weight[size_t(r) * features_ + f] : 0.0f);
}

void StateMatrix::multiply(const Kernels& k, StateTask t) const {
  t.rows = rows_;
  t.features = features_;
  t.dense = dense_.data();
  t.counts = counts_.data();
  t.indices = indices_.data();
  t.values = values_.data();
  dense_.empty() ? k.state_picks(t) : k.state_rows(t);
}

double StateMatrix::cost(int items) const {
  if (dense_.empty()) return double(indices_.size()) * kPickedCost * items;
  const double far = double(resident_bytes()) > kNearBytes ? kReadFar : 0.0;
  return double(dense_.size()) * (items + (items + kTogether - 1) / kTogether * kRead + far);
}

size_t StateMatrix::resident_bytes() const {
  return (dense_.size() + values_.size()) * sizeof(float) + counts_.size() * sizeof(uint16_t) + indices_.size();
}

}  // namespace tersify
