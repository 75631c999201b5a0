// Gated activations and factors of columns, as steps: every vector is a task.
#include <cmath>
#include <memory>
#include <stdexcept>

#include "engine/schedule.hpp"

namespace tersify {

int Engine::gate(int in, int width, Epilogue activation, bool square) {
  const Shape shape = at(in).shape;
  if (width < 1 || (shape.w != width && shape.w != 2 * width))
    throw std::invalid_argument("a gate of " + std::to_string(width) + " numbers reads vectors of as many or twice, got " +
                                to_string(shape));
  const bool gated = shape.w == 2 * width;
  const int vectors = shape.c * shape.h;
  auto constants = std::make_shared<Epilogue>(activation.checked(1));
  return add({in}, checked_shape(1, vectors, width), [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    Step step("gate");
    step.tasks = s.items(in) * vectors;
    step.reads = {source};
    step.writes = {target};
    step.run = [=, k = &s.kernels()](char* const* b, int vector, char*) {
      const float* from = reinterpret_cast<const float*>(b[source]) + size_t(vector) * shape.w;
      k->gate(reinterpret_cast<float*>(b[target]) + size_t(vector) * width, from, gated ? from + width : nullptr, width,
              constants->view(), square);
    };
    s.add(std::move(step));
  });
}

int Engine::scale_columns(int in, std::vector<float> factors) {
  const Shape shape = at(in).shape;
  if (factors.size() != size_t(shape.w))
    throw std::invalid_argument("vectors of " + std::to_string(shape.w) + " numbers need as many factors, got " +
                                std::to_string(factors.size()));
  auto shared = std::make_shared<std::vector<float>>(std::move(factors));
  const int vectors = shape.c * shape.h;
  return add({in}, shape, [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    Step step("columns");
    step.tasks = s.items(in) * vectors;
    step.reads = {source};
    step.writes = {target};
    step.run = [=, k = &s.kernels()](char* const* b, int vector, char*) {
      const size_t at = size_t(vector) * shape.w;
      const EpilogueView f{nullptr, nullptr, nullptr, nullptr, Activation::Clamp, -INFINITY, INFINITY};
      k->elementwise(reinterpret_cast<float*>(b[target]) + at, reinterpret_cast<const float*>(b[source]) + at,
                     shared->data(), true, size_t(shape.w), f, 0);
    };
    s.add(std::move(step));
  });
}

}  // namespace tersify
