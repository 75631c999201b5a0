// Signs as lists of what is not zero, two rows at a time.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/conv-lists-f32/geometry_lists.hpp"
#include "kernels/conv-pairs-f32/row_pairs.hpp"

namespace tersify {

class PairWeights final : public LaneWeights {
 public:
  // Only the signs of `weight` are kept.
  PairWeights(const DenseWeight& weight, int block_channels, int threads = 1);

  std::shared_ptr<const PositionedLists> lists_for(const std::vector<uint32_t>& positions) override;
  void fill(ConvTask& task, const PositionedLists* lists) const override;
  int chunks() const override { return static_cast<int>(chunks_.size()); }
  int rows() const override { return rows_; }
  int block_channels() const override { return block_channels_; }
  size_t products() const override { return entries_; }  // some are of two rows, some of none
  LaneForm form() const override { return LaneForm::Pairs; }
  const char* kernel_name() const override { return "sparse signs, pairs of rows"; }
  size_t resident_bytes() const override;
  size_t nonzeros() const { return nonzeros_; }

 private:
  PackedPairs pack(const DenseWeight& weight, const Chunk& chunk) const;
  void point_units(PositionedLists& lists) const;

  int rows_, channels_, block_channels_, blocks_;
  size_t entries_ = 0, nonzeros_ = 0;
  std::vector<Chunk> chunks_;
  std::vector<RowPair> pairs_;
  GeometryLists positioned_;
};

}  // namespace tersify
