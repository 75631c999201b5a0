#include "layout/pixel_runs.hpp"

namespace tersify {
namespace {

// Runs of `taps_h` × `taps_w` taps; each begins at its first tap.
PixelRuns runs_of(const Image& in, const Image& out, const Window& w, int taps_h, int taps_w) {
  PixelRuns made;
  made.runs = w.taps() / (taps_h * taps_w);
  made.length = taps_h * taps_w * in.c;
  made.positions = out.h * out.w;
  made.starts.reserve(size_t(made.runs) * made.positions);
  for (int ky = 0; ky < w.kernel_h; ky += taps_h)
    for (int kx = 0; kx < w.kernel_w; kx += taps_w)
      for (int oy = 0; oy < out.h; ++oy)
        for (int ox = 0; ox < out.w; ++ox) {
          const int y = oy * w.stride_h - w.pad_h + ky * w.dilation_h, x = ox * w.stride_w - w.pad_w + kx * w.dilation_w;
          const bool inside = y >= 0 && y < in.h && x >= 0 && x < in.w;
          made.starts.push_back(inside ? (y * in.w + x) * in.c : -1);
        }
  return made;
}

}  // namespace

PixelRuns pixel_runs(const Image& in, const Image& out, const Window& w) {
  const bool rows = w.pad_w == 0 && (w.dilation_w == 1 || w.kernel_w == 1);
  const bool all = rows && w.pad_h == 0 && (w.dilation_h == 1 || w.kernel_h == 1) && w.kernel_w == in.w;
  return runs_of(in, out, w, all ? w.kernel_h : 1, rows ? w.kernel_w : 1);
}

PixelRuns pixel_taps(const Image& in, const Image& out, const Window& w) { return runs_of(in, out, w, 1, 1); }

std::shared_ptr<const PixelRuns> KnownRuns::of(const Image& in, const Image& out, const Window& w) {
  for (const Known& known : known_)
    if (known.channels == in.c && known.h == in.h && known.w == in.w && known.window == w) return known.runs;
  known_.push_back({in.c, in.h, in.w, w, std::make_shared<PixelRuns>(pixel_runs(in, out, w))});
  return known_.back().runs;
}

}  // namespace tersify
