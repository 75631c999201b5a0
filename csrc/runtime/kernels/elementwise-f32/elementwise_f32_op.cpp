// Elementwise operations, as steps.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>

#include "engine/item_step.hpp"
#include "kernels/conv-lists-f32/conv_lists_step.hpp"

namespace tersify {
namespace {

void add_elementwise(Schedule& s, const Op& op, bool multiply, std::shared_ptr<Epilogue> epilogue) {
  const int a = op.inputs[0], b = op.inputs.size() > 1 ? op.inputs[1] : -1;
  const Layout pixels = s.pixels(a);
  const bool by_pixels = pixels.pixels && (s.lies(a, pixels) || (b >= 0 && s.lies(b, pixels)));
  const Layout* current = by_pixels ? &pixels : s.lanes_of(a, s.lanes());
  if (!current && b >= 0) current = s.lanes_of(b, s.lanes());
  const Layout layout = current ? *current : Layout{};
  const int first = s.buffer_of(a, layout), second = b < 0 ? -1 : s.buffer_of(b, layout);
  const int target = s.new_buffer_for(op.output, layout);
  Image image = s.image(a);
  if (by_pixels) image = {image.n * image.h * image.w, image.c, 1, 1};  // pixels are rows of channels
  const int planes = (layout.flat() || by_pixels ? image.n : layout.groups(image.n)) * image.c;
  const size_t count = s.bytes(image, layout) / sizeof(float) / planes;
  const int tasks = std::min(planes, kTasksPerThread * s.threads());
  const Kernels* k = &s.kernels();
  const bool by_rows = (layout.flat() || by_pixels) && image.h * image.w == 1;  // then neighbours are neighbouring channels
  Step step("elementwise");
  step.tasks = tasks;
  step.reads = {first};
  if (second >= 0) step.reads.push_back(second);
  step.writes = {target};
  step.run = [=](char* const* buffers, int task, char*) {
    const EpilogueView f = epilogue->view();
    auto at = [&](int buffer, int plane) {
      return buffer < 0 ? nullptr : reinterpret_cast<float*>(buffers[buffer]) + plane * count;
    };
    if (by_rows) {
      for (int row = task; row < image.n; row += tasks)
        k->elementwise_rows(at(target, row * image.c), at(first, row * image.c), at(second, row * image.c), multiply,
                            image.c, f);
      return;
    }
    const int begin = int(size_t(planes) * task / tasks), end = int(size_t(planes) * (task + 1) / tasks);
    for (int p = begin; p < end; ++p)
      k->elementwise(at(target, p), at(first, p), at(second, p), multiply, count, f, p % image.c);
  };
  s.add(std::move(step));
}

}  // namespace

int Engine::prelu(int in, std::vector<float> slopes) {
  const Shape shape = at(in).shape;
  if (slopes.size() != size_t(shape.c))
    throw std::invalid_argument("a PReLU of " + std::to_string(shape.c) + " channels needs as many slopes, got " +
                                std::to_string(slopes.size()));
  const auto shared = std::make_shared<const std::vector<float>>(std::move(slopes));
  const int value = add({in}, shape, [=](Schedule& s, const Op& op) {
    auto epilogue = std::make_shared<Epilogue>();
    epilogue->activation = Activation::Leaky;
    epilogue->slopes = *shared;
    add_elementwise(s, op, false, epilogue);
  });
  ops_.back().slopes = shared;
  return value;
}

int Engine::with_constant(int in, std::vector<float> constant, bool multiply) {
  const Shape shape = at(in).shape;
  if (constant.size() != size_t(shape.numel()))
    throw std::invalid_argument("a constant has the " + std::to_string(shape.numel()) + " numbers of an item, got " +
                                std::to_string(constant.size()));
  auto shared = std::make_shared<std::vector<float>>(std::move(constant));
  return add({in}, shape, [=](Schedule& s, const Op& op) {
    add_item_step(s, op, "constant", shape.numel(), [=](const Kernels& k, float* to, const float* from, size_t count) {
      const EpilogueView f{nullptr, nullptr, nullptr, nullptr, Activation::Clamp, -INFINITY, INFINITY};
      k.elementwise(to, from, shared->data(), multiply, count, f, 0);
    });
  });
}

int Engine::curve(int in, Curve curve) {
  const Shape shape = at(in).shape;
  return add({in}, shape, [=, this](Schedule& s, const Op& op) {
    add_item_step(s, op, "curve", shape.numel(),
                  [=, this](const Kernels& k, float* to, const float* from, size_t count) {
                    k.curve(to, from, count, curve);
                    if (!k.all_finite(to, count)) finite_ = false;
                  });
  });
}

int Engine::elementwise(int a, int b, bool multiply, Epilogue epilogue) {
  const Value first = at(a);
  std::vector<int> inputs{a};
  if (b != -1) {
    const Value& second = at(b);
    if (second.items != first.items || second.shape != first.shape)
      throw std::invalid_argument("both operands have one size, got " + std::to_string(first.items) + " × " +
                                  to_string(first.shape) + " and " + std::to_string(second.items) + " × " +
                                  to_string(second.shape));
    inputs.push_back(b);
  }
  auto constants = std::make_shared<Epilogue>(epilogue.checked(first.shape.c));
  return add(inputs, first.shape, [=](Schedule& s, const Op& op) { add_elementwise(s, op, multiply, constants); });
}

}  // namespace tersify
