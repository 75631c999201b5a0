#include "picks.hpp"

#include <algorithm>
#include <cstring>

namespace tersify {
namespace {

constexpr int kPlus = 0x40, kMinus = 0xc0;  // an entry without a sign adds nothing
constexpr int kStepEntries = kPickStepBytes / kPickRows;

// At most kPickMostSteps steps of one window; rows beyond the last have no entries.
struct Piece {
  uint16_t window;
  std::vector<uint8_t> entries;
  int steps() const { return int(entries.size()) / kPickStepBytes; }
};

void add_pieces(const float* weight, int rows, int features, int window, std::vector<Piece>& pieces) {
  const int begin = window * kPickWindow, end = std::min(begin + kPickWindow, features);
  std::vector<uint8_t> all;
  for (int row = 0; row < rows; ++row) {
    int count = 0;
    for (int f = begin; f < end; ++f) {
      const float value = weight[size_t(row) * features + f];
      if (value == 0) continue;
      const size_t at = size_t(count / kStepEntries) * kPickStepBytes + row * kStepEntries + count % kStepEntries;
      if (at >= all.size()) all.resize((at / kPickStepBytes + 1) * kPickStepBytes);
      all[at] = static_cast<uint8_t>((f - begin) | (value > 0 ? kPlus : kMinus));
      ++count;
    }
  }
  constexpr size_t kMost = size_t(kPickMostSteps) * kPickStepBytes;
  for (size_t at = 0; at < all.size(); at += kMost)
    pieces.push_back({static_cast<uint16_t>(window), {all.begin() + at, all.begin() + std::min(all.size(), at + kMost)}});
}

}  // namespace

PickMatrix::PickMatrix(const float* weight, int rows, int features)
    : rows_(rows), features_(features), windows_((features + kPickWindow - 1) / kPickWindow) {
  std::vector<uint8_t> entries;
  for (int block = 0; block < blocks(); ++block) {
    const float* first = weight + size_t(block) * kPickRows * features;
    std::vector<Piece> pieces;
    for (int window = 0; window < windows_; ++window) add_pieces(first, rows_of(block), features, window, pieces);
    // Pieces of as many steps follow each other: the kernel then never wonders how long the next one is.
    std::stable_sort(pieces.begin(), pieces.end(), [](const Piece& a, const Piece& b) { return a.steps() > b.steps(); });
    blocks_.push_back({entries.size(), runs_.size(), order_.size(), 0});
    for (const Piece& piece : pieces) {
      if (blocks_.back().run_count == 0 || runs_.back().steps != piece.steps()) {
        runs_.push_back({static_cast<uint16_t>(piece.steps()), 0});
        ++blocks_.back().run_count;
      }
      ++runs_.back().windows;
      order_.push_back(piece.window);
      entries.insert(entries.end(), piece.entries.begin(), piece.entries.end());
    }
    for (int row = 0; row < kPickRows; ++row) {
      int sum = 0;
      for (int f = 0; row < rows_of(block) && f < features; ++f) sum += int(first[size_t(row) * features + f]);
      zeros_.push_back(sum * kByteZero);
    }
  }
  steps_ = entries.size() / kPickStepBytes;
  entries_.grow(std::max(entries.size(), size_t(kPickStepBytes)));
  std::memcpy(entries_.data(), entries.data(), entries.size());
}

int PickMatrix::rows_of(int block) const { return std::min(kPickRows, rows_ - block * kPickRows); }

PickTask PickMatrix::task(int block) const {
  const Block& b = blocks_[block];
  PickTask t{};
  t.entries = reinterpret_cast<const uint8_t*>(entries_.data()) + b.entries;
  t.runs = runs_.data() + b.runs;
  t.run_count = int(b.run_count);
  t.windows = order_.data() + b.windows;
  t.zeros = zeros_.data() + size_t(block) * kPickRows;
  return t;
}

size_t PickMatrix::resident_bytes() const {
  return entries_.size() + runs_.size() * sizeof(PickRun) + order_.size() * sizeof(uint16_t) + zeros_.size() * sizeof(int32_t) +
         blocks_.size() * sizeof(Block);
}

}  // namespace tersify
