// Softmax and layer norm, as steps.
#include <algorithm>
#include <cmath>
#include <memory>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

constexpr int kLeastColumns = 4;  // vectors of a task

struct Affine {
  std::vector<float> weight, bias;
};

// Vectors of `count` numbers, each by itself: `each` makes one from another.
template <class Each>
void add_vectors(Schedule& s, const char* kernel, int in, int output, int count, Each each) {
  const int source = s.buffer_of(in, {}), target = s.new_buffer_for(output, {});
  const Image image = s.image(in);
  Step step(kernel);
  step.tasks = int(int64_t(image.n) * image.c * image.h * image.w / count);
  step.reads = {source};
  step.writes = {target};
  step.run = [=](char* const* b, int vector, char*) {
    each(reinterpret_cast<float*>(b[target]) + size_t(vector) * count,
         reinterpret_cast<const float*>(b[source]) + size_t(vector) * count);
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

int Engine::softmax(int in, int count) {
  check_vectors(at(in).shape, count, "a softmax");
  return add({in}, values_[in].shape, [=](Schedule& s, const Op& op) {
    add_vectors(s, "softmax", in, op.output, count,
                [=, k = &s.kernels()](float* out, const float* x) { k->softmax(out, x, count); });
  });
}

int Engine::softmax_along(int in, int count, int apart) {
  const Shape shape = at(in).shape;
  if (count < 1 || apart < 1 || shape.numel() % (int64_t(count) * apart))
    throw std::invalid_argument("a softmax of " + std::to_string(count) + " numbers that lie " +
                                std::to_string(apart) + " apart does not fit " + to_string(shape));
  return add({in}, shape, [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    // Few long runs of columns are shared out, too.
    const int most = std::max(1, apart / (kLeastColumns * s.lanes())), parts = std::min(most, 2 * s.threads());
    Step step("softmax");
    step.tasks = int(s.items(in) * (shape.numel() / (int64_t(count) * apart))) * parts;
    step.reads = {source};
    step.writes = {target};
    step.run = [=, k = &s.kernels()](char* const* b, int task, char*) {
      const int begin = int(int64_t(apart) * (task % parts) / parts);
      const int end = int(int64_t(apart) * (task % parts + 1) / parts);
      const size_t at = size_t(task / parts) * count * apart + begin;
      k->softmax_columns(reinterpret_cast<float*>(b[target]) + at, reinterpret_cast<const float*>(b[source]) + at,
                         count, apart, end - begin);
    };
    s.add(std::move(step));
  });
}

int Engine::layer_norm(int in, int count, std::vector<float> weight, std::vector<float> bias, float eps, bool centred) {
  check_vectors(at(in).shape, count, "a layer norm");
  if ((!weight.empty() && weight.size() != size_t(count)) || (!bias.empty() && bias.size() != size_t(count)))
    throw std::invalid_argument("a layer norm of " + std::to_string(count) +
                                " numbers needs as many weights and biases, or none");
  auto affine = std::make_shared<Affine>(Affine{std::move(weight), std::move(bias)});
  return add({in}, values_[in].shape, [=](Schedule& s, const Op& op) {
    add_vectors(s, "layer norm", in, op.output, count, [=, k = &s.kernels()](float* out, const float* x) {
      k->layer_norm(out, x, count, affine->weight.empty() ? nullptr : affine->weight.data(),
                    affine->bias.empty() ? nullptr : affine->bias.data(), eps, centred);
    });
  });
}

int Engine::group_norm(int in, int groups, std::vector<float> weight, std::vector<float> bias, float eps) {
  const Shape shape = at(in).shape;
  const size_t channels = size_t(shape.c);
  if (groups < 1 || shape.c % groups || weight.size() != channels || bias.size() != channels)
    throw std::invalid_argument("a group norm of " + std::to_string(groups) +
                                " groups needs a multiple of channels, and " + "as many weights and biases; got " +
                                std::to_string(shape.c) + " channels");
  auto affine = std::make_shared<Affine>(Affine{std::move(weight), std::move(bias)});
  const int per_group = shape.c / groups, plane = shape.h * shape.w;
  return add({in}, shape, [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    Step step("group norm");
    step.tasks = s.items(in) * groups;
    step.reads = {source};
    step.writes = {target};
    step.run = [=, k = &s.kernels()](char* const* b, int task, char*) {
      const size_t first = size_t(task) * per_group * plane;
      const float* x = reinterpret_cast<const float*>(b[source]) + first;
      float* out = reinterpret_cast<float*>(b[target]) + first;
      float mean, factor;
      k->moments(x, per_group * plane, eps, true, &mean, &factor);
      for (int c = 0; c < per_group; ++c) {
        const int channel = task % groups * per_group + c;
        // The mean is taken off first: folded into one shift with the bias, a large one would cost digits.
        const float one = 1.0f, minus_mean = -mean, scale = factor * affine->weight[channel];
        const EpilogueView f{&one, &minus_mean, &scale, &affine->bias[channel], Activation::Clamp, -INFINITY, INFINITY};
        k->elementwise(out + size_t(c) * plane, x + size_t(c) * plane, nullptr, false, size_t(plane), f, 0);
      }
    };
    s.add(std::move(step));
  });
}

}  // namespace tersify
