#include "engine/key_cache.hpp"

#include <algorithm>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>

namespace tersify {
namespace {

constexpr int kMaxPositions = 1 << 24, kMaxSlots = 1 << 16;

int whole_blocks(int positions) { return (positions + kCacheBlock - 1) / kCacheBlock * kCacheBlock; }

}  // namespace

KeyCache::KeyCache(int layers, int key_heads, int width, bool half)
    : layers_(layers), key_heads_(key_heads), width_(width), half_(half) {
  constexpr int kMost = 1 << 20;
  if (layers < 1 || key_heads < 1 || width < 1 || layers > kMost || key_heads > kMost || width > kMost)
    throw std::invalid_argument("a cache has at least one layer, one head and one number a head");
}

void KeyCache::reserve(int slots, int positions) {
  if (slots < 1 || positions < 1 || slots > kMaxSlots || positions > kMaxPositions)
    throw std::invalid_argument("a cache holds 1.." + std::to_string(kMaxSlots) + " sequences of 1.." +
                                std::to_string(kMaxPositions) + " tokens, got " + std::to_string(slots) + " of " +
                                std::to_string(positions));
  slots = std::max(slots, slots_);
  positions = std::max(whole_blocks(positions), capacity_);
  if (slots == slots_ && positions == capacity_) return;
  const double bytes = 2.0 * layers_ * slots * key_heads_ * positions * width_ * double(number_bytes());
  if (bytes > double(std::numeric_limits<ptrdiff_t>::max()))
    throw std::invalid_argument("a cache of " + std::to_string(slots) + " sequences of " + std::to_string(positions) +
                                " tokens is larger than memory can be");
  KeyCache grown(layers_, key_heads_, width_, half_);
  grown.slots_ = slots;
  grown.capacity_ = positions;
  grown.memory_.grow(size_t(layers_) * slots * key_heads_ * grown.head_bytes());
  for (int layer = 0; layer < layers_; ++layer)
    for (int slot = 0; slot < slots_; ++slot)
      for (int head = 0; head < key_heads_; ++head) {
        std::memcpy(grown.keys(layer, slot, head), keys(layer, slot, head), head_bytes() / 2);
        std::memcpy(grown.values(layer, slot, head), values(layer, slot, head), head_bytes() / 2);
      }
  memory_ = std::move(grown.memory_);
  slots_ = slots;
  capacity_ = positions;
  seen_.resize(slots_, 0);
}

void KeyCache::set_rotation(const float* cosines, const float* sines, int positions, int pairs) {
  if (pairs < 0 || 2 * pairs > width_)
    throw std::invalid_argument("a rotation turns at most " + std::to_string(width_ / 2) + " pairs, got " +
                                std::to_string(pairs));
  cosines_.assign(cosines, cosines + size_t(positions) * pairs);
  sines_.assign(sines, sines + size_t(positions) * pairs);
  pairs_ = pairs;
  rotated_ = positions;
}

void KeyCache::set_rows(const std::vector<int>& slots, const std::vector<int>& positions,
                        const std::vector<int>& wanted) {
  if (slots.size() != positions.size() || slots.empty())
    throw std::invalid_argument("a run has at least one token, each with a sequence and a position");
  const int most = pairs_ ? std::min(capacity_, rotated_) : capacity_;
  std::vector<int> seen = seen_;
  for (size_t i = 0; i < slots.size(); ++i) {
    if (slots[i] < 0 || slots[i] >= slots_ || positions[i] < 0 || positions[i] >= most)
      throw std::invalid_argument("a cache of " + std::to_string(slots_) + " sequences of " + std::to_string(most) +
                                  " tokens has no token " + std::to_string(positions[i]) + " of sequence " +
                                  std::to_string(slots[i]));
    if (positions[i] > seen[slots[i]])
      throw std::invalid_argument("sequence " + std::to_string(slots[i]) + " has " + std::to_string(seen[slots[i]]) +
                                  " tokens, so its next is not number " + std::to_string(positions[i]));
    seen[slots[i]] = positions[i] + 1;  // whatever came later is forgotten
  }
  for (int row : wanted)
    if (row < 0 || row >= int(slots.size()))
      throw std::invalid_argument("a run of " + std::to_string(slots.size()) + " rows has no row " +
                                  std::to_string(row));
  rows_.clear();
  for (size_t i = 0; i < slots.size(); ++i) rows_.push_back({slots[i], positions[i]});
  wanted_ = wanted;
  seen_ = std::move(seen);
}

void KeyCache::copy(int from, int to, int positions) {
  if (from < 0 || from >= slots_ || to < 0 || to >= slots_ || positions < 0 || positions > seen_[from])
    throw std::invalid_argument("a cache of " + std::to_string(slots_) + " sequences cannot copy " +
                                std::to_string(positions) + " tokens of " + std::to_string(from) + " to " +
                                std::to_string(to));
  if (from == to) {
    seen_[to] = positions;
    return;
  }
  const size_t bytes = size_t(whole_blocks(positions)) * width_ * number_bytes();
  for (int layer = 0; layer < layers_; ++layer)
    for (int head = 0; head < key_heads_; ++head) {
      std::memcpy(keys(layer, to, head), keys(layer, from, head), bytes);
      std::memcpy(values(layer, to, head), values(layer, from, head), bytes);
    }
  seen_[to] = positions;
}

}  // namespace tersify
