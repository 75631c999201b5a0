// Convolutions with whole numbers, zeros and all, and 8-bit activations. An image lies as pixels, all channels of one
// in neighbouring bytes and a rim of zeros around: a window is then a few runs of bytes, and every position of the
// output a vector that reads them.
#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <stdexcept>
#include <utility>

#include "engine/schedule.hpp"
#include "kernels/linear-2bit-i8/code_matrix.hpp"
#include "layout/window.hpp"

namespace tersify {
namespace {

constexpr int kRowTasksPerThread = 2;  // each unpacks the weights it needs

struct ConvCodes {
  std::shared_ptr<const CodeMatrix> weights;
  std::vector<int32_t> runs;     // in bytes from a window's first pixel
  std::vector<int32_t> taps;     // in pixels
  std::vector<int32_t> offsets;  // per row: what a zero adds that does not lie as the byte 0
  Epilogue epilogue;
  Window window;
  Quant quant;
  Shape in, out;
  int pixel_bytes, zero;  // zero: the byte that stands for it
  int run_steps;

  int padded_w() const { return in.w + 2 * window.pad_w; }
  size_t pixels() const { return size_t(in.h + 2 * window.pad_h) * padded_w(); }
  size_t image_bytes() const { return AlignedBytes::rounded(pixels() * pixel_bytes + 64); }
};

// One row of an image, and the rim around it.
void lay_pixels(const Kernels& k, const ConvCodes& d, const float* image, int8_t* bytes, int32_t* sums, int y) {
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
  k.quantize_pixels({.row = image + size_t(from) * d.in.w,
                     .channel_stride = size_t(d.in.h) * d.in.w,
                     .channels = d.in.c,
                     .width = d.in.w,
                     .quant = d.quant,
                     .zero = d.zero,
                     .pixel_bytes = d.pixel_bytes,
                     .bytes = row + size_t(w.pad_w) * d.pixel_bytes,
                     .sums = row_sums + w.pad_w});
}

// The sums of pixels that lie `apart`; whole tiles side by side are the usual case, which the compiler likes to know.
void add_totals(const int32_t* pixel_sums, int apart, int count, int32_t* totals) {
  if (apart == 1 && count == kCodeVectors) {
    for (int v = 0; v < kCodeVectors; ++v) totals[v] += pixel_sums[v];
    return;
  }
  for (int v = 0; v < count; ++v) totals[v] += pixel_sums[size_t(v) * apart];
}

// One row of the output meets a group of channels, tile by tile of positions.
void multiply_row(const Kernels& k, const ConvCodes& d, int group, const char* unpacked, const int8_t* bytes,
                  const int32_t* pixel_sums, const float* residual, float* out, int y) {
  const Window& w = d.window;
  const size_t plane = size_t(d.out.h) * d.out.w, first_pixel = size_t(y) * w.stride_h * d.padded_w();
  alignas(64) int32_t sums[kCodeVectors * kCodeRows];
  for (int x = 0; x < d.out.w; x += kCodeVectors) {
    const size_t pixel = first_pixel + size_t(x) * w.stride_w;
    const int count = std::min(kCodeVectors, d.out.w - x);
    CodesTask t{};
    t.x = bytes + pixel * d.pixel_bytes;
    t.vector_bytes = ptrdiff_t(w.stride_w) * d.pixel_bytes;
    t.vectors = count;
    t.runs = d.runs.data();
    t.run_count = int(d.runs.size());
    t.run_steps = d.run_steps;
    t.sums = sums;
    d.weights->multiply(k, t, group, unpacked);
    int32_t totals[kCodeVectors] = {};
    for (int32_t tap : d.taps) add_totals(pixel_sums + pixel + tap, w.stride_w, count, totals);
    for (int v = 0; v < count; ++v) totals[v] *= d.weights->zero();
    const int row = group * kCodeRows;
    const size_t at = row * plane + size_t(y) * d.out.w + x;
    k.write_positions({.sums = sums,
                       .totals = totals,
                       .offsets = d.offsets.data(),
                       .first_row = row,
                       .rows = d.weights->rows_of(group),
                       .positions = count,
                       .out = out + at,
                       .residual = residual ? residual + at : nullptr,
                       .row_stride = plane,
                       .epilogue = d.epilogue.view()});
  }
}

// A column of pixels lies in memory as a row does, and rows meet the weights tile by tile.
void lay_down(Shape& in, Window& w) {
  if (in.w != 1 || w.kernel_w != 1 || w.pad_w != 0) return;
  std::swap(in.h, in.w);
  std::swap(w.kernel_h, w.kernel_w);
  std::swap(w.stride_h, w.stride_w);
  std::swap(w.pad_h, w.pad_w);
  std::swap(w.dilation_h, w.dilation_w);
}

// What the window and the image make of the weights.
std::shared_ptr<ConvCodes> conv_of(std::shared_ptr<const ConvCodesWeights> weights, Shape in, const Quant& quant,
                                   const Epilogue& epilogue) {
  Window w = weights->window;
  lay_down(in, w);
  auto d = std::make_shared<ConvCodes>();
  d->in = in;
  d->out = conv_shape(in, w, weights->rows);
  d->window = w;
  d->quant = quant;
  d->pixel_bytes = weights->pixel_bytes;
  d->zero = quant.low < 0 ? 0 : -128;
  d->epilogue = epilogue.checked(weights->rows);
  if (d->pixels() * d->pixel_bytes > INT_MAX)
    throw std::invalid_argument("an image of this size is too large for bytes");
  const bool joined = w.dilation_w == 1;  // neighbouring taps are neighbouring bytes
  d->run_steps = (joined ? w.kernel_w : 1) * d->pixel_bytes / 4;
  for (int y = 0; y < w.kernel_h; ++y)
    for (int x = 0; x < w.kernel_w; ++x) {
      d->taps.push_back(y * w.dilation_h * d->padded_w() + x * w.dilation_w);
      if (x == 0 || !joined) d->runs.push_back(d->taps.back() * d->pixel_bytes);
    }
  for (int32_t levels : weights->level_sums) d->offsets.push_back(-d->zero * levels);
  d->weights = std::shared_ptr<const CodeMatrix>(weights, &weights->codes);
  return d;
}

// First the image becomes pixels, then rows of the output meet the weights.
void add_conv_codes(Schedule& s, const Op& op, std::shared_ptr<const ConvCodes> d) {
  const int source = s.buffer_of(op.inputs[0], {}), other = op.inputs.size() < 2 ? -1 : s.buffer_of(op.inputs[1], {});
  const int target = s.new_buffer_for(op.output, {}), items = s.items(op.inputs[0]);
  const int bytes = s.temporary(d->image_bytes() * items), sums = s.temporary(d->pixels() * items * sizeof(int32_t));
  const Kernels* k = &s.kernels();
  auto bytes_of = [=](char* const* b, int n) { return reinterpret_cast<int8_t*>(b[bytes] + d->image_bytes() * n); };
  auto sums_of = [=](char* const* b, int n) { return reinterpret_cast<int32_t*>(b[sums]) + d->pixels() * n; };
  // Tasks are ranges of rows of all the images together.
  auto rows_step = [&](int rows_of_image, auto part) {
    const int all = items * rows_of_image,
              tasks = s.threads() > 1 ? std::min(all, kRowTasksPerThread * s.threads()) : 1;
    Step step(d->weights->kernel_name());
    step.tasks = tasks;
    step.run = [=](char* const* b, int task, char* scratch) {
      part(b, int(size_t(all) * task / tasks), int(size_t(all) * (task + 1) / tasks), scratch);
    };
    return step;
  };
  const int laid_rows = d->in.h + 2 * d->window.pad_h;
  Step lay = rows_step(laid_rows, [=](char* const* b, int begin, int end, char*) {
    for (int row = begin; row < end; ++row) {
      const int n = row / laid_rows;
      const float* image = reinterpret_cast<const float*>(b[source]) + size_t(n) * d->in.numel();
      lay_pixels(*k, *d, image, bytes_of(b, n), sums_of(b, n), row % laid_rows);
    }
  });
  lay.reads = {source};
  lay.writes = {bytes, sums};
  s.add(std::move(lay));
  const size_t unpacked_bytes = d->weights->unpacked_bytes(items * d->out.h * d->out.w);
  Step multiply = rows_step(d->out.h, [=](char* const* b, int begin, int end, char* scratch) {
    for (int group = 0; group < d->weights->groups(); ++group) {
      if (unpacked_bytes) d->weights->unpack(*k, group, scratch);
      for (int row = begin; row < end; ++row) {
        const int n = row / d->out.h;
        const size_t image = size_t(n) * d->out.numel();
        const float* add = other < 0 ? nullptr : reinterpret_cast<const float*>(b[other]) + image;
        multiply_row(*k, *d, group, unpacked_bytes ? scratch : nullptr, bytes_of(b, n), sums_of(b, n), add,
                     reinterpret_cast<float*>(b[target]) + image, row % d->out.h);
      }
    }
  });
  multiply.scratch_bytes = unpacked_bytes;
  multiply.reads = {bytes, sums};
  if (other >= 0) multiply.reads.push_back(other);
  multiply.writes = {target};
  s.add(std::move(multiply));
  s.add_cost(double(items) * d->out.numel() * d->weights->vector_bytes() * kCodePerWeight);
}

}  // namespace

int Engine::conv_codes(int in, std::shared_ptr<const ConvCodesWeights> weights, Epilogue epilogue, int residual,
                       Quant quant) {
  use(weights, "convolution");
  check_quant(quant);
  const Value input = at(in);
  if (input.shape.c != weights->channels)
    throw std::invalid_argument("the convolution reads " + std::to_string(weights->channels) +
                                " channels, its input has " + std::to_string(input.shape.c));
  const Shape made = conv_shape(input.shape, weights->window, weights->rows);
  const auto conv = conv_of(std::move(weights), input.shape, quant, epilogue);
  std::vector<int> inputs{in};
  if (residual != -1) {
    residual_at(residual, input.items, made);
    inputs.push_back(residual);
  }
  return add(inputs, made, [conv](Schedule& s, const Op& op) { add_conv_codes(s, op, conv); });
}

}  // namespace tersify
