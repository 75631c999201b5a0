// Dense ternary convolutions with 8-bit activations. An image lies as pixels, all channels of one in neighbouring bytes and
// a rim of zeros around: a window is then a few runs of bytes, and every place of the output a vector that reads them.
#include <algorithm>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "dense.hpp"
#include "schedule.hpp"

namespace tersify {
namespace {

constexpr int kDenseTasksPerThread = 4;
constexpr double kDensePerWeight = 0.016;  // in vector operations

struct DenseConv {
  std::shared_ptr<TernaryMatrix> weights;
  std::vector<int32_t> runs;      // in bytes from a window's first pixel
  std::vector<int32_t> taps;      // in pixels
  std::vector<int32_t> offsets;   // per row: what a zero adds that does not lie as the byte 0
  FinishData finish;
  Window window;
  Quant quant;
  Shape in, out;
  int pixel_bytes, zero;  // zero: the byte that stands for it
  int run_steps;

  int padded_w() const { return in.w + 2 * window.pad_w; }
  size_t pixels() const { return size_t(in.h + 2 * window.pad_h) * padded_w(); }
  size_t image_bytes() const { return AlignedBytes::rounded(pixels() * pixel_bytes + 64); }
};

std::vector<float> by_pixels(const float* weight, int rows, int channels, int taps, int pixel_bytes) {
  std::vector<float> moved(size_t(rows) * taps * pixel_bytes);
  for (int r = 0; r < rows; ++r)
    for (int c = 0; c < channels; ++c)
      for (int t = 0; t < taps; ++t)
        moved[(size_t(r) * taps + t) * pixel_bytes + c] = weight[(size_t(r) * channels + c) * taps + t];
  return moved;
}

// One row of an image, and the rim around it.
void lay_pixels(const Kernels& k, const DenseConv& d, const float* image, int8_t* bytes, int32_t* sums, int y) {
  const Window& w = d.window;
  const int from = y - w.pad_h;
  const bool inside = from >= 0 && from < d.in.h;
  int8_t* row = bytes + size_t(y) * d.padded_w() * d.pixel_bytes;
  int32_t* row_sums = sums + size_t(y) * d.padded_w();
  auto fill = [&](int begin, int end) {
    std::memset(row + size_t(begin) * d.pixel_bytes, d.zero, size_t(end - begin) * d.pixel_bytes);
    std::fill(row_sums + begin, row_sums + end, d.zero * d.pixel_bytes);
  };
  fill(0, inside ? w.pad_w : d.padded_w());
  if (!inside) return;
  fill(w.pad_w + d.in.w, d.padded_w());
  k.quantize_pixels({image + size_t(from) * d.in.w, size_t(d.in.h) * d.in.w, d.in.c, d.in.w, d.quant, d.zero,
                     d.pixel_bytes, row + size_t(w.pad_w) * d.pixel_bytes, row_sums + w.pad_w});
}

// One row of the output: tiles of places meet blocks of channels.
void multiply_row(const Kernels& k, const DenseConv& d, const int8_t* bytes, const int32_t* pixel_sums,
                  const float* residual, float* out, int y) {
  const Window& w = d.window;
  const size_t plane = size_t(d.out.h) * d.out.w, first_pixel = size_t(y) * w.stride_h * d.padded_w();
  alignas(64) int32_t sums[kDenseVectors * kDenseRows];
  for (int block = 0; block < d.weights->blocks(); ++block)
    for (int x = 0; x < d.out.w; x += kDenseVectors) {
      const size_t pixel = first_pixel + size_t(x) * w.stride_w;
      const int count = std::min(kDenseVectors, d.out.w - x);
      k.dense_sums({d.weights->block(block), d.weights->rows_of(block), bytes + pixel * d.pixel_bytes,
                    ptrdiff_t(w.stride_w) * d.pixel_bytes, count, d.runs.data(), int(d.runs.size()), d.run_steps, sums});
      int32_t totals[kDenseVectors];
      for (int v = 0; v < count; ++v) {
        totals[v] = 0;
        for (int32_t tap : d.taps) totals[v] += pixel_sums[pixel + size_t(v) * w.stride_w + tap];
      }
      const int row = block * kDenseRows;
      const size_t at = row * plane + size_t(y) * d.out.w + x;
      k.finish_places({sums, totals, d.offsets.data(), row, d.weights->rows_of(block), count, out + at,
                       residual ? residual + at : nullptr, plane, d.finish.view()});
    }
}

}  // namespace

int Engine::dense_conv(int in, const Window& w, const float* weight, int rows, FinishData finish, int residual,
                       Quant quant) {
  const Shape i = shapes_.at(in);
  auto size = [](int n, int kernel, int stride, int pad, int dilation) {
    return (n + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
  };
  if (quant.scale <= 0 || quant.high > 255 || (quant.low < 0 && std::max(-quant.low, quant.high) > 127))
    throw std::invalid_argument("8-bit activations are 0..255 or -127..127 with a positive scale");
  auto d = std::make_shared<DenseConv>();
  d->window = w;
  d->quant = quant;
  d->in = i;
  d->out = {rows, size(i.h, w.kernel_h, w.stride_h, w.pad_h, w.dilation_h),
            size(i.w, w.kernel_w, w.stride_w, w.pad_w, w.dilation_w)};
  d->pixel_bytes = (i.c + 3) / 4 * 4;
  d->zero = quant.low < 0 ? 0 : -128;
  d->finish = std::move(finish);
  const bool joined = w.dilation_w == 1;  // neighbouring taps are neighbouring bytes
  d->run_steps = (joined ? w.kernel_w : 1) * d->pixel_bytes / 4;
  for (int y = 0; y < w.kernel_h; ++y)
    for (int x = 0; x < w.kernel_w; ++x) {
      d->taps.push_back(y * w.dilation_h * d->padded_w() + x * w.dilation_w);
      if (x == 0 || !joined) d->runs.push_back(d->taps.back() * d->pixel_bytes);
    }
  for (int r = 0; r < rows; ++r) {
    int signs = 0;
    for (int f = 0; f < i.c * w.taps(); ++f) {
      const float v = weight[size_t(r) * i.c * w.taps() + f];
      signs += (v > 0) - (v < 0);
    }
    d->offsets.push_back(-d->zero * signs);
  }
  const auto moved = by_pixels(weight, rows, i.c, w.taps(), d->pixel_bytes);
  d->weights = std::make_shared<TernaryMatrix>(moved.data(), rows, w.taps() * d->pixel_bytes);
  weight_sizes_.push_back([d] { return d->weights->resident_bytes() + d->offsets.size() * sizeof(int32_t); });
  std::vector<int> inputs{in};
  if (residual >= 0) inputs.push_back(residual);
  return add(inputs, d->out, [=](Schedule& s, const Op& op) {
    const int source = s.need(in, {}), other = residual < 0 ? -1 : s.need(residual, {});
    const int target = s.give(op.output, {});
    const int bytes = s.temporary(d->image_bytes() * s.n()), sums = s.temporary(d->pixels() * s.n() * sizeof(int32_t));
    const Kernels* k = &s.kernels();
    auto bytes_of = [=](char* const* b, int n) { return reinterpret_cast<int8_t*>(b[bytes] + d->image_bytes() * n); };
    auto sums_of = [=](char* const* b, int n) { return reinterpret_cast<int32_t*>(b[sums]) + d->pixels() * n; };
    // Tasks are ranges of rows of all the images together.
    auto rows_step = [&](int rows_of_image, auto each) {
      const int all = s.n() * rows_of_image, tasks = std::min(all, kDenseTasksPerThread * s.threads());
      Step step;
      step.tasks = tasks;
      step.run = [=](char* const* b, int task, char*) {
        const int end = int(size_t(all) * (task + 1) / tasks);
        for (int row = int(size_t(all) * task / tasks); row < end; ++row) each(b, row / rows_of_image, row % rows_of_image);
      };
      return step;
    };
    Step lay = rows_step(d->in.h + 2 * d->window.pad_h, [=](char* const* b, int n, int y) {
      const float* image = reinterpret_cast<const float*>(b[source]) + size_t(n) * d->in.numel();
      lay_pixels(*k, *d, image, bytes_of(b, n), sums_of(b, n), y);
    });
    lay.reads = {source};
    lay.writes = {bytes, sums};
    lay.kernel = "pixels";
    s.add(std::move(lay));
    Step multiply = rows_step(d->out.h, [=](char* const* b, int n, int y) {
      const size_t image = size_t(n) * d->out.numel();
      const float* add = other < 0 ? nullptr : reinterpret_cast<const float*>(b[other]) + image;
      multiply_row(*k, *d, bytes_of(b, n), sums_of(b, n), add, reinterpret_cast<float*>(b[target]) + image, y);
    });
    multiply.reads = {bytes, sums};
    if (other >= 0) multiply.reads.push_back(other);
    multiply.writes = {target};
    multiply.kernel = "two-bit conv";
    s.add(std::move(multiply));
    s.add_cost(double(s.n()) * d->out.numel() * d->weights->vector_bytes() * kDensePerWeight);
  });
}

}  // namespace tersify
