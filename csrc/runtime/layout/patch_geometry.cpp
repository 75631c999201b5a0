#include "layout/patch_geometry.hpp"

#include <algorithm>
#include <map>

namespace tersify {
namespace {

int floor_div(int a, int b) { return a >= 0 ? a / b : -((b - 1 - a) / b); }

// For each lane the lane that holds (y, x) of its neighbourhood, −1 where that is outside the image.
std::vector<int16_t> lane_sources(const Image& image, const Layout& layout, int y, int x) {
  const int shift_y = floor_div(y, layout.tile_h), shift_x = floor_div(x, layout.tile_w);
  std::vector<int16_t> lanes;
  for (int i = 0; i < layout.images; ++i)
    for (int ty = 0; ty < layout.rows; ++ty)
      for (int tx = 0; tx < layout.cols; ++tx) {
        const int sy = ty + shift_y, sx = tx + shift_x;
        const bool inside = sy >= 0 && sy < layout.rows && sx >= 0 && sx < layout.cols &&
                            ty * layout.tile_h + y < image.h && tx * layout.tile_w + x < image.w;
        lanes.push_back(static_cast<int16_t>(inside ? (i * layout.rows + sy) * layout.cols + sx : -1));
      }
  return lanes;
}

class LaneShifts {
 public:
  LaneShifts(std::vector<LaneShift>& out, int lane_bytes) : out_(out), lane_bytes_(lane_bytes) {}

  int32_t find(const std::vector<int16_t>& lanes) {
    bool straight = true, fill = true;
    for (size_t l = 0; l < lanes.size(); ++l) {
      straight = straight && lanes[l] == static_cast<int16_t>(l);
      fill = fill && lanes[l] < 0;
    }
    if (straight) return kStraight;
    if (fill) return kFill;
    auto [found, is_new] = known_.try_emplace(lanes, static_cast<int32_t>(out_.size()));
    if (is_new) out_.push_back(shift_of(lanes));
    return found->second;
  }

 private:
  // Tiles are numbered row by row, so a step to another tile is the same distance for all lanes that can take it.
  LaneShift shift_of(const std::vector<int16_t>& lanes) const {
    LaneShift made{};
    for (size_t l = 0; l < lanes.size(); ++l) {
      if (lanes[l] < 0) continue;
      made.bytes = (lanes[l] - static_cast<int>(l)) * lane_bytes_;
      std::fill_n(made.keep + l * lane_bytes_, lane_bytes_, 0xff);
    }
    return made;
  }

  std::vector<LaneShift>& out_;
  int lane_bytes_;
  std::map<std::vector<int16_t>, int32_t> known_;
};

}  // namespace

Axis make_axis(int patch, int kernel, int stride, int pad, int dilation) {
  Axis axis;
  std::vector<int> reach(stride, -1);
  for (int k = 0; k < kernel; ++k) {
    int& far = reach[k * dilation % stride];
    far = std::max(far, k * dilation / stride + patch);
  }
  std::vector<int> base(stride, 0);
  for (int phase = 0; phase < stride; ++phase) {
    base[phase] = static_cast<int>(axis.input.size());
    for (int i = 0; i < reach[phase]; ++i) axis.input.push_back(phase + i * stride - pad);
  }
  for (int k = 0; k < kernel; ++k) axis.tap.push_back(base[k * dilation % stride] + k * dilation / stride);
  return axis;
}

PatchView Geometry::view(const Position& position, int vector_bytes) const {
  return {.runs = runs.data() + position.run_begin,
          .run_count = position.run_end - position.run_begin,
          .shifts = shifts.data(),
          .footprint_bytes = size_t(footprint_h) * footprint_w * vector_bytes,
          .pitch_bytes = size_t(footprint_w) * vector_bytes,
          .h = patch.h,
          .w = patch.w,
          .skip_h = position.skip_h,
          .skip_w = position.skip_w};
}

// One vector more of the footprint: part of the last run where it continues that.
void Geometry::add_copy(const Position& position, int source, int target, int32_t shift) {
  if (static_cast<int>(runs.size()) > position.run_begin) {
    CopyRun& last = runs.back();
    const bool follows = last.shift == kFill || last.source + last.count == source;
    if (last.shift == shift && last.target + last.count == target && follows) {
      ++last.count;
      return;
    }
  }
  runs.push_back({.source = source, .target = target, .count = 1, .shift = shift});
}

Geometry make_geometry(const Image& input, const Layout& from, const Layout& to, const Window& window, int patch_limit,
                       int block_channels, int vector_bytes) {
  Geometry g;
  g.patch = choose_patch(to, patch_limit);
  const Axis ya = make_axis(g.patch.h, window.kernel_h, window.stride_h, window.pad_h, window.dilation_h);
  const Axis xa = make_axis(g.patch.w, window.kernel_w, window.stride_w, window.pad_w, window.dilation_w);
  g.footprint_h = static_cast<int>(ya.input.size());
  g.footprint_w = static_cast<int>(xa.input.size());
  for (int c = 0; c < block_channels; ++c)
    for (int row : ya.tap)
      for (int column : xa.tap) g.tap_positions.push_back((c * g.footprint_h + row) * g.footprint_w + column);
  g.tap_positions.push_back(block_channels * g.footprint_h * g.footprint_w);

  LaneShifts shifts(g.shifts, vector_bytes / from.lanes());
  for (int top = 0; top < to.tile_h; top += g.patch.h)
    for (int left = 0; left < to.tile_w; left += g.patch.w) {
      // A patch that would leave the tile moves back and skips what its neighbour writes.
      const int y0 = std::min(top, to.tile_h - g.patch.h), x0 = std::min(left, to.tile_w - g.patch.w);
      Geometry::Position position{.y = y0,
                                  .x = x0,
                                  .skip_h = top - y0,
                                  .skip_w = left - x0,
                                  .run_begin = static_cast<int>(g.runs.size()),
                                  .run_end = 0};
      for (int target = 0; target < g.footprint_h * g.footprint_w; ++target) {
        const int y = y0 * window.stride_h + ya.input[target / g.footprint_w];
        const int x = x0 * window.stride_w + xa.input[target % g.footprint_w];
        const int in_tile_y = y - floor_div(y, from.tile_h) * from.tile_h;
        const int in_tile_x = x - floor_div(x, from.tile_w) * from.tile_w;
        g.add_copy(position, in_tile_y * from.tile_w + in_tile_x, target, shifts.find(lane_sources(input, from, y, x)));
      }
      position.run_end = static_cast<int>(g.runs.size());
      g.positions.push_back(position);
    }
  return g;
}

}  // namespace tersify
