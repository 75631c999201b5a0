// Which lanes an operation with a window reads and writes.
#pragma once

#include "engine/schedule.hpp"

namespace tersify {

struct WindowLayouts {
  Layout from, to;
};

// Keeps the layout that the input has where that is nearly as good as the best.
WindowLayouts window_layouts(const Schedule& schedule, int value, const Image& output, const Window& window, int lanes);

}  // namespace tersify
