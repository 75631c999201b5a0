// The keys and values of the tokens that a decoder has seen, and which tokens its next run holds.
#pragma once

#include <cstdint>
#include <vector>

#include "layout/aligned_bytes.hpp"

namespace tersify {

constexpr int kCacheBlock = 16;  // positions whose keys lie side by side, feature by feature

// One row of a run: the sequence it belongs to, and its position there.
struct CacheRow {
  int slot, position;
};

class KeyCache {
 public:
  // `half`: numbers are kept as 16-bit floats.
  KeyCache(int layers, int key_heads, int width, bool half);

  // Room for so many sequences of so many tokens; what is there stays.
  void reserve(int slots, int positions);
  // Cosines and sines of every position that is reserved, [positions][pairs]; `pairs` 0: no rotation.
  void set_rotation(const float* cosines, const float* sines, int positions, int pairs);
  // The tokens of the next run, and the rows whose results are wanted. A position must be new or just be written again.
  void set_rows(const std::vector<int>& slots, const std::vector<int>& positions, const std::vector<int>& wanted);
  // Sequence `to` becomes a copy of the first `positions` tokens of `from`.
  void copy(int from, int to, int positions);

  int layers() const { return layers_; }
  int key_heads() const { return key_heads_; }
  int width() const { return width_; }
  bool half() const { return half_; }
  int slots() const { return slots_; }
  int capacity() const { return capacity_; }
  int pairs() const { return pairs_; }
  const std::vector<CacheRow>& rows() const { return rows_; }
  const std::vector<int>& wanted() const { return wanted_; }
  // Keys [block of positions][width][kCacheBlock], and values [positions][width], of one head.
  char* keys(int layer, int slot, int head) { return memory_.data() + head_bytes() * number(layer, slot, head); }
  char* values(int layer, int slot, int head) { return keys(layer, slot, head) + head_bytes() / 2; }
  const float* cosines(int position) const { return cosines_.data() + size_t(position) * pairs_; }
  const float* sines(int position) const { return sines_.data() + size_t(position) * pairs_; }
  size_t resident_bytes() const { return memory_.size(); }

 private:
  size_t number_bytes() const { return half_ ? 2 : 4; }
  size_t head_bytes() const { return 2 * size_t(capacity_) * width_ * number_bytes(); }
  size_t number(int layer, int slot, int head) const { return (size_t(layer) * slots_ + slot) * key_heads_ + head; }

  int layers_, key_heads_, width_;
  bool half_;
  int slots_ = 0, capacity_ = 0, pairs_ = 0, rotated_ = 0;
  std::vector<CacheRow> rows_;
  std::vector<int> wanted_, seen_;  // how many tokens of each slot there are
  std::vector<float> cosines_, sines_;
  AlignedBytes memory_;
};

}  // namespace tersify
