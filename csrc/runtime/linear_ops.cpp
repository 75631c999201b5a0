// Matrix products: vector by vector where there are few, as a 1×1 convolution where there are many.
#include <algorithm>
#include <memory>

#include "conv_step.hpp"

namespace tersify {
namespace {

constexpr Shape kManyRows{1, 1, 256};     // as an image: rows of a matrix product are its places
constexpr int kGemvLeast = 1 << 14;       // weights: below, packing them twice gains nothing
constexpr double kGemvPerWeight = 0.048;  // measured, in vector operations

// One vector at a time: its tables, then the rows in parts.
void add_gemv(Schedule& s, std::shared_ptr<GemvWeights> weights, std::shared_ptr<FinishData> finish, int source,
              int target, int vector) {
  const Kernels* k = &s.kernels();
  const int tables = s.temporary(weights->table_bytes());
  s.add({1, 0, {source}, {tables}, [=](char* const* b, int, char*) {
           weights->make_tables(*k, reinterpret_cast<const float*>(b[source]) + size_t(vector) * weights->features(),
                                b[tables]);
         }});
  const int blocks = weights->blocks(), tasks = std::min(blocks, 4 * s.threads());
  s.add({tasks, 0, {tables}, {target}, [=](char* const* b, int task, char*) {
           GemvTask t{};
           t.tables = reinterpret_cast<const float*>(b[tables]);
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
                   FinishData finish) {
  const Shape i = shapes_.at(in);
  const int per_image = i.numel() / features;
  const DenseWeight dense{weight, rows, features, 1, 1};
  const size_t weights = size_t(rows) * features;
  auto packed = std::make_shared<LinearWeights>();
  packed->nonzeros = double(weights - std::count(weight, weight + weights, 0.0f));
  const GemvKind few = kind == ValueKind::Table ? GemvKind::Nibbles : GemvKind::Trits;
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
             {nullptr, {}, packed->lists, constants, input, output, lanes, lanes, source, target, -1, {}, Lane::Float, {}, {}, {}},
             Window{});
    s.add_exchange(view(output), target, s.give(op.output, {}), false);
  });
}

}  // namespace tersify
