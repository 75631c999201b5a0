// Convolutions of signs with activations of two or three levels. All channels of a pixel are neighbouring bits, so a
// window is a few runs of bytes, and every position of the output a vector made of them.
#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "engine/schedule.hpp"
#include "layout/window.hpp"

namespace tersify {
namespace {

static_assert(kBitRows == kCodeRows && kBitVectors == kCodeVectors, "both families end in write_positions");
constexpr int kRowTasksPerThread = 2;

struct ConvBits {
  std::shared_ptr<const ConvBitWeights> weights;
  Epilogue epilogue;
  Quant levels;
  Shape in, out;
  BitSums sums_of;
  bool zeros_x;       // inside the image
  bool masked_rim;    // signs are never zero, but the rim is
  std::vector<int32_t> starts, masked_starts, runs, no_offsets;
  int run_bytes;

  const Window& window() const { return weights->window; }
  int pixel_bytes() const { return weights->pixel_bytes; }
  int padded_w() const { return in.w + 2 * window().pad_w; }
  size_t plane_bytes() const {
    return AlignedBytes::rounded(size_t(in.h + 2 * window().pad_h) * padded_w() * pixel_bytes());
  }
  bool two_planes() const { return zeros_x || masked_rim; }
  size_t image_bytes() const { return plane_bytes() * (two_planes() ? 2 : 1); }
  int vector_words() const { return weights->matrix.words(); }

  // Whether a window at this row or column of the output reaches into the rim.
  static bool leaves(int at, int stride, int kernel, int dilation, int pad, int size) {
    const int first = at * stride - pad;
    return first < 0 || first + (kernel - 1) * dilation >= size;
  }
};

// One row of an image, and the rim around it.
void lay_bits(const Kernels& k, const ConvBits& d, const float* image, uint8_t* signs, int y) {
  const Window& w = d.window();
  const int from = y - w.pad_h;
  const bool inside = from >= 0 && from < d.in.h;
  const size_t row_at = size_t(y) * d.padded_w() * d.pixel_bytes();
  uint8_t* own = signs + row_at;
  uint8_t* used = d.two_planes() ? own + d.plane_bytes() : nullptr;
  // The rim is 0: no sign at all, or the lowest of the levels 0..2, of which the middle one lies as zero.
  const bool lowest = middle_level(d.levels) != 0;
  auto fill = [&](int begin, int end) {
    for (int pixel = begin; pixel < end; ++pixel)
      for (int byte = 0; byte < d.pixel_bytes(); ++byte) {
        const int bits = std::min(8, d.in.c - 8 * byte);
        const auto all = lowest ? static_cast<uint8_t>((1 << bits) - 1) : uint8_t(0);
        own[size_t(pixel) * d.pixel_bytes() + byte] = all;
        if (used) used[size_t(pixel) * d.pixel_bytes() + byte] = all;
      }
  };
  fill(0, inside ? w.pad_w : d.padded_w());
  if (!inside) return;
  fill(w.pad_w + d.in.w, d.padded_w());
  const size_t first = size_t(w.pad_w) * d.pixel_bytes();
  k.bit_pixels({.row = image + size_t(from) * d.in.w,
                .channel_stride = size_t(d.in.h) * d.in.w,
                .channels = d.in.c,
                .width = d.in.w,
                .levels = d.levels,
                .pixel_bytes = d.pixel_bytes(),
                .signs = own + first,
                .used = used ? used + first : nullptr});
}

// The window at one position as a vector; zeros behind its last byte stay as they are.
void gather(const ConvBits& d, const uint8_t* plane, int y, int x, uint64_t* vector) {
  const Window& w = d.window();
  const uint8_t* from =
      plane + (size_t(y) * w.stride_h * d.padded_w() + size_t(x) * w.stride_w) * d.pixel_bytes();
  auto* to = reinterpret_cast<uint8_t*>(vector);
  for (size_t run = 0; run < d.runs.size(); ++run) std::memcpy(to + run * d.run_bytes, from + d.runs[run], d.run_bytes);
}

int32_t bits_of(const uint64_t* words, int count) {
  int32_t bits = 0;
  for (int i = 0; i < count; ++i) bits += __builtin_popcountll(words[i]);
  return bits;
}

// One row of the output, tile by tile of positions. `scratch` holds their vectors.
void multiply_row(const Kernels& k, const ConvBits& d, const uint8_t* image, const float* residual, float* out, int y,
                  uint64_t* scratch) {
  const Window& w = d.window();
  const BitMatrix& matrix = d.weights->matrix;
  const int words = d.vector_words();
  const size_t plane = size_t(d.out.h) * d.out.w;
  uint64_t* used = scratch + size_t(kBitVectors) * words;
  alignas(64) int32_t sums[kBitVectors * kBitRows];
  const bool row_leaves = ConvBits::leaves(y, w.stride_h, w.kernel_h, w.dilation_h, w.pad_h, d.in.h);
  auto column_leaves = [&](int x) {
    return ConvBits::leaves(x, w.stride_w, w.kernel_w, w.dilation_w, w.pad_w, d.in.w);
  };
  for (int x = 0; x < d.out.w; x += kBitVectors) {
    const int count = std::min(kBitVectors, d.out.w - x);
    const bool masked = d.zeros_x || (d.masked_rim && (row_leaves || column_leaves(x) || column_leaves(x + count - 1)));
    int32_t totals[kBitVectors];
    for (int v = 0; v < count; ++v) {
      gather(d, image, y, x + v, scratch + size_t(v) * words);
      if (masked) gather(d, image + d.plane_bytes(), y, x + v, used + size_t(v) * words);
      totals[v] = matrix.zeros() ? 0 : masked ? -bits_of(used + size_t(v) * words, words) : -d.weights->features;
    }
    for (int group = 0; group < matrix.groups(); ++group) {
      BitsTask t = matrix.task(group, masked ? d.masked_starts : d.starts);
      t.signs = scratch;
      t.used = masked ? used : nullptr;
      t.vector_words = words;
      t.vectors = count;
      t.sums = sums;
      d.sums_of(t);
      const size_t at = size_t(group) * kBitRows * plane + size_t(y) * d.out.w + x;
      k.write_positions({.sums = sums,
                         .totals = totals,
                         .offsets = d.no_offsets.data(),
                         .first_row = group * kBitRows,
                         .rows = matrix.rows_of(group),
                         .positions = count,
                         .out = out + at,
                         .residual = residual ? residual + at : nullptr,
                         .row_stride = plane,
                         .epilogue = d.epilogue.view()});
    }
  }
}

std::shared_ptr<ConvBits> conv_of(std::shared_ptr<const ConvBitWeights> weights, const Shape& in, const Quant& levels,
                                  const Epilogue& epilogue, BitSums sums_of) {
  const Window& w = weights->window;
  const BitMatrix& matrix = weights->matrix;
  auto d = std::make_shared<ConvBits>();
  d->in = in;
  d->out = conv_shape(in, w, matrix.rows());
  d->levels = levels;
  d->epilogue = epilogue.checked(matrix.rows());
  d->sums_of = sums_of;
  d->zeros_x = levels.scale != 0;
  d->masked_rim = !d->zeros_x && (w.pad_h > 0 || w.pad_w > 0);
  d->starts = matrix.starts(false, 0);
  d->masked_starts = matrix.starts(true, middle_level(levels));
  d->no_offsets.resize(d->starts.size());
  d->weights = std::move(weights);
  if (d->plane_bytes() > INT_MAX) throw std::invalid_argument("an image of this size is too large for bits");
  const bool joined = w.dilation_w == 1;  // neighbouring taps are neighbouring bytes
  d->run_bytes = (joined ? w.kernel_w : 1) * d->pixel_bytes();
  for (int y = 0; y < w.kernel_h; ++y)
    for (int x = 0; x < (joined ? 1 : w.kernel_w); ++x)
      d->runs.push_back((y * w.dilation_h * d->padded_w() + x * w.dilation_w) * d->pixel_bytes());
  return d;
}

// First the image becomes bits, then rows of the output meet the weights.
void add_conv_bits(Schedule& s, const Op& op, std::shared_ptr<const ConvBits> d) {
  const int source = s.buffer_of(op.inputs[0], {}), other = op.inputs.size() < 2 ? -1 : s.buffer_of(op.inputs[1], {});
  const int target = s.new_buffer_for(op.output, {}), items = s.items(op.inputs[0]);
  const int bits = s.temporary(d->image_bytes() * items);
  const Kernels* k = &s.kernels();
  auto image_of = [=](char* const* b, int n) { return reinterpret_cast<uint8_t*>(b[bits] + d->image_bytes() * n); };
  // Tasks are ranges of rows of all the images together.
  auto rows_step = [&](int rows_of_image, auto part) {
    const int all = items * rows_of_image;
    const int tasks = s.threads() > 1 ? std::min(all, kRowTasksPerThread * s.threads()) : 1;
    Step step(d->weights->matrix.kernel_name());
    step.tasks = tasks;
    step.run = [=](char* const* b, int task, char* scratch) {
      part(b, int(size_t(all) * task / tasks), int(size_t(all) * (task + 1) / tasks), scratch);
    };
    return step;
  };
  const int laid_rows = d->in.h + 2 * d->window().pad_h;
  Step lay = rows_step(laid_rows, [=](char* const* b, int begin, int end, char*) {
    for (int row = begin; row < end; ++row) {
      const int n = row / laid_rows;
      const float* image = reinterpret_cast<const float*>(b[source]) + size_t(n) * d->in.numel();
      lay_bits(*k, *d, image, image_of(b, n), row % laid_rows);
    }
  });
  lay.reads = {source};
  lay.writes = {bits};
  s.add(std::move(lay));
  const size_t scratch_words = size_t(2) * kBitVectors * d->vector_words();
  Step multiply = rows_step(d->out.h, [=](char* const* b, int begin, int end, char* scratch) {
    auto* vectors = reinterpret_cast<uint64_t*>(scratch);
    std::fill(vectors, vectors + scratch_words, uint64_t(0));
    for (int row = begin; row < end; ++row) {
      const int n = row / d->out.h;
      const size_t image = size_t(n) * d->out.numel();
      const float* add = other < 0 ? nullptr : reinterpret_cast<const float*>(b[other]) + image;
      multiply_row(*k, *d, image_of(b, n), add, reinterpret_cast<float*>(b[target]) + image, row % d->out.h, vectors);
    }
  });
  multiply.scratch_bytes = scratch_words * sizeof(uint64_t);
  multiply.reads = {bits};
  if (other >= 0) multiply.reads.push_back(other);
  multiply.writes = {target};
  s.add(std::move(multiply));
  s.add_cost(d->weights->matrix.cost(items * d->out.h * d->out.w));
}

}  // namespace

int Engine::conv_bits(int in, std::shared_ptr<const ConvBitWeights> weights, Epilogue epilogue, int residual,
                      Quant levels) {
  use(weights, "convolution");
  check_bit_levels(levels);
  const Value input = at(in);
  if (input.shape.c != weights->channels)
    throw std::invalid_argument("the convolution reads " + std::to_string(weights->channels) +
                                " channels, its input has " + std::to_string(input.shape.c));
  const auto conv = conv_of(std::move(weights), input.shape, levels, epilogue, bit_sums_of(workspace_->isa()));
  std::vector<int> inputs{in};
  if (residual != -1) {
    residual_at(residual, input.items, conv->out);
    inputs.push_back(residual);
  }
  return add(inputs, conv->out, [conv](Schedule& s, const Op& op) { add_conv_bits(s, op, conv); });
}

}  // namespace tersify
