// Operations with a window: convolutions and pools.
#include <algorithm>
#include <climits>
#include <memory>

#include "conv_step.hpp"
#include "window_shape.hpp"

namespace tersify {
namespace {

constexpr double kKeepLayout = 1.15;  // how much slower a layout may be before a conversion pays

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The layouts of a window operation. Keeps what the input has where that is nearly as good.
struct WindowLayouts {
  Layout from, to;
};

WindowLayouts window_layouts(const Schedule& s, int value, const Image& out, const Window& w, int lanes) {
  const Image in = s.image(value);
  const Layout* current = s.lanes_of(value, lanes);
  const int limit = s.patch_limit(lanes);
  // Every tile must cover its share of the input, also where the window ends before it.
  const Image cover{out.n, out.c, std::max(out.h, ceil_div(in.h, w.stride_h)),
                    std::max(out.w, ceil_div(in.w, w.stride_w))};
  Layout best = choose_layout(cover, lanes, limit);
  if (current && current->tile_h % w.stride_h == 0 && current->tile_w % w.stride_w == 0) {
    Layout kept = *current;
    kept.tile_h /= w.stride_h;
    kept.tile_w /= w.stride_w;
    if (kept.rows * kept.tile_h >= out.h && kept.cols * kept.tile_w >= out.w &&
        layout_cost(kept, out.n, limit) <= kKeepLayout * layout_cost(best, out.n, limit))
      return {*current, kept};
  }
  Layout from = best;
  from.tile_h *= w.stride_h;
  from.tile_w *= w.stride_w;
  return {from, best};
}

void add_pool(Schedule& s, const Op& op, const Window& window, bool is_max, bool count_padding) {
  const Kernels* k = &s.kernels();
  const Image in = s.image(op.inputs[0]), out = s.image(op.output);
  const WindowLayouts layouts = window_layouts(s, op.inputs[0], out, window, s.lanes());
  const Layout from = layouts.from, to = layouts.to;
  const int source = s.need(op.inputs[0], from), target = s.give(op.output, to);
  auto geometry = std::make_shared<Geometry>(
      make_geometry(in, from, to, window, k->patch_limit, 1, k->vector_bytes));
  auto reciprocal = std::make_shared<AlignedBytes>();
  if (!is_max) {
    const int lanes = s.lanes();
    reciprocal->grow(size_t(to.positions()) * k->vector_bytes);
    float* value = reinterpret_cast<float*>(reciprocal->data());
    auto inside = [](int at, int size, int kernel, int dilation) {
      int count = 0;
      for (int i = 0; i < kernel; ++i) count += at + i * dilation >= 0 && at + i * dilation < size;
      return std::max(count, 1);
    };
    for (int y = 0; y < to.tile_h; ++y)
      for (int x = 0; x < to.tile_w; ++x)
        for (int l = 0; l < lanes; ++l) {
          const int tile = l % (to.rows * to.cols);
          const int oy = tile / to.cols * to.tile_h + y, ox = tile % to.cols * to.tile_w + x;
          const int count =
              count_padding
                  ? window.taps()
                  : inside(oy * window.stride_h - window.pad_h, in.h, window.kernel_h, window.dilation_h) *
                        inside(ox * window.stride_w - window.pad_w, in.w, window.kernel_w, window.dilation_w);
          value[(size_t(y) * to.tile_w + x) * lanes + l] = 1.0f / count;
        }
  }
  const int places = static_cast<int>(geometry->places.size());
  const size_t footprint = size_t(geometry->footprint_h) * geometry->footprint_w * k->vector_bytes;
  Step step;
  step.tasks = to.groups(in.n) * places;
  step.scratch_bytes = footprint;
  step.reads = {source};
  step.writes = {target};
  step.kernel = "pool";
  step.run = [=](char* const* b, int task, char* scratch) {
           const Geometry::Place& place = geometry->places[task % places];
           const size_t group = task / places, bytes = k->vector_bytes;
           const size_t at = (size_t(place.y) * to.tile_w + place.x) * bytes;
           PoolTask t{};
           t.patch = geometry->view(place, static_cast<int>(bytes));
           t.input_channel_bytes = from.channel_vectors() * bytes;
           t.output_channel_bytes = to.channel_vectors() * bytes;
           t.output_row_bytes = to.tile_w * bytes;
           t.input = b[source] + group * in.c * t.input_channel_bytes;
           t.output = b[target] + group * out.c * t.output_channel_bytes + at;
           t.places = geometry->tap_places.data();
           t.taps = window.taps();
           t.channels = in.c;
           t.is_max = is_max;
           t.reciprocal = is_max ? nullptr : reciprocal->data() + at;
           t.scratch = scratch;
           k->pool(t);
         };
  s.add(std::move(step));
}

// Whether no window crosses the rim of a patch, and no two patches overlap.
bool fills_patches(const Layout& layout, const Patch& patch, const Window& pool) {
  return patch.h % pool.kernel_h == 0 && patch.w % pool.kernel_w == 0 && layout.tile_h % patch.h == 0 &&
         layout.tile_w % patch.w == 0;
}

struct ConvOp {
  std::shared_ptr<const ListConvWeights> weights;
  std::shared_ptr<Epilogue> epilogue, mean;  // mean null: none
  Shape made;                                // by the sums; a mean is smaller
  int residual;
};

void add_list_conv(Schedule& s, const Op& op, const ConvOp& conv) {
  const Window& w = conv.weights->window;
  const int in = op.inputs[0];
  const Image input = s.image(in), output{input.n, conv.made.c, conv.made.h, conv.made.w};
  const WindowLayouts layouts = window_layouts(s, in, output, w, s.lanes(conv.weights->lane));
  const Layout& to = layouts.to;
  ConvStep step;
  step.weights = conv.weights->lists;
  step.finish = conv.epilogue;
  step.in = input;
  step.out = output;
  step.from = layouts.from;
  step.to = to;
  step.lane = conv.weights->lane;
  step.source = s.need(in, layouts.from);
  step.residual = conv.residual < 0 ? -1 : s.need(conv.residual, to);
  step.input_quant = s.quant(in);
  step.residual_quant = conv.residual < 0 ? Quant{} : s.quant(conv.residual);
  step.output_quant = s.quant(op.output);
  if (op.maxima >= 0 && fills_patches(to, choose_patch(to, s.patch_limit(to.lanes())), op.pool)) {
    step.pool_h = op.pool.kernel_h;
    step.pool_w = op.pool.kernel_w;
    step.target = s.give(op.maxima, pooled_layout(to, step.pool_h, step.pool_w));
  } else {
    step.target = s.give(op.output, conv.mean ? Layout{} : to);
  }
  if (conv.mean)
    add_mean_conv(s, std::move(step), w, *conv.mean);
  else
    add_conv(s, std::move(step), w);
}

std::vector<int> with_residual(int in, int residual) {
  return residual < 0 ? std::vector<int>{in} : std::vector<int>{in, residual};
}

// Takes back what every weight adds because its activations lie shifted by kByteZero.
void without_zeros(Epilogue& epilogue, const std::vector<int32_t>& sign_sums) {
  epilogue.scale.resize(sign_sums.size(), 1.0f);
  epilogue.shift.resize(sign_sums.size(), 0.0f);
  for (size_t r = 0; r < sign_sums.size(); ++r)
    epilogue.shift[r] -= static_cast<float>(double(epilogue.scale[r]) * kByteZero * sign_sums[r]);
}

}  // namespace

int Engine::list_conv(int in, std::shared_ptr<const ListConvWeights> weights, Epilogue epilogue, int residual,
                      const Epilogue* mean) {
  const Value input = at(in);
  if (input.shape.c != weights->channels)
    throw std::invalid_argument("the convolution reads " + std::to_string(weights->channels) + " channels, its input has " +
                                std::to_string(input.shape.c));
  const Shape made = conv_shape(input.shape, weights->window, weights->rows);
  if (residual != -1) residual_at(residual, input.items, made);
  ConvOp conv;
  conv.epilogue = std::make_shared<Epilogue>(std::move(epilogue));
  if (mean) conv.mean = std::make_shared<Epilogue>(mean->checked(weights->rows).folded());
  conv.made = made;
  conv.residual = residual;
  conv.weights = std::move(weights);
  const int value = add(with_residual(in, residual), mean ? Shape{made.c, 1, 1} : made,
                        [conv](Schedule& s, const Op& op) { add_list_conv(s, op, conv); });
  ops_.back().takes_maxima = !mean;
  return value;
}

int Engine::conv(int in, std::shared_ptr<const ConvWeights> weights, Epilogue epilogue, int residual,
                 const Epilogue* mean) {
  use(weights, "convolution");
  epilogue = epilogue.checked(weights->rows);
  return list_conv(in, std::move(weights), std::move(epilogue), residual, mean);
}

int Engine::conv_i8(int in, std::shared_ptr<const ConvInt8Weights> weights, Epilogue epilogue, int residual, Quant output,
                    const Epilogue* mean) {
  use(weights, "convolution");
  check_quant(output);
  for (int value : with_residual(in, residual))
    if (at(value).quant.scale <= 0)
      throw std::invalid_argument("value " + std::to_string(value) + " is not quantized; an int8 convolution reads steps");
  epilogue = epilogue.checked(weights->rows);
  if (at(in).quant.low < 0) without_zeros(epilogue, weights->sign_sums);
  const int value = list_conv(in, std::move(weights), std::move(epilogue), residual, mean);
  values_[value].quant = output;
  return value;
}

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
