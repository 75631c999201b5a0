#include "kernels/conv-pairs-f32/row_pairs.hpp"

#include <algorithm>
#include <bit>
#include <tuple>

namespace tersify {
namespace {

constexpr int kRowsAtOnce = 64;  // rows among which each finds its partner
constexpr int kBits = 64;

// Of the entries that two rows have: those of one sign, those of two.
uint64_t alike(const RowSigns& a, const RowSigns& b, size_t word) {
  return (a.plus[word] & b.plus[word]) | (a.minus[word] & b.minus[word]);
}
uint64_t opposed(const RowSigns& a, const RowSigns& b, size_t word) {
  return (a.plus[word] & b.minus[word]) | (a.minus[word] & b.plus[word]);
}

// How many of each kind a pair can share: the two kinds take turns, two of each a word.
int common(const RowSigns& a, const RowSigns& b) {
  int same = 0, other = 0;
  for (size_t w = 0; w < a.plus.size(); ++w) {
    same += std::popcount(alike(a, b, w));
    other += std::popcount(opposed(a, b, w));
  }
  return std::min(same, other) / 2 * 2;
}

struct Partners {
  int first, second;  // −1: the first is alone
  int common;
};

// Those that have most in common first; rows that nobody has anything in common with go together by their lengths, so
// that neither waits for the other.
std::vector<Partners> match(const std::vector<RowSigns>& rows) {
  std::vector<Partners> candidates, made;
  const int count = static_cast<int>(rows.size());
  for (int a = 0; a < count; ++a)
    for (int b = a + 1; b < count; ++b)
      if (const int both = common(rows[a], rows[b])) candidates.push_back({a, b, both});
  std::stable_sort(candidates.begin(), candidates.end(),
                   [](const Partners& x, const Partners& y) { return x.common > y.common; });
  std::vector<bool> taken(count);
  for (const Partners& p : candidates) {
    if (taken[p.first] || taken[p.second]) continue;
    taken[p.first] = taken[p.second] = true;
    made.push_back(p);
  }
  std::vector<int> left;
  for (int row = 0; row < count; ++row)
    if (!taken[row]) left.push_back(row);
  std::stable_sort(left.begin(), left.end(), [&](int x, int y) { return rows[x].count > rows[y].count; });
  for (size_t i = 0; i < left.size(); i += 2) made.push_back({left[i], i + 1 < left.size() ? left[i + 1] : -1, 0});
  return made;
}

// The entries of one pair by kind, as indices × 2 + sign.
struct Entries {
  std::vector<uint16_t> same, other, first, second;

  Entries(const RowSigns& a, const RowSigns& b, int common) {
    for (size_t w = 0; w < a.plus.size(); ++w)
      for (uint64_t left = a.used(w) | b.used(w); left; left &= left - 1) {
        const int bit = std::countr_zero(left), index = static_cast<int>(w) * kBits + bit;
        const auto entry = [&](const RowSigns& row) { return uint16_t(index * 2 + (row.minus[w] >> bit & 1)); };
        if (alike(a, b, w) >> bit & 1 && int(same.size()) < common) {
          same.push_back(entry(a));
        } else if (opposed(a, b, w) >> bit & 1 && int(other.size()) < common) {
          other.push_back(entry(a));
        } else {
          if (a.used(w) >> bit & 1) first.push_back(entry(a));
          if (b.used(w) >> bit & 1) second.push_back(entry(b));
        }
      }
  }

  // The other row becomes the first: what it subtracted is what the first one adds now.
  void swap_rows() {
    first.swap(second);
    for (uint16_t& entry : other) entry ^= 1;
  }
};

void take_turns(std::vector<uint16_t>& out, const std::vector<uint16_t>& a, const std::vector<uint16_t>& b,
                size_t count) {
  for (size_t i = 0; i < count; ++i) {
    out.push_back(a[i]);
    out.push_back(b[i]);
  }
}

void round_up(std::vector<uint16_t>& entries, size_t to, uint16_t zero) {
  while (entries.size() % to) entries.push_back(zero);
}

struct PendingPair {
  RowPair pair;
  std::vector<uint16_t> entries;
};

PendingPair pack_pair(const std::vector<RowSigns>& rows, const Partners& p, int first_row, uint16_t zero) {
  const RowSigns& a = rows[p.first];
  const RowSigns empty(static_cast<int>(a.plus.size() - 1) * kBits);
  Entries found(a, p.second < 0 ? empty : rows[p.second], p.common);
  PendingPair made{};
  made.pair.first = uint16_t(first_row + p.first);
  made.pair.second = p.second < 0 ? kNoRow : uint16_t(first_row + p.second);
  if (found.first.size() < found.second.size()) {
    found.swap_rows();
    std::swap(made.pair.first, made.pair.second);
  }
  take_turns(made.entries, found.same, found.other, found.same.size());
  round_up(found.second, 2, zero);
  if (found.first.size() < found.second.size()) found.first.push_back(zero);
  take_turns(made.entries, found.first, found.second, found.second.size());
  std::vector<uint16_t> rest(found.first.begin() + found.second.size(), found.first.end());
  round_up(rest, kPairWord, zero);
  made.entries.insert(made.entries.end(), rest.begin(), rest.end());
  made.pair.common = uint16_t(found.same.size() / 2);
  made.pair.apart = uint16_t(found.second.size() / 2);
  made.pair.rest = uint16_t(rest.size() / kPairWord);
  return made;
}

}  // namespace

RowSigns::RowSigns(int indices) : plus(indices / kBits + 1), minus(plus.size()) {}

void RowSigns::set(int index, float value) {
  (value > 0 ? plus : minus)[index / kBits] |= uint64_t(1) << index % kBits;
  ++count;
}

void pack_pairs(const std::vector<RowSigns>& rows, uint16_t zero, PackedPairs& packed) {
  std::vector<PendingPair> made;
  for (size_t begin = 0; begin < rows.size(); begin += kRowsAtOnce) {
    const size_t end = std::min(rows.size(), begin + kRowsAtOnce);
    const std::vector<RowSigns> some(rows.begin() + begin, rows.begin() + end);
    for (const Partners& p : match(some)) made.push_back(pack_pair(some, p, static_cast<int>(begin), zero));
  }
  // Loops of like length follow each other, so the CPU foresees where they end.
  std::stable_sort(made.begin(), made.end(), [](const PendingPair& x, const PendingPair& y) {
    return std::make_tuple(x.pair.common, x.pair.apart, x.pair.rest) >
           std::make_tuple(y.pair.common, y.pair.apart, y.pair.rest);
  });
  for (const PendingPair& p : made) {
    packed.pairs.push_back(p.pair);
    packed.entries.insert(packed.entries.end(), p.entries.begin(), p.entries.end());
  }
  packed.pair_counts.push_back(static_cast<uint32_t>(made.size()));
}

}  // namespace tersify
