// How each operation becomes steps: the layout it works in, its tasks, and what a task does.
#include <algorithm>
#include <cstring>
#include <memory>

#include "schedule.hpp"

namespace tersify {
namespace {

constexpr double kKeepLayout = 1.15;  // how much slower a layout may be before a conversion pays
constexpr int kTasksPerThread = 3;    // enough that a thread that lost its core does not hold up the rest
constexpr size_t kSumsBytes = 160 << 10;

int output_size(int in, int kernel, int stride, int pad, int dilation) {
  return (in + 2 * pad - dilation * (kernel - 1) - 1) / stride + 1;
}

int ceil_div(int a, int b) { return (a + b - 1) / b; }

// The layouts of a window operation: input first. Keeps what the input has where that is nearly as good.
std::pair<Layout, Layout> window_layouts(const Schedule& s, int value, const Image& out, const Window& w, int lanes) {
  const Image in = s.image(value);
  const Layout* current = s.lanes_of(value, lanes);
  const int limit = s.kernels().patch_limit;
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

struct ConvStep {
  const Kernels* kernels;
  Geometry geometry;
  std::shared_ptr<SparseWeights> weights;
  std::shared_ptr<FinishData> finish;
  Image in, out;
  Layout from, to;
  int source, target, residual;  // buffers; residual −1: none
  std::vector<int> splits;       // first chunk of each range, and the end
  bool narrow = false;
  Quant residual_quant, output_quant;

  ConvTask task(char* const* buffers, int number, char* scratch) const {
    const int bytes = kernels->vector_bytes, ranges = static_cast<int>(splits.size()) - 1;
    const int range = number % ranges, rest = number / ranges;
    const int places = static_cast<int>(geometry.places.size());
    const Geometry::Place& place = geometry.places[rest % places];
    const int group = rest / places;
    ConvTask t{};
    weights->fill(t);
    t.patch = geometry.view(place, bytes);
    t.offsets = geometry.offsets.data();
    t.chunk_begin = splits[range];
    t.chunk_end = splits[range + 1];
    t.finish = finish->view();
    t.input_channel_bytes = size_t(from.channel_vectors()) * bytes;
    t.output_channel_bytes = size_t(to.channel_vectors()) * bytes;
    t.output_row_bytes = size_t(to.tile_w) * bytes;
    t.residual_quant = residual_quant;
    t.output_quant = output_quant;
    t.scratch = scratch;
    if (!buffers) return t;
    const size_t at = group * t.output_channel_bytes * out.c + (size_t(place.y) * to.tile_w + place.x) * bytes;
    t.input = buffers[source] + group * t.input_channel_bytes * in.c;
    t.output = buffers[target] + at;
    t.residual = residual < 0 ? nullptr : buffers[residual] + at;
    return t;
  }

  void split(int groups, int threads) {
    const int places = groups * static_cast<int>(geometry.places.size());
    const size_t row_bytes = size_t(geometry.patch.h) * geometry.patch.w * kernels->vector_bytes;
    int ranges = static_cast<int>(ceil_div(static_cast<int>(weights->rows() * row_bytes), int(kSumsBytes)));
    if (threads > 1) ranges = std::max(ranges, ceil_div(kTasksPerThread * threads, places));
    ranges = std::min(ranges, weights->chunks());
    for (int r = 0; r <= ranges; ++r) splits.push_back(weights->chunks() * r / ranges);
  }
};

void add_conv(Schedule& s, ConvStep step, const Window& window) {
  const Kernels& k = s.kernels();
  step.kernels = &k;
  step.geometry = make_geometry(step.in, step.from, step.to, window, k.vector_bytes, k.patch_limit,
                                step.weights->block_channels());
  const int groups = step.to.groups(step.out.n);
  s.add_cost(layout_cost(step.to, step.out.n, k.patch_limit) * double(step.weights->nonzeros() + step.weights->rows()));
  step.split(groups, s.threads());
  auto shared = std::make_shared<ConvStep>(std::move(step));
  Step out;
  out.tasks = groups * static_cast<int>(shared->geometry.places.size() * (shared->splits.size() - 1));
  const auto scratch_bytes = shared->narrow ? k.narrow_conv_scratch_bytes : k.conv_scratch_bytes;
  for (size_t r = 0; r + 1 < shared->splits.size(); ++r)
    out.scratch_bytes = std::max(out.scratch_bytes, scratch_bytes(shared->task(nullptr, int(r), nullptr)));
  out.reads = {shared->source};
  if (shared->residual >= 0) out.reads.push_back(shared->residual);
  out.writes = {shared->target};
  out.run = [shared](char* const* buffers, int task, char* scratch) {
    (shared->narrow ? shared->kernels->narrow_conv : shared->kernels->conv)(shared->task(buffers, task, scratch));
  };
  s.add(std::move(out));
}

void add_pool(Schedule& s, const Op& op, const Window& window, bool is_max, bool count_padding) {
  const Kernels* k = &s.kernels();
  const Image in = s.image(op.inputs[0]), out = s.image(op.output);
  const auto [from, to] = window_layouts(s, op.inputs[0], out, window, s.lanes());
  const int source = s.need(op.inputs[0], from), target = s.give(op.output, to);
  auto geometry = std::make_shared<Geometry>(
      make_geometry(in, from, to, window, k->vector_bytes, k->patch_limit, 1));
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
           t.offsets = geometry->offsets.data();
           t.taps = window.taps();
           t.channels = in.c;
           t.is_max = is_max;
           t.reciprocal = is_max ? nullptr : reciprocal->data() + at;
           t.scratch = scratch;
           k->pool(t);
         }});
}

}  // namespace

namespace {

Shape conv_shape(const Shape& i, const Window& w, int channels) {
  return {channels, output_size(i.h, w.kernel_h, w.stride_h, w.pad_h, w.dilation_h),
          output_size(i.w, w.kernel_w, w.stride_w, w.pad_w, w.dilation_w)};
}

std::function<void(Schedule&, const Op&)> conv_plan(std::shared_ptr<SparseWeights> weights, FinishData finish,
                                                    const Window& w, int in, int residual, bool narrow) {
  auto constants = std::make_shared<FinishData>(std::move(finish));
  return [=](Schedule& s, const Op& op) {
    const Image input = s.image(in), output = s.image(op.output);
    const auto [from, to] = window_layouts(s, in, output, w, narrow ? s.narrow_lanes() : s.lanes());
    const int source = s.need(in, from), other = residual < 0 ? -1 : s.need(residual, to);
    const int target = s.give(op.output, to);
    const Quant other_quant = residual < 0 ? Quant{} : s.quant(residual);
    add_conv(s,
             {nullptr, {}, weights, constants, input, output, from, to, source, target, other, {}, narrow, other_quant,
              s.quant(op.output)},
             w);
  };
}

std::vector<int> with_residual(int in, int residual) {
  return residual < 0 ? std::vector<int>{in} : std::vector<int>{in, residual};
}

constexpr int kNarrowHigh = 255;

}  // namespace

int Engine::conv(int in, const Window& w, int groups, const float* weight, int rows, ValueKind kind,
                 std::vector<float> table, FinishData finish, int residual) {
  const Shape i = shapes_.at(in);
  const Shape o = conv_shape(i, w, rows);
  auto weights = pack({weight, rows, i.c, groups, w.taps()}, w, o, kind, std::move(table));
  return add(with_residual(in, residual), o,
             conv_plan(std::move(weights), std::move(finish), w, in, residual, false));
}

int Engine::narrow_conv(int in, const Window& w, int groups, const float* weight, int rows, FinishData finish,
                        int residual, Quant output) {
  for (const Quant& q : {quants_.at(in), residual < 0 ? output : quants_.at(residual), output})
    if (q.scale <= 0 || q.high > kNarrowHigh || (q.low < 0 && std::max(-q.low, q.high) > kNarrowHigh / 2))
      throw std::invalid_argument("narrow lanes hold 0..255 or -127..127 with a positive scale");
  const Shape i = shapes_.at(in);
  const Shape o = conv_shape(i, w, rows);
  auto weights = pack({weight, rows, i.c, groups, w.taps()}, w, o, ValueKind::Sign, {}, kNarrowHigh);
  const int value = add(with_residual(in, residual), o,
                        conv_plan(std::move(weights), std::move(finish), w, in, residual, true));
  quantize(value, output);
  return value;
}

namespace {

constexpr Shape kManyRows{1, 1, 256};     // as an image: rows of a matrix product are its places
constexpr int kGemvLeast = 1 << 14;       // weights: below, packing them twice gains nothing
constexpr double kGemvPerWeight = 0.048;  // measured, in vector operations

// One vector at a time: its tables, then the rows in parts.
void add_gemv(Schedule& s, std::shared_ptr<GemvWeights> weights, std::shared_ptr<FinishData> finish, int source,
              int target, int vector) {
  const Kernels* k = &s.kernels();
  const int tables = s.temporary(weights->table_bytes() + sizeof(float));
  const size_t scale_at = weights->table_bytes();
  s.add({1, 0, {source}, {tables}, [=](char* const* b, int, char*) {
           const float* x = reinterpret_cast<const float*>(b[source]) + size_t(vector) * weights->features();
           const float scale = weights->make_tables(*k, x, b[tables]);
           std::memcpy(b[tables] + scale_at, &scale, sizeof scale);
         }});
  const int blocks = weights->blocks(), tasks = std::min(blocks, 4 * s.threads());
  s.add({tasks, 0, {tables}, {target}, [=](char* const* b, int task, char*) {
           GemvTask t{};
           t.tables = reinterpret_cast<const float*>(b[tables]);
           std::memcpy(&t.scale, b[tables] + scale_at, sizeof t.scale);
           t.block_begin = blocks * task / tasks;
           t.block_end = blocks * (task + 1) / tasks;
           t.out = reinterpret_cast<float*>(b[target]) + size_t(vector) * weights->rows();
           t.finish = finish->view();
           weights->multiply(*k, t);
         }});
}

}  // namespace

// The weights of a linear layer: for single vectors, for many, or both, each packed when it is first needed.
struct LinearWeights {
  std::shared_ptr<GemvWeights> vectors;
  std::shared_ptr<SparseWeights> lists;
  double nonzeros;
};

int Engine::linear(int in, int features, const float* weight, int rows, ValueKind kind, std::vector<float> table,
                   FinishData finish, bool narrow) {
  const Shape i = shapes_.at(in);
  const int per_image = i.numel() / features;
  const DenseWeight dense{weight, rows, features, 1, 1};
  const size_t weights = size_t(rows) * features;
  auto packed = std::make_shared<LinearWeights>();
  packed->nonzeros = double(weights - std::count(weight, weight + weights, 0.0f));
  const GemvKind few = kind == ValueKind::Table ? GemvKind::Nibbles : narrow ? GemvKind::NarrowTrits : GemvKind::Trits;
  if (kind != ValueKind::Float && weights >= kGemvLeast && GemvWeights::possible(kernels_, few, table)) {
    packed->vectors = std::make_shared<GemvWeights>(dense, few, table);
    weight_sizes_.push_back([packed] { return packed->vectors->resident_bytes(); });
  } else {
    packed->lists = pack(dense, Window{}, kManyRows, kind, table);
  }
  auto constants = std::make_shared<FinishData>(std::move(finish));
  return add({in}, Shape{1, per_image, rows}, [=](Schedule& s, const Op& op) {
    const int count = s.n() * per_image;
    // A matrix product is a 1×1 convolution over one image whose width is the rows of the input.
    const Image input{1, features, 1, count}, output{1, rows, 1, count};
    const Layout lanes = choose_layout(output, s.lanes(), s.kernels().patch_limit);
    const double together = layout_cost(lanes, 1, s.kernels().patch_limit) * packed->nonzeros;
    const double apart = double(count) * rows * features * kGemvPerWeight;
    if (packed->vectors && apart < together) {
      const int source = s.need(in, {}), target = s.give(op.output, {});
      for (int v = 0; v < count; ++v) add_gemv(s, packed->vectors, constants, source, target, v);
      s.add_cost(apart);
      return;
    }
    if (!packed->lists) packed->lists = s.pack({packed->vectors->unpack().data(), rows, features, 1, 1}, kManyRows, kind, table);
    auto view = [&](const Image& image) {
      LaneView v = s.lane_view(image, lanes);
      v.stride_n = v.stride_y = 0;
      v.stride_c = 1;
      v.stride_x = image.c;
      return v;
    };
    const int source = s.temporary(s.bytes(input, lanes)), target = s.temporary(s.bytes(output, lanes));
    s.add_exchange(view(input), s.need(in, {}), source, true);
    add_conv(s,
             {nullptr, {}, packed->lists, constants, input, output, lanes, lanes, source, target, -1, {}, false, {}, {}},
             Window{});
    s.add_exchange(view(output), target, s.give(op.output, {}), false);
  });
}

int Engine::pool(int in, const Window& w, bool is_max, bool count_padding) {
  const Shape i = shapes_.at(in);
  return add({in}, conv_shape(i, w, i.c),
             [=](Schedule& s, const Op& op) { add_pool(s, op, w, is_max, count_padding); });
}

int Engine::global_mean(int in, FinishData finish) {
  const Shape i = shapes_.at(in);
  auto constants = std::make_shared<FinishData>(std::move(finish));
  return add({in}, Shape{i.c, 1, 1}, [=](Schedule& s, const Op& op) {
    const Image image = s.image(in);
    const Layout* current = s.lanes_of(in, s.lanes());
    const Layout layout = current ? *current : choose_layout(image, s.lanes(), s.kernels().patch_limit);
    const int source = s.need(in, layout), target = s.give(op.output, {});
    const LaneView view = s.lane_view(image, layout);
    const Kernels* k = &s.kernels();
    s.add({layout.groups(image.n), 0, {source}, {target}, [=](char* const* b, int group, char*) {
             k->global_mean(view, b[source], reinterpret_cast<float*>(b[target]), group, constants->view());
           }});
  });
}

int Engine::elementwise(int a, int b, bool multiply, FinishData finish) {
  const Shape shape = shapes_.at(a);
  auto constants = std::make_shared<FinishData>(std::move(finish));
  std::vector<int> inputs{a};
  if (b >= 0) inputs.push_back(b);
  return add(inputs, shape, [=](Schedule& s, const Op& op) {
    const Layout* current = s.lanes_of(a, s.lanes());
    if (!current && b >= 0) current = s.lanes_of(b, s.lanes());
    const Layout layout = current ? *current : Layout{};
    const int first = s.need(a, layout), second = b < 0 ? -1 : s.need(b, layout);
    const int target = s.give(op.output, layout);
    const Image image = s.image(a);
    const int planes = (layout.flat() ? image.n : layout.groups(image.n)) * image.c;
    const size_t count = s.bytes(image, layout) / sizeof(float) / std::max(planes, 1);
    const int tasks = std::min(planes, kTasksPerThread * s.threads());
    const Kernels* k = &s.kernels();
    const bool by_rows = layout.flat() && image.h * image.w == 1;  // then neighbours are neighbouring channels
    Step step{tasks, 0, {first}, {target}, [=](char* const* buffers, int task, char*) {
                const Finish f = constants->view();
                auto at = [&](int buffer, int plane) {
                  return buffer < 0 ? nullptr : reinterpret_cast<float*>(buffers[buffer]) + plane * count;
                };
                const int begin = int(size_t(planes) * task / tasks), end = int(size_t(planes) * (task + 1) / tasks);
                if (by_rows) {
                  for (int row = task; row < image.n; row += tasks)
                    k->elementwise_rows(at(target, row * image.c), at(first, row * image.c), at(second, row * image.c),
                                        multiply, image.c, f);
                  return;
                }
                for (int p = begin; p < end; ++p)
                  k->elementwise(at(target, p), at(first, p), at(second, p), multiply, count, f, p % image.c);
              }};
    if (second >= 0) step.reads.push_back(second);
    s.add(std::move(step));
  });
}

int Engine::concatenate(const std::vector<int>& inputs) {
  Shape shape = shapes_.at(inputs.at(0));
  shape.c = 0;
  for (int value : inputs) shape.c += shapes_.at(value).c;
  return add(inputs, shape, [=](Schedule& s, const Op& op) {
    const Layout* current = nullptr;
    for (int value : inputs)
      if (!current) current = s.lanes_of(value, s.lanes());
    const Layout layout = current ? *current : Layout{};
    const Image out = s.image(op.output);
    const int groups = layout.flat() ? out.n : layout.groups(out.n);
    const int target = s.give(op.output, layout);
    const size_t whole = s.bytes(out, layout) / groups;
    size_t at = 0;
    for (int value : inputs) {
      const int source = s.need(value, layout);
      const size_t part = s.bytes(s.image(value), layout) / groups, offset = at;
      s.add({groups, 0, {source}, {target}, [=](char* const* b, int group, char*) {
               std::memcpy(b[target] + group * whole + offset, b[source] + group * part, part);
             }});
      at += part;
    }
  });
}

int Engine::view(int in, Shape shape) {
  return add({in}, shape, [=](Schedule& s, const Op& op) { s.alias(op.output, in); });
}

int Engine::softmax(int in, int count) {
  return add({in}, shapes_.at(in), [=](Schedule& s, const Op& op) {
    const int source = s.need(in, {}), target = s.give(op.output, {});
    const int rows = s.n() * (s.image(in).c * s.image(in).h * s.image(in).w / count);
    const Kernels* k = &s.kernels();
    s.add({rows, 0, {source}, {target}, [=](char* const* b, int row, char*) {
             k->softmax(reinterpret_cast<float*>(b[target]) + size_t(row) * count,
                        reinterpret_cast<float*>(b[source]) + size_t(row) * count, count);
           }});
  });
}

int Engine::layer_norm(int in, int count, std::vector<float> weight, std::vector<float> bias, float eps) {
  struct Affine {
    std::vector<float> weight, bias;
  };
  auto affine = std::make_shared<Affine>(Affine{std::move(weight), std::move(bias)});
  return add({in}, shapes_.at(in), [=](Schedule& s, const Op& op) {
    const int source = s.need(in, {}), target = s.give(op.output, {});
    const int rows = s.n() * (s.image(in).c * s.image(in).h * s.image(in).w / count);
    const Kernels* k = &s.kernels();
    s.add({rows, 0, {source}, {target}, [=](char* const* b, int row, char*) {
             k->layer_norm(reinterpret_cast<float*>(b[target]) + size_t(row) * count,
                           reinterpret_cast<float*>(b[source]) + size_t(row) * count, count,
                           affine->weight.empty() ? nullptr : affine->weight.data(),
                           affine->bias.empty() ? nullptr : affine->bias.data(), eps);
           }});
  });
}

}  // namespace tersify
