// Classes chosen by what they cost. Those that classes_of_box finds round a row's size and a column's size each for itself,
// and what a weight sees is the sum of both errors; here each takes the other into account, in turns.
#include <algorithm>

#include "classes.h"

namespace tersify {

namespace {

constexpr int kRounds = 8;
constexpr uint64_t kWorthwhile = 8192;   // a round that saves less than this part of the bits is the last
constexpr int kReach = 2;           // classes either way that one turn looks at
constexpr int64_t kBlock = 32;      // rows or columns whose counts are held at a time

struct Coded {
  const Cut& cut;
  const Symbols& symbols;
  size_t symbol_count;
};

// What each symbol costs in each density, in 1/65536 bits, a little smoothed: no count must forbid a class.
std::vector<uint32_t> prices_of(const std::vector<uint32_t>& counts, size_t symbol_count) {
  std::vector<uint32_t> prices(counts.size());
  for (size_t row = 0; row < counts.size(); row += symbol_count) {
    uint32_t total = 0;
    for (size_t s = 0; s < symbol_count; ++s) total += counts[row + s];
    const uint32_t whole = log2_fixed(16 * total + static_cast<uint32_t>(symbol_count));
    for (size_t s = 0; s < symbol_count; ++s)
      prices[row + s] = whole - log2_fixed(16 * counts[row + s] + 1);
  }
  return prices;
}

// The counts of the symbols of rows (or columns) begin … end, apart for each class of the other axis.
std::vector<uint32_t> counts_of(const Coded& coded, const BoxClasses& box, bool by_filter, int64_t begin, int64_t end) {
  const int64_t width = coded.cut.units_per_filter, filters = coded.cut.units / width;
  std::vector<uint32_t> counts(static_cast<size_t>(end - begin) * kDensities * coded.symbol_count);
  for (int64_t f = by_filter ? begin : 0; f < (by_filter ? end : filters); ++f)
    for (int64_t c = by_filter ? 0 : begin; c < (by_filter ? width : end); ++c) {
      const size_t own = static_cast<size_t>(by_filter ? f - begin : c - begin);
      const size_t other = by_filter ? box.channels[static_cast<size_t>(c)] : box.filters[static_cast<size_t>(f)];
      ++counts[(own * kDensities + other) * coded.symbol_count + coded.symbols[static_cast<size_t>(f * width + c)]];
    }
  return counts;
}

uint64_t cost(const uint32_t* counts, const uint32_t* prices, size_t symbol_count) {
  uint64_t bits = 0;
  for (size_t s = 0; s < symbol_count; ++s) bits += uint64_t{counts[s]} * prices[s];
  return bits;
}

// The classes along one axis that cost least where those of the other stay as they are.
void choose_along(const Coded& coded, BoxClasses& box, bool by_filter, const std::vector<uint32_t>& prices) {
  std::vector<uint8_t>& classes = by_filter ? box.filters : box.channels;
  std::vector<uint8_t> others = by_filter ? box.channels : box.filters;
  std::sort(others.begin(), others.end());
  others.erase(std::unique(others.begin(), others.end()), others.end());
  std::vector<uint32_t> used(kDensities);
  for (const uint8_t each : classes) ++used[each];
  const std::vector<uint32_t> class_prices = prices_of(used, kDensities);
  const int64_t size = static_cast<int64_t>(classes.size());
  const size_t row = kDensities * coded.symbol_count;
  for (int64_t begin = 0; begin < size; begin += kBlock) {
    const int64_t end = std::min(begin + kBlock, size);
    const std::vector<uint32_t> counts = counts_of(coded, box, by_filter, begin, end);
    for (int64_t i = begin; i < end; ++i) {
      const uint32_t* own = counts.data() + static_cast<size_t>(i - begin) * row;
      const int now = classes[static_cast<size_t>(i)];
      uint64_t best = UINT64_MAX;
      for (int k = std::max(0, now - kReach); k <= std::min(kDensities - 1, now + kReach); ++k) {
        uint64_t bits = class_prices[static_cast<size_t>(k)];
        for (const int other : others) {
          const int density = std::clamp(k + other + box.offset - 2 * kNeutral, 0, kDensities - 1);
          bits += cost(own + static_cast<size_t>(other) * coded.symbol_count,
                       prices.data() + static_cast<size_t>(density) * coded.symbol_count, coded.symbol_count);
        }
        if (bits >= best) continue;
        best = bits;
        classes[static_cast<size_t>(i)] = static_cast<uint8_t>(k);
      }
    }
  }
}

void drop_neutral(std::vector<uint8_t>& classes) {
  if (std::all_of(classes.begin(), classes.end(), [](uint8_t each) { return each == kNeutral; })) classes.clear();
}

}  // namespace

void refine_classes(std::vector<BoxClasses>& classes, const std::vector<Box>& boxes, const std::vector<Cut>& cuts,
                    const std::vector<Symbols>& symbols, int symbol_count) {
  const size_t count = static_cast<size_t>(symbol_count);
  for (size_t b = 0; b < boxes.size(); ++b) {
    classes[b].filters.resize(static_cast<size_t>(boxes[b].filters), kNeutral);
    classes[b].channels.resize(static_cast<size_t>(cuts[b].units_per_filter), kNeutral);
  }
  uint64_t before = UINT64_MAX;
  for (int turn = 0; turn < 2 * kRounds; ++turn) {
    std::vector<uint32_t> counts(kDensities * count);
    for (size_t b = 0; b < boxes.size(); ++b) {
      const std::vector<uint8_t> densities = unit_densities(boxes[b], cuts[b], classes[b]);
      for (size_t i = 0; i < densities.size(); ++i) ++counts[densities[i] * count + symbols[b][i]];
    }
    if (turn % 2 == 0) {
      uint64_t bits = 0;
      for (size_t row = 0; row < counts.size(); row += count) bits += ideal_bits(counts.data() + row, count);
      if (bits > before - before / kWorthwhile) break;
      before = bits;
    }
    const std::vector<uint32_t> prices = prices_of(counts, count);
    for (size_t b = 0; b < boxes.size(); ++b)
      choose_along({cuts[b], symbols[b], count}, classes[b], turn % 2 == 0, prices);
  }
  for (BoxClasses& each : classes) {
    drop_neutral(each.filters);
    drop_neutral(each.channels);
  }
}

}  // namespace tersify
