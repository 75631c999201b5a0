// Matrix products: vector by vector where there are few, as a 1×1 convolution where there are many or every weight is
// met.
#include <algorithm>
#include <memory>

#include "kernels/conv-lists-f32/conv_lists_step.hpp"
#include "kernels/conv-pixels-f32/conv_pixels_step.hpp"

namespace tersify {
namespace {

constexpr double kGemvPerWeight = 0.048;  // measured, in vector operations

// One vector at a time: its tables, then the rows in parts.
void add_gemv(Schedule& s, std::shared_ptr<GemvWeights> weights, std::shared_ptr<Epilogue> epilogue, int source,
              int target, int vector) {
  const Kernels* k = &s.kernels();
  const int tables = s.temporary(weights->table_bytes());
  Step make_tables(weights->kernel_name());
  make_tables.tasks = 1;
  make_tables.reads = {source};
  make_tables.writes = {tables};
  make_tables.run = [=](char* const* b, int, char*) {
    weights->make_tables(*k, reinterpret_cast<const float*>(b[source]) + size_t(vector) * weights->features(),
                         b[tables]);
  };
  s.add(std::move(make_tables));
  const int blocks = weights->blocks(), tasks = std::min(blocks, 4 * s.threads());
  Step multiply(weights->kernel_name());
  multiply.tasks = tasks;
  multiply.reads = {tables};
  multiply.writes = {target};
  multiply.run = [=](char* const* b, int task, char*) {
    GemvTask t{};
    t.tables = reinterpret_cast<const float*>(b[tables]);
    t.block_begin = blocks * task / tasks;
    t.block_end = blocks * (task + 1) / tasks;
    t.out = reinterpret_cast<float*>(b[target]) + size_t(vector) * weights->rows();
    t.epilogue = epilogue->view();
    weights->multiply(*k, t);
  };
  s.add(std::move(multiply));
}

// The vectors are the positions of one image.
void add_dense(Schedule& s, std::shared_ptr<const PixelWeights> weights, std::shared_ptr<Epilogue> epilogue,
               const Image& input, const Image& output, int source, int target) {
  PixelConvStep step;
  step.weights = std::move(weights);
  step.epilogue = std::move(epilogue);
  step.runs = s.known_runs().of(input, output, Window{});
  step.in = input;
  step.out = output;
  step.source = source;
  step.target = target;
  add_pixel_conv(s, std::move(step));
}

}  // namespace

int Engine::linear(int in, std::shared_ptr<LinearWeights> weights, Epilogue epilogue) {
  use(weights, "linear layer");
  const int rows = weights->rows, features = weights->features, per_item = vectors_of(in, features);
  auto constants = std::make_shared<Epilogue>(epilogue.checked(rows).folded());
  return add({in}, checked_shape(1, per_item, rows), [=](Schedule& s, const Op& op) {
    const int count = s.items(in) * per_item;
    // A matrix product is a 1×1 convolution over one image whose width is the rows of the input.
    const Image input{1, features, 1, count}, output{1, rows, 1, count};
    const Layout lanes = choose_layout(output, s.lanes(), s.kernels().patch_limit);
    const double together = weights->dense() ? weights->pixels()->cost(count)
                                             : layout_cost(lanes, 1, s.kernels().patch_limit) * weights->products();
    const double apart = double(count) * rows * features * kGemvPerWeight;
    if (weights->vectors() && apart < together) {
      const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
      for (int v = 0; v < count; ++v) add_gemv(s, weights->vectors(), constants, source, target, v);
      s.add_cost(apart);
      return;
    }
    if (weights->dense()) {
      const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
      return add_dense(s, weights->pixels(), constants, input, output, source, target);
    }
    auto view = [&](const Image& image) {
      LaneView v = s.lane_view(image, lanes);
      v.stride_n = v.stride_y = 0;
      v.stride_c = 1;
      v.stride_x = image.c;
      return v;
    };
    ConvStep step;
    step.weights = weights->lists();
    step.epilogue = constants;
    step.in = input;
    step.out = output;
    step.from = step.to = lanes;
    step.source = s.temporary(s.bytes(input, lanes));
    step.target = s.temporary(s.bytes(output, lanes));
    const int source = step.source, target = step.target;
    s.add_exchange(view(input), s.buffer_of(in, {}), source, true);
    add_conv(s, std::move(step), Window{});
    s.add_exchange(view(output), target, s.new_buffer_for(op.output, {}), false);
  });
}

// How many vectors of `features` numbers an item holds.
int Engine::vectors_of(int in, int features) const {
  const Shape& shape = at(in).shape;
  if (!ends_in(shape, features))
    throw std::invalid_argument("a linear layer of " + std::to_string(features) + " features cannot read " +
                                to_string(shape) + "; its last axis must be the features");
  return shape.numel() / features;
}

}  // namespace tersify
