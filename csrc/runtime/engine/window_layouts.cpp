#include "engine/window_layouts.hpp"

#include <algorithm>

namespace tersify {
namespace {

constexpr double kKeepLayout = 1.15;  // how much slower a layout may be before a conversion pays

int ceil_div(int a, int b) { return (a + b - 1) / b; }

}  // namespace

WindowLayouts window_layouts(const Schedule& s, int value, const Image& out, const Window& w, int lanes) {
  const Image in = s.image(value);
  const Layout* current = s.lanes_of(value, lanes);
  const int limit = s.patch_limit(lanes);
  // Every tile must cover its part of the input, also where the window ends before it.
  const Image cover{out.n, out.c, std::max(out.h, ceil_div(in.h, w.stride_h)),
                    std::max(out.w, ceil_div(in.w, w.stride_w))};
  Layout best = choose_layout(cover, lanes, limit);
  if (current && current->tile_h % w.stride_h == 0 && current->tile_w % w.stride_w == 0) {
    Layout kept = *current;
    kept.tile_h /= w.stride_h;
    kept.tile_w /= w.stride_w;
    if (kept.rows * kept.tile_h >= out.h && kept.cols * kept.tile_w >= out.w &&
        layout_cost(kept, out.n, limit) <= kKeepLayout * layout_cost(best, out.n, limit))
      return {*current, kept};
  }
  Layout from = best;
  from.tile_h *= w.stride_h;
  from.tile_w *= w.stride_w;
  return {from, best};
}

}  // namespace tersify
