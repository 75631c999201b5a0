// A flat tensor and its lanes, as kernels that convert between them see them.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersify {

// A flat tensor seen as an image, and its lanes.
struct LaneView {
  int images, rows, cols, tile_h, tile_w, channel_vectors;
  int n, c, h, w;
  ptrdiff_t stride_n, stride_c, stride_y, stride_x;  // of the flat side, in elements
};

}  // namespace tersify
