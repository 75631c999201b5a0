// Convolutions and matrix products with rows in lanes, as steps.
#pragma once

#include <memory>

#include "engine/schedule.hpp"

namespace tersify {

struct PixelConvStep {
  std::shared_ptr<const PixelWeights> weights;
  std::shared_ptr<const Epilogue> epilogue;
  std::shared_ptr<const PixelRuns> runs;
  Image in, out;
  int source = -1, target = -1, residual = -1;  // buffers; residual −1: none
};

void add_pixel_conv(Schedule& schedule, PixelConvStep step);
// The mean of every channel, through an epilogue; the image lies pixel by pixel, or flat. Both add in one order.
void add_mean(Schedule& schedule, const Image& image, int source, int target, bool pixels,
              std::shared_ptr<const Epilogue> epilogue);

}  // namespace tersify
