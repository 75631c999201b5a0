// What Python hands over, as the engine's own types.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <memory>
#include <tuple>
#include <vector>

#include "engine/engine.hpp"

namespace tersify {

using Matrix = nanobind::ndarray<const float, nanobind::ndim<2>, nanobind::c_contig, nanobind::device::cpu>;
using Size2 = std::tuple<int, int>;
using SharedWorkspace = std::shared_ptr<Workspace>;
using Unlocked = nanobind::call_guard<nanobind::gil_scoped_release>;  // for what waits for a run to end

inline Window window_of(const std::vector<int>& v) {
  if (v.size() != 8) throw std::invalid_argument("a window has 8 numbers: kernel, stride, pad, dilation, each h and w");
  Window w;
  w.kernel_h = v[0], w.kernel_w = v[1], w.stride_h = v[2], w.stride_w = v[3];
  w.pad_h = v[4], w.pad_w = v[5], w.dilation_h = v[6], w.dilation_w = v[7];
  check_window(w);
  return w;
}

}  // namespace tersify
