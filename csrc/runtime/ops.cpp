// Operations without weights: how each becomes steps.
#include <algorithm>
#include <cstring>
#include <memory>

#include "conv_step.hpp"

namespace tersify {

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
  const int seen = add({in}, shape, [=](Schedule& s, const Op& op) { s.alias(op.output, in); });
  views_[seen] = in;
  return seen;
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
