#include <algorithm>
#include <array>
#include <iterator>

#include "encode.h"

namespace tersify {

namespace {

constexpr int kLogTableBits = 12;
constexpr size_t kFewContexts = 512;  // beyond it, joining within slices first keeps the number of pairs small
constexpr size_t kSliceTables = 24;

// log2(1 + i/4096) in 1/65536 by repeated squaring, so that every machine has the same table.
std::array<uint32_t, (1 << kLogTableBits) + 1> make_log_table() {
  std::array<uint32_t, (1 << kLogTableBits) + 1> table{};
  for (uint32_t i = 0; i < (1u << kLogTableBits); ++i) {
    uint64_t x = (static_cast<uint64_t>(i) << (30 - kLogTableBits)) + (1ull << 30);
    uint32_t fraction = 0;
    for (int bit = 15; bit >= 0; --bit) {
      x = (x * x) >> 30;
      if (x >= (2ull << 30)) {
        x >>= 1;
        fraction |= 1u << bit;
      }
    }
    table[i] = fraction;
  }
  table[1 << kLogTableBits] = 1 << 16;
  return table;
}

uint64_t n_log_n(uint32_t n) { return n < 2 ? 0 : static_cast<uint64_t>(n) * log2_fixed(n); }

struct Cluster {
  std::vector<uint32_t> counts;
  std::vector<size_t> members;
  int64_t cost = 0;
  size_t partner = 0;       // the best cluster after this one, and what joining them would cost
  int64_t change = 0;
};

// Sending a table: about four bits for a symbol that occurs, half a bit for one that does not.
int64_t table_bits(size_t used, size_t size) {
  return static_cast<int64_t>((4 * used << 16) + ((size - used) << 15) + (8 << 16));
}

int64_t cost_of_sum(const std::vector<uint32_t>& a, const std::vector<uint32_t>* b) {
  uint32_t total = 0;
  size_t used = 0;
  uint64_t sum = 0;
  for (size_t s = 0; s < a.size(); ++s) {
    const uint32_t count = a[s] + (b ? (*b)[s] : 0);
    total += count;
    used += count != 0;
    sum += n_log_n(count);
  }
  return static_cast<int64_t>(n_log_n(total) - sum) + table_bits(used, a.size());
}

void find_partner(std::vector<Cluster>& clusters, size_t i) {
  Cluster& own = clusters[i];
  own.partner = i;
  own.change = INT64_MAX;
  for (size_t j = i + 1; j < clusters.size(); ++j) {
    const int64_t change = cost_of_sum(own.counts, &clusters[j].counts) - own.cost - clusters[j].cost;
    if (change < own.change) {
      own.change = change;
      own.partner = j;
    }
  }
}

// Joins the pair that saves most, until joining costs and there are no more than `limit` clusters.
void join(std::vector<Cluster>& clusters, size_t limit) {
  for (size_t i = 0; i < clusters.size(); ++i) find_partner(clusters, i);
  while (clusters.size() > 1) {
    size_t best = 0;
    for (size_t i = 1; i < clusters.size(); ++i)
      if (clusters[i].change < clusters[best].change) best = i;
    if (clusters[best].change >= 0 && clusters.size() <= limit) break;
    Cluster& kept = clusters[best];
    const size_t gone = kept.partner;
    for (size_t s = 0; s < kept.counts.size(); ++s) kept.counts[s] += clusters[gone].counts[s];
    kept.members.insert(kept.members.end(), clusters[gone].members.begin(), clusters[gone].members.end());
    kept.cost = cost_of_sum(kept.counts, nullptr);
    clusters.erase(clusters.begin() + static_cast<std::ptrdiff_t>(gone));
    for (size_t i = 0; i < clusters.size(); ++i) {
      Cluster& other = clusters[i];
      if (i == best || other.partner == gone || other.partner == best) {
        find_partner(clusters, i);
        continue;
      }
      if (other.partner > gone) --other.partner;
      if (i < best) {
        const int64_t change = cost_of_sum(other.counts, &clusters[best].counts) - other.cost - clusters[best].cost;
        if (change < other.change) {
          other.change = change;
          other.partner = best;
        }
      }
    }
  }
}

}  // namespace

uint32_t log2_fixed(uint32_t value) {
  static const auto table = make_log_table();
  const int bits = 31 - __builtin_clz(value);
  const uint64_t mantissa = static_cast<uint64_t>(value) << (31 - bits);      // the leading one is bit 31
  const uint32_t index = static_cast<uint32_t>(mantissa >> (31 - kLogTableBits)) - (1u << kLogTableBits);
  const uint32_t rest = static_cast<uint32_t>(mantissa >> 3) & 0xFFFF;        // the next 16 bits, to interpolate
  const uint32_t step = table[index + 1] - table[index];
  return (static_cast<uint32_t>(bits) << 16) + table[index] + ((step * rest) >> 16);
}

uint64_t ideal_bits(const uint32_t* counts, size_t size) {
  uint32_t total = 0;
  uint64_t sum = 0;
  for (size_t s = 0; s < size; ++s) {
    total += counts[s];
    sum += n_log_n(counts[s]);
  }
  return n_log_n(total) - sum;
}

std::vector<uint8_t> cluster(const Counts& counts, size_t slice, int max_tables, Counts& tables) {
  std::vector<Cluster> clusters;
  if (counts.size() <= kFewContexts) slice = counts.size();
  for (size_t begin = 0; begin < counts.size(); begin += slice) {
    std::vector<Cluster> near;
    for (size_t c = begin; c < std::min(begin + slice, counts.size()); ++c) {
      if (std::all_of(counts[c].begin(), counts[c].end(), [](uint32_t n) { return n == 0; })) continue;
      near.emplace_back();
      near.back().counts = counts[c];
      near.back().members = {c};
      near.back().cost = cost_of_sum(counts[c], nullptr);
    }
    if (slice < counts.size()) join(near, kSliceTables);
    std::move(near.begin(), near.end(), std::back_inserter(clusters));
  }
  join(clusters, static_cast<size_t>(max_tables));
  std::sort(clusters.begin(), clusters.end(), [](const Cluster& a, const Cluster& b) {
    return *std::min_element(a.members.begin(), a.members.end()) <
           *std::min_element(b.members.begin(), b.members.end());
  });
  std::vector<uint8_t> table_of(counts.size(), 0);
  tables.clear();
  for (const Cluster& each : clusters) {
    for (const size_t member : each.members) table_of[member] = static_cast<uint8_t>(tables.size());
    tables.push_back(each.counts);
  }
  return table_of;
}

}  // namespace tersify
