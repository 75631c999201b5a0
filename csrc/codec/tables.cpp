// A table from counts. Its weights are sent with three significant bits, so the scale they are rounded at matters: of
// two symbols that are equally frequent one must not be rounded up and the other down.
#include <algorithm>

#include "encode.h"

namespace tersify {

namespace {

constexpr uint32_t kMaxWeight = 28672;      // 7 · 2^12, the largest weight with three significant bits
constexpr int kScales = 8;                  // tried within an octave
constexpr int kAdjusted = 4;                // symbols whose weights are tried one step up and down

uint16_t rounded(uint64_t weight) {
  int drop = 0;
  while ((weight >> drop) > 7) ++drop;
  if (drop > 0) weight = (weight + (1ull << (drop - 1))) >> drop << drop;
  return static_cast<uint16_t>(std::clamp<uint64_t>(weight, 1, kMaxWeight));
}

int step_of(uint16_t weight) {
  int step = 1;
  while (weight / step > 7) step *= 2;
  return step;
}

// The bits after the leading one that are sent with the weights, in 1/65536.
uint64_t sent_bits(const Table& table) {
  uint64_t bits = 0;
  for (const uint16_t weight : table.weights) bits += weight > 3 ? 2 : weight > 1 ? 1 : 0;
  return bits << 16;
}

}  // namespace

uint64_t coded_bits(const Table& table, const std::vector<uint32_t>& counts) {
  uint64_t bits = 0;
  for (size_t s = 0; s < counts.size(); ++s)
    if (counts[s] != 0) bits += counts[s] * ((kScaleBits << 16) - uint64_t{log2_fixed(table.widths[s])});
  return bits;
}

Table table_of_counts(const std::vector<uint32_t>& counts) {
  const uint64_t largest = *std::max_element(counts.begin(), counts.end());
  Table best;
  uint64_t best_bits = UINT64_MAX;
  const auto consider = [&](Table& table) {
    table.build();
    const uint64_t bits = coded_bits(table, counts) + sent_bits(table);
    if (bits >= best_bits) return;
    best_bits = bits;
    best = table;
  };
  for (int scale = 0; scale < kScales; ++scale) {
    const uint64_t top = std::min<uint64_t>(kMaxWeight - kMaxWeight * scale / (2 * kScales), scale == 0 ? largest : kMaxWeight);
    Table table;
    for (const uint32_t count : counts)
      table.weights.push_back(count == 0 ? uint16_t{0} : rounded((count * top + largest / 2) / largest));
    consider(table);
  }
  std::vector<size_t> order(counts.size());
  for (size_t s = 0; s < order.size(); ++s) order[s] = s;
  const size_t few = std::min<size_t>(kAdjusted, order.size());
  std::partial_sort(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(few), order.end(),
                    [&](size_t a, size_t b) { return counts[a] != counts[b] ? counts[a] > counts[b] : a < b; });
  for (size_t i = 0; i < few && counts[order[i]] != 0; ++i) {
    for (const int direction : {1, -1}) {
      Table table = best;
      const int moved = table.weights[order[i]] + direction * step_of(table.weights[order[i]]);
      if (moved < 1 || moved > static_cast<int>(kMaxWeight)) continue;
      table.weights[order[i]] = rounded(static_cast<uint64_t>(moved));
      consider(table);
    }
  }
  return best;
}

}  // namespace tersify
