#include "kernels/conv-pairs-f32/pair_weights.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "kernels/conv-lists-f32/list_weights.hpp"
#include "threads/in_parts.hpp"

namespace tersify {

PairWeights::PairWeights(const DenseWeight& weight, int block_channels, int threads)
    : rows_(weight.rows),
      channels_(weight.channels),
      block_channels_(block_channels),
      blocks_((weight.channels + block_channels - 1) / block_channels),
      chunks_(split_rows(weight)) {
  if (block_channels * weight.taps > kCountMask)
    throw std::invalid_argument("a kernel of " + std::to_string(weight.taps) + " taps is too large to pack");
  const size_t weights = size_t(weight.rows) * (weight.channels / weight.groups) * weight.taps;
  std::vector<PackedPairs> packed(chunks_.size());
  in_parts(chunks_.size(), std::min(chunks(), threads_for(weights, threads)), [&](int, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) packed[i] = pack(weight, chunks_[i]);
  });
  auto lists = std::make_shared<PositionedLists>();
  for (const PackedPairs& chunk : packed) {
    pairs_.insert(pairs_.end(), chunk.pairs.begin(), chunk.pairs.end());
    lists->entries.insert(lists->entries.end(), chunk.entries.begin(), chunk.entries.end());
    for (const uint32_t count : chunk.pair_counts) {
      lists->units.push_back({});
      lists->units.back().row_count = count;
    }
    nonzeros_ += chunk.nonzeros;
  }
  pairs_.shrink_to_fit();
  entries_ = lists->entries.size();
  positioned_ = {std::move(lists), block_channels * weight.taps + 1, true};  // the last index: a zero
}

PackedPairs PairWeights::pack(const DenseWeight& w, const Chunk& chunk) const {
  const int per_group = w.channels / w.groups, rows_per_group = w.rows / w.groups;
  const int indices = block_channels_ * w.taps;
  PackedPairs packed;
  for (int b = 0; b < blocks_; ++b) {
    std::vector<RowSigns> rows(chunk.rows, RowSigns(indices));
    for (int r = 0; r < chunk.rows; ++r) {
      const int row = chunk.first_row + r, base = row / rows_per_group * per_group;
      const int begin = std::max(base, b * block_channels_),
                end = std::min(base + per_group, (b + 1) * block_channels_);
      for (int channel = begin; channel < end; ++channel) {
        const float* values = w.data + (size_t(row) * per_group + channel - base) * w.taps;
        for (int tap = 0; tap < w.taps; ++tap)
          if (values[tap] != 0.0f) rows[r].set((channel - b * block_channels_) * w.taps + tap, values[tap]);
      }
      packed.nonzeros += rows[r].count;
    }
    pack_pairs(rows, static_cast<uint16_t>(indices * 2), packed);
  }
  return packed;
}

std::shared_ptr<const PositionedLists> PairWeights::lists_for(const std::vector<uint32_t>& positions) {
  return positioned_.lists_for(positions, [this](PositionedLists& lists) { point_units(lists); });
}

void PairWeights::point_units(PositionedLists& lists) const {
  const RowPair* pair = pairs_.data();
  const uint16_t* entry = lists.entries.data();
  for (size_t i = 0; i < lists.units.size(); ++i) {
    Unit& unit = lists.units[i];
    const uint32_t count = unit.row_count;
    unit = {};
    unit.row_count = count;
    unit.pairs = pair;
    unit.entries = entry;
    unit.first = i % blocks_ == 0;
    unit.last = (i + 1) % blocks_ == 0;
    for (uint32_t p = 0; p < count; ++p, ++pair) entry += kPairWord * size_t(pair->common + pair->apart + pair->rest);
  }
}

void PairWeights::fill(ConvTask& task, const PositionedLists* lists) const {
  task.kind = ValueKind::Sign;
  task.units = lists ? lists->units.data() : nullptr;
  task.chunks = chunks_.data();
  task.blocks = blocks_;
  task.block_channels = block_channels_;
  task.channels = channels_;
}

size_t PairWeights::resident_bytes() const {
  return pairs_.size() * sizeof(RowPair) + chunks_.size() * sizeof(Chunk) + positioned_.resident_bytes();
}

}  // namespace tersify
