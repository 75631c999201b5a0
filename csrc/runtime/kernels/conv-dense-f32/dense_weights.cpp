#include "kernels/conv-dense-f32/dense_weights.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

namespace tersify {
namespace {

constexpr int kMaxChunks = 16, kRowsPerChunk = 16;
constexpr size_t kKeptGeometries = 4;  // for batch sizes that take turns

int groups_of(int rows) { return (rows + kDenseRows - 1) / kDenseRows; }

}  // namespace

DenseLaneWeights::DenseLaneWeights(const DenseWeight& w, int block_channels)
    : rows_(w.rows),
      channels_(w.channels),
      taps_(w.taps),
      block_channels_(block_channels),
      blocks_((w.channels + block_channels - 1) / block_channels) {
  if (w.groups != 1) throw std::invalid_argument("a dense convolution has one group, got " + std::to_string(w.groups));
  if (block_channels * w.taps > kCountMask)
    throw std::invalid_argument("a kernel of " + std::to_string(w.taps) + " taps is too large to pack");
  const int groups = groups_of(rows_), chunks = std::clamp(rows_ / kRowsPerChunk, 1, kMaxChunks);
  for (int c = 0; c < chunks; ++c) {
    const int begin = groups * c / chunks * kDenseRows, end = std::min(groups * (c + 1) / chunks * kDenseRows, rows_);
    if (begin < end) chunks_.push_back({begin, end - begin});
  }
  for (const Chunk& chunk : chunks_)
    for (int b = 0; b < blocks_; ++b) {
      offsets_.push_back(values_.size());
      for (int row = chunk.first_row; row < chunk.first_row + chunk.rows; row += kDenseRows)
        for (int c = b * block_channels; c < b * block_channels + block_size(b); ++c)
          for (int tap = 0; tap < taps_; ++tap)
            for (int r = row; r < row + kDenseRows; ++r)
              values_.push_back(r < rows_ ? w.data[(size_t(r) * channels_ + c) * taps_ + tap] : 0.0f);
    }
}

int DenseLaneWeights::block_size(int block) const {
  return std::min(block_channels_, channels_ - block * block_channels_);
}

std::shared_ptr<const PositionedLists> DenseLaneWeights::lists_for(const std::vector<uint32_t>& positions) {
  for (auto known = positioned_.begin(); known != positioned_.end(); ++known)
    if ((*known)->positions == positions) {
      std::rotate(positioned_.begin(), known, known + 1);
      return positioned_.front();
    }
  if (*std::max_element(positions.begin(), positions.end()) > UINT16_MAX)
    throw std::invalid_argument("a window of this size is too large to pack");
  auto lists = std::make_shared<PositionedLists>();
  lists->positions = positions;
  lists->entries.assign(positions.begin(), positions.end());
  for (const Chunk& chunk : chunks_)
    for (int b = 0; b < blocks_; ++b) {
      Unit unit{};
      unit.row_count = uint32_t(chunk.rows);
      unit.entries = lists->entries.data();
      unit.values = values_.data() + offsets_[lists->units.size()];
      unit.entry_count = uint16_t(block_size(b) * taps_);
      unit.first = b == 0;
      unit.last = b + 1 == blocks_;
      lists->units.push_back(unit);
    }
  positioned_.insert(positioned_.begin(), std::move(lists));
  if (positioned_.size() > kKeptGeometries) positioned_.pop_back();
  return positioned_.front();
}

void DenseLaneWeights::fill(ConvTask& task, const PositionedLists* lists) const {
  task.kind = ValueKind::Float;
  task.units = lists ? lists->units.data() : nullptr;
  task.chunks = chunks_.data();
  task.blocks = blocks_;
  task.block_channels = block_channels_;
  task.channels = channels_;
}

size_t DenseLaneWeights::resident_bytes() const {
  size_t bytes = values_.size() * sizeof(float) + chunks_.size() * sizeof(Chunk) + offsets_.size() * sizeof(size_t);
  for (const auto& lists : positioned_)
    bytes += lists->entries.size() * sizeof(uint16_t) + lists->units.size() * sizeof(Unit) +
             lists->positions.size() * sizeof(uint32_t);
  return bytes;
}

}  // namespace tersify
