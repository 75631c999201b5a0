// Which numbers of an image that lies pixel by pixel a window reads, worked out once for a layer.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "layout/lane_layout.hpp"
#include "layout/window.hpp"

namespace tersify {

// Taps whose numbers follow each other at every position are one run.
struct PixelRuns {
  int runs = 0, length = 0, positions = 0;
  std::vector<int32_t> starts;  // [run][position]: where its numbers begin in the image; −1: outside it
};

PixelRuns pixel_runs(const Image& input, const Image& output, const Window& window);
PixelRuns pixel_taps(const Image& input, const Image& output, const Window& window);  // every tap a run of its own

// Layers of one size read the same runs.
class KnownRuns {
 public:
  std::shared_ptr<const PixelRuns> of(const Image& input, const Image& output, const Window& window);

 private:
  struct Known {
    int channels, h, w;  // of the input
    Window window;
    std::shared_ptr<const PixelRuns> runs;
  };
  std::vector<Known> known_;
};

}  // namespace tersify
