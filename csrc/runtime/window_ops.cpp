// Operations with a window: convolutions and pools.
#include <algorithm>
#include <memory>

#include "conv_step.hpp"

namespace tersify {
namespace {

constexpr double kKeepLayout = 1.15;  // how much slower a layout may be before a conversion pays

int output_size(int in, int kernel, int stride, int pad, int dilation) {
  return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The layouts of a window operation: input first. Keeps what the input has where that is nearly as good.
std::pair<Layout, Layout> window_layouts(const Schedule& s, int value, const Image& out, const Window& w, int lanes) {
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
  const auto [from, to] = window_layouts(s, op.inputs[0], out, window, s.lanes());
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
  s.add({to.groups(in.n) * places, footprint, {source}, {target}, [=](char* const* b, int task, char* scratch) {
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
         }, {}, "pool"});
}

Shape conv_shape(const Shape& i, const Window& w, int channels) {
  return {channels, output_size(i.h, w.kernel_h, w.stride_h, w.pad_h, w.dilation_h),
          output_size(i.w, w.kernel_w, w.stride_w, w.pad_w, w.dilation_w)};
}

// Whether no window crosses the rim of a patch, and no two patches overlap.
bool fills_patches(const Layout& layout, const Patch& patch, const Window& pool) {
  return patch.h % pool.kernel_h == 0 && patch.w % pool.kernel_w == 0 && layout.tile_h % patch.h == 0 &&
         layout.tile_w % patch.w == 0;
}

std::function<void(Schedule&, const Op&)> conv_plan(std::shared_ptr<SparseWeights> weights, FinishData finish,
                                                    const Window& w, const Shape& made, int in, int residual,
                                                    Lane lane, const FinishData* mean) {
  auto constants = std::make_shared<FinishData>(std::move(finish));
  auto means = mean ? std::make_shared<FinishData>(*mean) : nullptr;
  return [=](Schedule& s, const Op& op) {
    const Image input = s.image(in), output{input.n, made.c, made.h, made.w};
    const auto [from, to] = window_layouts(s, in, output, w, s.lanes(lane));
    const int source = s.need(in, from), other = residual < 0 ? -1 : s.need(residual, to);
    const bool maxima = op.maxima >= 0 && fills_patches(to, choose_patch(to, s.patch_limit(to.lanes())), op.pool);
    const int target = maxima ? s.give(op.maxima, pooled_layout(to, op.pool.kernel_h, op.pool.kernel_w))
                              : s.give(op.output, means ? Layout{} : to);
    const Quant other_quant = residual < 0 ? Quant{} : s.quant(residual);
    ConvStep step{nullptr, {}, weights, constants, input, output, from, to, source, target, other, {}, lane,
                  s.quant(in), other_quant, s.quant(op.output)};
    if (maxima) {
      step.pool_h = op.pool.kernel_h;
      step.pool_w = op.pool.kernel_w;
    }
    if (means)
      add_mean_conv(s, std::move(step), w, *means);
    else
      add_conv(s, std::move(step), w);
  };
}

std::vector<int> with_residual(int in, int residual) {
  return residual < 0 ? std::vector<int>{in} : std::vector<int>{in, residual};
}

// Takes back what every weight adds because its activations lie shifted by kByteZero.
void without_zeros(FinishData& finish, const float* weight, int rows, size_t per_row) {
  finish.scale.resize(rows, 1.0f);
  finish.shift.resize(rows, 0.0f);
  for (int r = 0; r < rows; ++r) {
    double sum = 0;
    for (size_t i = 0; i < per_row; ++i) sum += weight[r * per_row + i];
    finish.shift[r] -= static_cast<float>(double(finish.scale[r]) * kByteZero * sum);
  }
}

}  // namespace

int Engine::conv(int in, const Window& w, int groups, const float* weight, int rows, ValueKind kind,
                 std::vector<float> table, FinishData finish, int residual, const FinishData* mean, bool half) {
  const Lane lane = half ? Lane::Half : Lane::Float;
  const Shape i = shapes_.at(in);
  const Shape o = conv_shape(i, w, rows);
  auto weights = pack({weight, rows, i.c, groups, w.taps()}, w, o, kind, std::move(table), lane);
  return add(with_residual(in, residual), mean ? Shape{rows, 1, 1} : o,
             conv_plan(std::move(weights), std::move(finish), w, o, in, residual, lane, mean));
}

int Engine::narrow_conv(int in, const Window& w, int groups, const float* weight, int rows, FinishData finish,
                        int residual, Quant output, const FinishData* mean) {
  for (const Quant& q : {quants_.at(in), residual < 0 ? output : quants_.at(residual), output})
    if (q.scale <= 0 || q.high > kNarrowHigh || (q.low < 0 && std::max(-q.low, q.high) > kNarrowHigh / 2))
      throw std::invalid_argument("narrow lanes hold 0..255 or -127..127 with a positive scale");
  const Shape i = shapes_.at(in);
  const Shape o = conv_shape(i, w, rows);
  auto weights = pack({weight, rows, i.c, groups, w.taps()}, w, o, ValueKind::Sign, {}, Lane::Byte);
  if (quants_.at(in).low < 0) without_zeros(finish, weight, rows, size_t(i.c / groups) * w.taps());
  const int value = add(with_residual(in, residual), mean ? Shape{rows, 1, 1} : o,
                        conv_plan(std::move(weights), std::move(finish), w, o, in, residual, Lane::Byte, mean));
  quantize(value, output);
  return value;
}

int Engine::fold_maxima(int conv, const Window& window, Shape output) {
  const int value = pool(conv, window, true, true, output);
  quantize(value, quants_.at(conv));
  Op& folded = ops_.back();
  folded.plan = [plan = std::move(folded.plan)](Schedule& s, const Op& op) {
    if (!s.has(op.output)) plan(s, op);
  };
  for (Op& op : ops_)
    if (op.output == conv) {
      op.maxima = value;
      op.pool = window;
    }
  return value;
}

int Engine::pool(int in, const Window& w, bool is_max, bool count_padding, Shape output) {
  const Shape i = shapes_.at(in), whole = conv_shape(i, w, i.c);
  const bool more = output.h - whole.h + output.w - whole.w > 0;
  if (output.c != i.c || output.h - whole.h < 0 || output.h - whole.h > 1 || output.w - whole.w < 0 ||
      output.w - whole.w > 1 || (more && !is_max))
    throw std::invalid_argument("a pool's output has the size its window gives, or for maxima one more");
  return add({in}, output,
             [=](Schedule& s, const Op& op) { add_pool(s, op, w, is_max, count_padding); });
}

}  // namespace tersify
