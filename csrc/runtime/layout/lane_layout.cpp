#include "layout/lane_layout.hpp"

namespace tersify {
namespace {

// Reading an index, looking its offset up and turning the loop, in units of one vector operation.
constexpr double kWeightOverhead = 1.5;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

int widest(int size, int limit) {
  int side = 1;
  while (side * 2 <= size && side * 2 <= limit) side *= 2;
  return side;
}

}  // namespace

Patch choose_patch(const Layout& layout, int limit) {
  if (layout.tile_h == 1) return {1, widest(layout.tile_w, limit)};
  if (layout.tile_w == 1) return {widest(layout.tile_h, 4), 1};
  const int w = widest(layout.tile_w, 4);
  const int h = widest(layout.tile_h, limit / w < 4 ? limit / w : 4);
  return {h, w};
}

Layout pooled_layout(const Layout& l, int window_h, int window_w) {
  return {l.images, l.rows, l.cols, l.tile_h / window_h, l.tile_w / window_w};
}

int patch_count(const Layout& layout, int limit) {
  const Patch patch = choose_patch(layout, limit);
  return ceil_div(layout.tile_h, patch.h) * ceil_div(layout.tile_w, patch.w);
}

double layout_cost(const Layout& layout, int n, int patch_limit) {
  const Patch patch = choose_patch(layout, patch_limit);
  return double(layout.groups(n)) * patch_count(layout, patch_limit) * (patch.h * patch.w + kWeightOverhead);
}

Layout choose_layout(const Image& output, int lanes, int patch_limit) {
  Layout best;
  double best_cost = 0;
  for (int images = lanes; images >= 1; images /= 2)
    for (int rows = 1; images * rows <= lanes; rows *= 2) {
      const int cols = lanes / images / rows;
      const Layout layout{images, rows, cols, ceil_div(output.h, rows), ceil_div(output.w, cols)};
      // Lanes of whole images need no exchange at the rims; square grids have the shortest ones.
      const double rims = 1 + 0.002 * (rows + cols);
      const double cost = layout_cost(layout, output.n, patch_limit) * rims;
      if (best.flat() || cost < best_cost) {
        best = layout;
        best_cost = cost;
      }
    }
  return best;
}

}  // namespace tersify
