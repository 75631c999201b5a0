// What a convolution over lanes asks of its weights, whatever their form.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "isa/kernel_table.hpp"
#include "layout/patch_geometry.hpp"

namespace tersify {

struct DenseWeight {
  const float* data;  // [rows][channels / groups][taps]
  int rows, channels, groups, taps;
};

// The weights as a kernel walks them: every entry is the position of its first vector in the footprint, so one patch
// geometry has one such form. Signs: position × 2 + sign.
struct PositionedLists {
  std::vector<uint32_t> positions;  // (channel in block, tap) → vectors from the footprint's start
  std::vector<uint16_t> entries;
  std::vector<Unit> units;  // [chunk][block]
};

enum class LaneForm { Lists, Dense, Pairs };  // which kernel walks them

class LaneWeights {
 public:
  virtual ~LaneWeights() = default;
  // The weights for a geometry. Those of the last few geometries are kept.
  virtual std::shared_ptr<const PositionedLists> lists_for(const std::vector<uint32_t>& positions) = 0;
  virtual void fill(ConvTask& task, const PositionedLists* lists) const = 0;  // without lists: for sizes only
  virtual int chunks() const = 0;
  virtual int rows() const = 0;
  virtual int block_channels() const = 0;
  virtual size_t products() const = 0;  // for each position of the output
  virtual LaneForm form() const = 0;
  virtual const char* kernel_name() const = 0;
  virtual size_t resident_bytes() const = 0;
};

}  // namespace tersify
