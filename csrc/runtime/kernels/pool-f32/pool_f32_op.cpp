// Pools, as steps.
#include <algorithm>
#include <memory>

#include "engine/window_layouts.hpp"

namespace tersify {
namespace {

// How many of the positions of a window that begins `at` lie inside.
int inside(int at, int size, int kernel, int dilation) {
  int count = 0;
  for (int i = 0; i < kernel; ++i) count += at + i * dilation >= 0 && at + i * dilation < size;
  return std::max(count, 1);
}

int averaged(const Image& in, const Window& w, bool count_padding, int y, int x) {
  if (count_padding) return w.taps();
  return inside(y * w.stride_h - w.pad_h, in.h, w.kernel_h, w.dilation_h) *
         inside(x * w.stride_w - w.pad_w, in.w, w.kernel_w, w.dilation_w);
}

// 1 / the number of averaged positions, laid out like one channel of the output.
std::shared_ptr<AlignedBytes> reciprocals(const Image& in, const Layout& to, const Window& w, bool count_padding,
                                          int vector_bytes) {
  auto made = std::make_shared<AlignedBytes>();
  made->grow(size_t(to.positions()) * vector_bytes);
  float* value = reinterpret_cast<float*>(made->data());
  for (int y = 0; y < to.tile_h; ++y)
    for (int x = 0; x < to.tile_w; ++x)
      for (int lane = 0; lane < to.lanes(); ++lane) {
        const int tile = lane % (to.rows * to.cols);
        *value++ = 1.0f / float(averaged(in, w, count_padding, tile / to.cols * to.tile_h + y,
                                         tile % to.cols * to.tile_w + x));
      }
  return made;
}

// Where the image lies pixel by pixel.
void add_pixel_pool(Schedule& s, const Op& op, const Window& window, bool is_max, bool count_padding) {
  const Image in = s.image(op.inputs[0]), out = s.image(op.output);
  const auto taps = std::make_shared<PixelRuns>(pixel_taps(in, out, window));
  const auto counted = std::make_shared<std::vector<float>>();
  for (int y = 0; y < out.h && !is_max; ++y)
    for (int x = 0; x < out.w; ++x) counted->push_back(1.0f / float(averaged(in, window, count_padding, y, x)));
  const int source = s.buffer_of(op.inputs[0], s.pixels(op.inputs[0]));
  const int target = s.new_buffer_for(op.output, s.pixels(op.output));
  Step step("pool");
  step.tasks = in.n;
  step.reads = {source};
  step.writes = {target};
  step.run = [=, k = &s.kernels()](char* const* b, int item, char*) {
    PixelPoolTask t{};
    t.input = reinterpret_cast<const float*>(b[source]) + size_t(item) * in.c * in.h * in.w;
    t.starts = taps->starts.data();
    t.taps = taps->runs;
    t.positions = taps->positions;
    t.channels = in.c;
    t.last = taps->positions;
    t.is_max = is_max;
    t.reciprocals = counted->data();
    t.output = reinterpret_cast<float*>(b[target]) + size_t(item) * out.c * out.h * out.w;
    k->pool_pixels(t);
  };
  s.add(std::move(step));
}

void add_pool(Schedule& s, const Op& op, const Window& window, bool is_max, bool count_padding) {
  const Layout pixels = s.pixels(op.inputs[0]);
  if (pixels.pixels && s.lies(op.inputs[0], pixels)) return add_pixel_pool(s, op, window, is_max, count_padding);
  const Kernels* k = &s.kernels();
  const Image in = s.image(op.inputs[0]), out = s.image(op.output);
  const WindowLayouts layouts = window_layouts(s, op.inputs[0], out, window, s.lanes());
  const Layout from = layouts.from, to = layouts.to;
  const int source = s.buffer_of(op.inputs[0], from), target = s.new_buffer_for(op.output, to);
  auto geometry = std::make_shared<Geometry>(make_geometry(in, from, to, window, k->patch_limit, 1, k->vector_bytes));
  auto reciprocal = is_max ? nullptr : reciprocals(in, to, window, count_padding, k->vector_bytes);
  const int positions = static_cast<int>(geometry->positions.size());
  const size_t footprint = size_t(geometry->footprint_h) * geometry->footprint_w * k->vector_bytes;
  Step step("pool");
  step.tasks = to.groups(in.n) * positions;
  step.scratch_bytes = footprint;
  step.reads = {source};
  step.writes = {target};
  step.run = [=](char* const* b, int task, char* scratch) {
    const Geometry::Position& position = geometry->positions[task % positions];
    const size_t group = task / positions, bytes = k->vector_bytes;
    const size_t at = (size_t(position.y) * to.tile_w + position.x) * bytes;
    PoolTask t{};
    t.patch = geometry->view(position, static_cast<int>(bytes));
    t.input_channel_bytes = from.channel_vectors() * bytes;
    t.output_channel_bytes = to.channel_vectors() * bytes;
    t.output_row_bytes = to.tile_w * bytes;
    t.input = b[source] + group * in.c * t.input_channel_bytes;
    t.output = b[target] + group * out.c * t.output_channel_bytes + at;
    t.positions = geometry->tap_positions.data();
    t.taps = window.taps();
    t.channels = in.c;
    t.is_max = is_max;
    t.reciprocal = is_max ? nullptr : reciprocal->data() + at;
    t.scratch = scratch;
    k->pool(t);
  };
  s.add(std::move(step));
}

}  // namespace

int Engine::max_pool(int in, const Window& window, int output_h, int output_w) {
  return pool(in, window, true, true, output_h, output_w);
}

int Engine::avg_pool(int in, const Window& window, int output_h, int output_w, bool count_padding) {
  return pool(in, window, false, count_padding, output_h, output_w);
}

int Engine::pool(int in, const Window& w, bool is_max, bool count_padding, int output_h, int output_w) {
  check_window(w);
  if (2 * w.pad_h > w.kernel_h || 2 * w.pad_w > w.kernel_w)
    throw std::invalid_argument("a pool's padding is at most half its window");
  const Shape i = at(in).shape, whole = conv_shape(i, w, i.c);
  const Shape output = checked_shape(i.c, output_h, output_w);
  auto fits = [&](int size, int whole_size, int stride, int pad, int in_size) {
    if (size == whole_size) return true;
    return is_max && size == whole_size + 1 && (size - 1) * stride < in_size + pad;
  };
  if (!fits(output_h, whole.h, w.stride_h, w.pad_h, i.h) || !fits(output_w, whole.w, w.stride_w, w.pad_w, i.w))
    throw std::invalid_argument("a pool's output has the size its window gives, or for maxima one more; got " +
                                std::to_string(output_h) + "×" + std::to_string(output_w));
  return add({in}, output, [=](Schedule& s, const Op& op) { add_pool(s, op, w, is_max, count_padding); });
}

}  // namespace tersify
