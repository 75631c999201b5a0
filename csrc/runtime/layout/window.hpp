// The window of a convolution or pool, and the size of what it makes.
#pragma once

#include "engine/shape.hpp"

namespace tersify {

struct Window {
  int kernel_h = 1, kernel_w = 1, stride_h = 1, stride_w = 1, pad_h = 0, pad_w = 0, dilation_h = 1, dilation_w = 1;
  int taps() const { return kernel_h * kernel_w; }
  bool operator==(const Window&) const = default;
};

// Throws where the window does not fit once.
Shape conv_shape(const Shape& input, const Window& window, int channels);

}  // namespace tersify
