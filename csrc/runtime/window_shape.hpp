// The size of what a window makes.
#pragma once

#include "geometry.hpp"
#include "shape.hpp"

namespace tersify {

// Throws where the window does not fit once.
Shape conv_shape(const Shape& input, const Window& window, int channels);

}  // namespace tersify
