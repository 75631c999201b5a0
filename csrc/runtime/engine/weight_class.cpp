#include "engine/weight_class.hpp"

#include <algorithm>
#include <atomic>
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "threads/in_parts.hpp"

namespace tersify {
namespace {

struct RowFacts {
  bool finite, signs;
  float magnitude;
  size_t nonzeros;
};

RowFacts look_at_row(const float* row, size_t columns) {
  size_t first = 0;
  while (first < columns && row[first] == 0) ++first;
  const float magnitude = first < columns ? std::fabs(row[first]) : 1.0f;
  uint32_t others = 0, infinite = 0, nonzeros = 0;
  for (size_t i = first; i < columns; ++i) {
    const float value = std::fabs(row[i]);
    nonzeros += value != 0;
    others |= (value != 0) & (value != magnitude);
    infinite |= !(value <= FLT_MAX);
  }
  return {!infinite, !others, magnitude, nonzeros};
}

// A set of the bits of floats that says when it is full.
class LevelSet {
 public:
  explicit LevelSet(size_t limit) : limit_(limit) {
    for (; slots_.size() < 4 * limit + 4; --shift_) slots_.resize(2 * slots_.size());
  }

  bool add(float value) {  // false: too many
    if (value == 0) return true;
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    const size_t mask = slots_.size() - 1;
    size_t at = bits * 2654435761u >> shift_;  // its high bits: the low ones of round numbers are all zero
    while (slots_[at] != 0 && slots_[at] != bits) at = (at + 1) & mask;
    if (slots_[at] == bits) return true;
    slots_[at] = bits;
    values_.push_back(value);
    return values_.size() <= limit_;
  }

  const std::vector<float>& values() const { return values_; }

 private:
  size_t limit_;
  int shift_ = 28;  // 32 − the bits of a position
  std::vector<uint32_t> slots_ = std::vector<uint32_t>(16, 0);  // no float but zero has no bits
  std::vector<float> values_;
};

bool find_levels(const float* weight, size_t count, size_t max_levels, int threads, std::vector<float>& table) {
  std::vector<LevelSet> found(threads, LevelSet(max_levels));
  std::atomic<bool> too_many{false};
  in_parts(count, threads, [&](int thread, size_t begin, size_t end) {
    constexpr size_t kLookUp = 4096;  // values between two looks at what the others found
    for (size_t at = begin; at < end && !too_many; at += kLookUp)
      for (size_t i = at; i < std::min(end, at + kLookUp); ++i)
        if (!found[thread].add(weight[i])) {
          too_many = true;
          return;
        }
  });
  if (too_many) return false;
  LevelSet all(max_levels);
  for (const LevelSet& part : found)
    for (float value : part.values())
      if (!all.add(value)) return false;
  table = all.values();
  std::sort(table.begin(), table.end());
  return true;
}

}  // namespace

WeightClass classify(const float* weight, size_t rows, size_t columns, size_t max_levels, int threads) {
  WeightClass made;
  made.row_scale.resize(rows);
  std::vector<size_t> nonzeros(threads);
  std::atomic<bool> finite{true}, signs{true};
  in_parts(rows, threads, [&](int thread, size_t begin, size_t end) {
    for (size_t r = begin; r < end; ++r) {
      const RowFacts row = look_at_row(weight + r * columns, columns);
      made.row_scale[r] = row.magnitude;
      nonzeros[thread] += row.nonzeros;
      if (!row.finite) finite = false;
      if (!row.signs) signs = false;
    }
  });
  for (size_t count : nonzeros) made.nonzeros += count;
  made.finite = finite;
  if (!made.finite) return made;
  if (signs) {
    made.kind = ValueKind::Sign;
    return made;
  }
  made.row_scale.clear();
  if (find_levels(weight, rows * columns, max_levels, threads, made.table)) made.kind = ValueKind::Table;
  return made;
}

}  // namespace tersify
