// Weights of a convolution over lanes, zeros and all: rows side by side share what they read.
#pragma once

#include "kernels/conv-lists-f32/lane_weights.hpp"

namespace tersify {

class DenseLaneWeights final : public LaneWeights {
 public:
  DenseLaneWeights(const DenseWeight& weight, int block_channels);  // one group

  std::shared_ptr<const PositionedLists> lists_for(const std::vector<uint32_t>& positions) override;
  void fill(ConvTask& task, const PositionedLists* lists) const override;
  int chunks() const override { return int(chunks_.size()); }
  int rows() const override { return rows_; }
  int block_channels() const override { return block_channels_; }
  size_t products() const override { return size_t(rows_) * channels_ * taps_; }
  LaneForm form() const override { return LaneForm::Dense; }
  const char* kernel_name() const override { return "dense"; }
  size_t resident_bytes() const override;

 private:
  int block_size(int block) const;  // its channels

  int rows_, channels_, taps_, block_channels_, blocks_;
  std::vector<Chunk> chunks_;
  std::vector<float> values_;                                 // [chunk][block][group of rows][entry][kDenseRows]
  std::vector<size_t> offsets_;                               // of each chunk and block
  std::vector<std::shared_ptr<PositionedLists>> positioned_;  // the one asked for last in front
};

}  // namespace tersify
