#include "layout/window.hpp"

#include <algorithm>
#include <climits>

namespace tersify {
namespace {

int output_size(int in, int kernel, int stride, int pad, int dilation) {
  const int64_t last = int64_t(in) + 2 * pad - int64_t(dilation) * (kernel - 1) - 1;  // where a window may begin
  return last < 0 ? 0 : int(std::min<int64_t>(last / stride + 1, INT_MAX));
}

}  // namespace

Shape conv_shape(const Shape& i, const Window& w, int channels) {
  const int h = output_size(i.h, w.kernel_h, w.stride_h, w.pad_h, w.dilation_h);
  const int width = output_size(i.w, w.kernel_w, w.stride_w, w.pad_w, w.dilation_w);
  if (h < 1 || width < 1)
    throw std::invalid_argument("a window of " + std::to_string(w.kernel_h) + "×" + std::to_string(w.kernel_w) +
                                " does not fit into " + to_string(i) + " and its padding");
  return checked_shape(channels, h, width);
}

}  // namespace tersify
