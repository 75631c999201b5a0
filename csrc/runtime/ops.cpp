// Operations without weights: how each becomes steps.
#include <algorithm>
#include <cstring>
#include <memory>

#include "conv_step.hpp"

namespace tersify {
namespace {

struct Affine {
  std::vector<float> weight, bias;
};

// Vectors of `count` numbers, each by itself: `each` makes one from another.
template <class Each>
void add_vectors(Schedule& s, int in, int output, int count, Each each) {
  const int source = s.need(in, {}), target = s.give(output, {});
  const Image image = s.image(in);
  Step step;
  step.tasks = int(int64_t(image.n) * image.c * image.h * image.w / count);
  step.reads = {source};
  step.writes = {target};
  step.run = [=](char* const* b, int vector, char*) {
    each(reinterpret_cast<float*>(b[target]) + size_t(vector) * count,
         reinterpret_cast<const float*>(b[source]) + size_t(vector) * count);
  };
  s.add(std::move(step));
}

void add_elementwise(Schedule& s, const Op& op, bool multiply, std::shared_ptr<Epilogue> epilogue) {
  const int a = op.inputs[0], b = op.inputs.size() > 1 ? op.inputs[1] : -1;
  const Layout* current = s.lanes_of(a, s.lanes());
  if (!current && b >= 0) current = s.lanes_of(b, s.lanes());
  const Layout layout = current ? *current : Layout{};
  const int first = s.need(a, layout), second = b < 0 ? -1 : s.need(b, layout);
  const int target = s.give(op.output, layout);
  const Image image = s.image(a);
  const int planes = (layout.flat() ? image.n : layout.groups(image.n)) * image.c;
  const size_t count = s.bytes(image, layout) / sizeof(float) / planes;
  const int tasks = std::min(planes, kTasksPerThread * s.threads());
  const Kernels* k = &s.kernels();
  const bool by_rows = layout.flat() && image.h * image.w == 1;  // then neighbours are neighbouring channels
  Step step;
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

// Throws unless the value falls into whole vectors of `count` numbers.
void check_vectors(const Shape& shape, int count, const char* what) {
  const int last = shape.w > 1 ? shape.w : shape.h > 1 ? shape.h : shape.c;
  if (count < 1 || !(ends_in(shape, count) || last % count == 0))
    throw std::invalid_argument(std::string(what) + " of " + std::to_string(count) +
                                " numbers does not fit the last axis of " + to_string(shape));
}

}  // namespace

void add_concatenation(Schedule& s, const Op& op, const std::vector<int>& inputs) {
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
    Step step;
    step.tasks = groups;
    step.reads = {source};
    step.writes = {target};
    step.run = [=](char* const* b, int group, char*) {
      std::memcpy(b[target] + group * whole + offset, b[source] + group * part, part);
    };
    s.add(std::move(step));
    at += part;
  }
}

int Engine::global_mean(int in, Epilogue epilogue) {
  const Shape i = at(in).shape;
  auto constants = std::make_shared<Epilogue>(epilogue.checked(i.c).folded());
  return add({in}, Shape{i.c, 1, 1}, [=](Schedule& s, const Op& op) {
    const Image image = s.image(in);
    const Layout* current = s.lanes_of(in, s.lanes());
    const Layout layout = current ? *current : choose_layout(image, s.lanes(), s.kernels().patch_limit);
    const int source = s.need(in, layout), target = s.give(op.output, {});
    const LaneView view = s.lane_view(image, layout);
    const Kernels* k = &s.kernels();
    Step step;
    step.tasks = layout.groups(image.n);
    step.reads = {source};
    step.writes = {target};
    step.run = [=](char* const* b, int group, char*) {
      k->global_mean(view, b[source], reinterpret_cast<float*>(b[target]), group, constants->view());
    };
    s.add(std::move(step));
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

int Engine::softmax(int in, int count) {
  check_vectors(at(in).shape, count, "a softmax");
  return add({in}, values_[in].shape, [=](Schedule& s, const Op& op) {
    add_vectors(s, in, op.output, count,
                [=, k = &s.kernels()](float* out, const float* x) { k->softmax(out, x, count); });
  });
}

int Engine::layer_norm(int in, int count, std::vector<float> weight, std::vector<float> bias, float eps) {
  check_vectors(at(in).shape, count, "a layer norm");
  if ((!weight.empty() && weight.size() != size_t(count)) || (!bias.empty() && bias.size() != size_t(count)))
    throw std::invalid_argument("a layer norm of " + std::to_string(count) + " numbers needs as many weights and biases, or none");
  auto affine = std::make_shared<Affine>(Affine{std::move(weight), std::move(bias)});
  return add({in}, values_[in].shape, [=](Schedule& s, const Op& op) {
    add_vectors(s, in, op.output, count, [=, k = &s.kernels()](float* out, const float* x) {
      k->layer_norm(out, x, count, affine->weight.empty() ? nullptr : affine->weight.data(),
                    affine->bias.empty() ? nullptr : affine->bias.data(), eps);
    });
  });
}

}  // namespace tersify
