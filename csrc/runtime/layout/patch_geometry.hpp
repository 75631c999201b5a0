// Which input vectors each patch of outputs needs, worked out once for a layer and a batch size.
#pragma once

#include <cstdint>
#include <vector>

#include "isa/kernel_table.hpp"
#include "layout/lane_layout.hpp"
#include "layout/window.hpp"

namespace tersify {

// The footprint of a patch along one axis. Strided windows are stored phase by phase, so that
// neighbouring outputs always read neighbouring vectors.
struct Axis {
  std::vector<int> input;  // stored position → input coordinate, counted from the patch's first output × stride
  std::vector<int> tap;    // tap → stored position under output 0
};
Axis make_axis(int patch, int kernel, int stride, int pad, int dilation);

struct Geometry {
  Patch patch{};
  int footprint_h = 0, footprint_w = 0;
  struct Position {
    int y, x, skip_h, skip_w;
    int run_begin, run_end;
  };
  std::vector<Position> positions;
  std::vector<CopyRun> runs;
  std::vector<LaneShift> shifts;
  // (channel in block, tap) → vectors from the footprint's start; last, a channel behind the block that is zero.
  std::vector<uint32_t> tap_positions;

  PatchView view(const Position& position, int vector_bytes) const;
  void add_copy(const Position& position, int source, int target, int32_t shift);
};

Geometry make_geometry(const Image& input, const Layout& from, const Layout& to, const Window& window, int patch_limit,
                       int block_channels, int vector_bytes);

}  // namespace tersify
