// How activations lie in memory: plain row-major, pixel by pixel, or in lanes.
//
// Pixel by pixel, all channels of a position lie side by side: [image][y][x][channels].
// In lanes, one vector register holds the same position of `images` images times a `rows` × `cols` grid of
// tiles of each. A 3×3 window then only ever loads whole aligned vectors, for every stride, and needs
// other lanes only at the rim of a tile.
#pragma once

#include <cstddef>

namespace tersify {

struct Image {
  int n, c, h, w;
};

struct Layout {
  int images = 0, rows = 0, cols = 0;
  int tile_h = 0, tile_w = 0;
  bool pixels = false;

  bool flat() const { return images == 0 && !pixels; }
  int lanes() const { return images * rows * cols; }
  int groups(int n) const { return (n + images - 1) / images; }
  int positions() const { return tile_h * tile_w; }
  // Vectors from one channel to the next. Powers of two would send every channel to the same cache sets.
  int channel_vectors() const { return positions() + (positions() % 8 == 0); }
  bool operator==(const Layout& o) const {
    return images == o.images && rows == o.rows && cols == o.cols && tile_h == o.tile_h && tile_w == o.tile_w &&
           pixels == o.pixels;
  }
};

struct Patch {
  int h, w;
};

// The widest patch of outputs, at most `limit` vectors, whose sides fit the tile.
Patch choose_patch(const Layout& layout, int limit);

// The same grid of smaller tiles, for windows side by side that fill a tile.
Layout pooled_layout(const Layout& layout, int window_h, int window_w);

// How many patches cover a tile.
int patch_count(const Layout& layout, int limit);

// The grid of `lanes` that computes an output of this size with the least work.
Layout choose_layout(const Image& output, int lanes, int patch_limit);

// The work of one weight over the whole output, in vector operations.
double layout_cost(const Layout& layout, int n, int patch_limit);

}  // namespace tersify
