// Random cases of every kernel with what each should make, and a case run on a workspace of its own.
#pragma once

#include <cmath>
#include <cstdlib>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "checks/reference.hpp"
#include "engine/engine.hpp"

namespace tersify::checks {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Build = std::function<void(Engine&, const std::shared_ptr<Workspace>&)>;  // adds input, layer and outputs

struct Case {
  Build build;
  int n = 1;
  Numbers input;
  size_t outputs = 0;                  // numbers
  double tolerance = 1e-5;             // of the largest output
  bool same_bits = false;              // in every instruction set
  std::function<Numbers()> reference;  // what it should make
};

class Random {
 public:
  explicit Random(unsigned seed) : engine_(seed) {}
  int between(int low, int high) { return std::uniform_int_distribution<int>(low, high)(engine_); }
  float unit() { return std::uniform_real_distribution<float>(-1, 1)(engine_); }
  Numbers floats(size_t count) {
    Numbers all(count);
    for (float& v : all) v = unit();
    return all;
  }
  Numbers weights(size_t count, ValueKind kind, const Numbers& table) {
    const int zeros = between(0, 10);
    Numbers all(count);
    for (float& v : all) {
      const float value = unit();
      if (between(0, 9) < zeros) continue;
      v = kind == ValueKind::Float  ? value
          : kind == ValueKind::Sign ? (value < 0 ? -1.0f : 1.0f)
                                    : table[between(0, int(table.size()) - 1)];
    }
    return all;
  }

 private:
  std::mt19937 engine_;
};

using Space = std::shared_ptr<Workspace>;

constexpr float kScale = 0.5f;

inline Epilogue relu_with(const Numbers& shift, float scale = kScale) {
  Epilogue made;
  made.scale = Numbers(shift.size(), scale);
  made.shift = shift;
  made.low = 0.0f;
  made.high = kInfinity;
  return made;
}

inline std::shared_ptr<ConvWeights> conv_weights(const Space& space, const Numbers& weight, int rows, int channels,
                                          const Window& w, ValueKind kind, const Numbers& table, Lane lane,
                                          const Shape& output) {
  return std::make_shared<ConvWeights>(space, DenseWeight{weight.data(), rows, channels, 1, w.taps()}, w, kind, table,
                                       lane, output);
}

inline std::function<Numbers()> linear_reference(const Numbers& x, const Numbers& weight, const Numbers& shift, int n,
                                                 int features) {
  return [=] {
    const int rows = int(shift.size());
    const std::vector<double> sums = products(x, weight, n, rows, features);
    Numbers made;
    for (size_t i = 0; i < sums.size(); ++i) made.push_back(finished(sums[i], kScale, shift[i % rows]));
    return made;
  };
}

inline Case linear_case(Random& r, ValueKind kind) {
  const int rows = r.between(1, 300), features = r.between(1, 300);
  const Numbers table = kind == ValueKind::Table ? Numbers{-1.5f, -0.25f, 0.75f} : Numbers{};
  Case c;
  c.n = r.between(1, 20);
  c.input = r.floats(size_t(c.n) * features);
  c.outputs = size_t(c.n) * rows;
  const Numbers weight = r.weights(size_t(rows) * features, kind, table), shift = r.floats(rows);
  c.build = [=, n = c.n](Engine& e, const Space& space) {
    auto packed = std::make_shared<LinearWeights>(space, weight.data(), rows, features, kind, table, false);
    e.outputs({e.linear(e.input(n, {features, 1, 1}), packed, relu_with(shift))});
  };
  c.reference = linear_reference(c.input, weight, shift, c.n, features);
  return c;
}

// Layers of many rows are looked up where the CPU can. Inputs are whole and their largest is 127: each is its own step.
// `streamed`: told as numbers of levels, in the form of fewest bytes or in another.
inline Case codes_case(Random& r, ValueKind kind, int least_rows = 1, bool streamed = false) {
  const int rows = least_rows + r.between(0, 299), features = r.between(1, 600);
  Case c;
  c.n = r.between(1, 40);
  for (int i = 0; i < c.n * features; ++i) c.input.push_back(float(i % features ? r.between(-127, 127) : 127));
  c.outputs = size_t(c.n) * rows;
  const Numbers weight = r.weights(size_t(rows) * features, kind, {-127, -60, -3, 1, 8, 90}), shift = r.floats(rows);
  c.build = [=, n = c.n](Engine& e, const Space& space) {
    std::vector<uint8_t> levels;
    for (float v : weight) levels.push_back(uint8_t(v + 1));  // of signs
    auto packed = streamed
                      ? std::make_shared<LinearInt8Weights>(space, levels.data(), rows, features, std::vector{-1, 0, 1},
                                                            n % 2 == 0)
                      : std::make_shared<LinearInt8Weights>(space, weight.data(), rows, features, false);
    e.outputs({e.linear_i8(e.input(n, {features, 1, 1}), packed, relu_with(shift))});
  };
  c.reference = linear_reference(c.input, weight, shift, c.n, features);
  c.tolerance = 0;
  c.same_bits = true;
  return c;
}

// Signs, or three levels around zero or from zero on.
inline Quant bit_levels(Random& r) {
  const Quant all[] = {{0, -1, 1}, {0.5f, -1, 1}, {0.5f, 0, 2}};
  return all[r.between(0, 2)];
}

inline Case bits_case(Random& r) {
  const int rows = r.between(1, 300), features = r.between(1, 2400);
  const Quant levels = bit_levels(r);
  Case c;
  c.n = r.between(1, 40);
  c.input = r.floats(size_t(c.n) * features);
  c.outputs = size_t(c.n) * rows;
  c.tolerance = 0;  // whole numbers have one sum
  const Numbers weight = r.weights(size_t(rows) * features, ValueKind::Sign, {});
  c.reference = [=, n = c.n, x = c.input] {
    const std::vector<double> sums = products(levelled(x, levels), weight, n, rows, features);
    return Numbers(sums.begin(), sums.end());
  };
  c.build = [=, n = c.n](Engine& e, const Space& space) {
    auto packed = std::make_shared<BitWeights>(space, weight.data(), rows, features);
    e.outputs({e.linear_bits(e.input(n, {features, 1, 1}), packed, Epilogue{}, levels)});
  };
  return c;
}

inline Case conv_bits_case(Random& r) {
  Window w;
  w.kernel_h = r.between(1, 4), w.kernel_w = r.between(1, 4);
  w.stride_h = r.between(1, 2), w.stride_w = r.between(1, 2);
  w.pad_h = r.between(0, w.kernel_h - 1), w.pad_w = r.between(0, w.kernel_w - 1);
  const int channels = r.between(1, 70), rows = r.between(1, 140), h = r.between(4, 20), width = r.between(4, 20);
  const Quant levels = bit_levels(r);
  Case c;
  c.n = r.between(1, 5);
  c.input = r.floats(size_t(c.n) * channels * h * width);
  c.outputs = size_t(c.n) * conv_shape({channels, h, width}, w, rows).numel();
  c.tolerance = 0;
  const Numbers weight = r.weights(size_t(rows) * channels * w.taps(), ValueKind::Sign, {});
  c.reference = [=, n = c.n, x = c.input] {
    Numbers whole = levelled(x, levels);  // its epilogue is told what a level stands for
    for (float& v : whole) v /= levels.scale == 0 ? 1.0f : levels.scale;
    const std::vector<double> sums = convolved(whole, {n, channels, h, width}, weight, rows, w);
    return laid_out(Numbers(sums.begin(), sums.end()), n, rows, false);
  };
  c.build = [=, n = c.n](Engine& e, const Space& space) {
    const DenseWeight dense{weight.data(), rows, channels, 1, w.taps()};
    auto packed = std::make_shared<ConvBitWeights>(space, dense, w);
    e.outputs({e.conv_bits(e.input(n, {channels, h, width}), packed, Epilogue{}, -1, levels)});
  };
  return c;
}

enum class ConvKernel { Lists, Pairs, Dense, Fp16, Int8, Codes };

inline Case conv_case(Random& r, ValueKind kind, ConvKernel kernel) {
  Window w;
  w.kernel_h = r.between(1, 4), w.kernel_w = r.between(1, 4);
  w.stride_h = r.between(1, 2), w.stride_w = r.between(1, 2);
  w.pad_h = r.between(0, w.kernel_h - 1), w.pad_w = r.between(0, w.kernel_w - 1);
  const int channels = r.between(1, 40), rows = r.between(1, 140), h = r.between(4, 20), width = r.between(4, 20);
  const Shape output{rows, (h + 2 * w.pad_h - w.kernel_h) / w.stride_h + 1,
                     (width + 2 * w.pad_w - w.kernel_w) / w.stride_w + 1};
  const Numbers table = kind == ValueKind::Table ? Numbers{-1.5f, -0.25f, 0.75f} : Numbers{};
  Case c;
  c.n = r.between(1, 9);
  c.input = r.floats(size_t(c.n) * channels * h * width);
  const bool ends_in_means = kernel != ConvKernel::Codes && r.between(0, 2) == 0;
  c.outputs = size_t(c.n) * (ends_in_means ? rows : output.numel());
  const float step = 1.0f / 127, out_step = 0.25f;
  const bool fp16 = kernel == ConvKernel::Fp16, is_dense = kernel == ConvKernel::Dense;
  const bool in_steps = kernel == ConvKernel::Int8 || kernel == ConvKernel::Codes;
  if (in_steps)
    for (float& v : c.input) v = std::round(v * 127) * step;
  Numbers weight = r.weights(size_t(rows) * channels * w.taps(), kind, table);
  if (kernel == ConvKernel::Pairs)  // rows have much in common
    for (float& v : weight)
      if (v == 0 && r.between(0, 1)) v = r.between(0, 1) ? 1.0f : -1.0f;
  if (fp16) {  // runs of such numbers are exact: what may differ is how the result is rounded
    for (float& v : c.input) v = std::round(v * 3);
    if (kind == ValueKind::Float)
      for (float& v : weight) v = std::round(v * 8) / 8;
    c.tolerance = 1e-3;
  }
  c.same_bits = in_steps;  // whole numbers have one sum, and their epilogues round alike everywhere
  if (in_steps && !ends_in_means) c.tolerance = 0;
  const Numbers shift = r.floats(rows);
  c.reference = [=, n = c.n, x = c.input] {
    Numbers whole = x;  // in steps, of which the sums are exact
    for (float& v : whole) v = in_steps ? std::round(v / step) : v;
    const std::vector<double> sums = convolved(whole, {n, channels, h, width}, weight, rows, w);
    const float scale = in_steps ? kScale * step : kScale;
    Numbers made;
    const auto finish = is_dense ? scaled : finished;
    for (size_t i = 0; i < sums.size(); ++i) made.push_back(finish(sums[i], scale, shift[i % rows]));
    if (kernel == ConvKernel::Int8 && !ends_in_means)
      for (float& v : made) v = std::min(255.0f, std::nearbyint(v / out_step)) * out_step;
    made = laid_out(made, n, rows, ends_in_means);
    if (is_dense) bend(made, shift, n);
    return made;
  };
  c.build = [=, n = c.n](Engine& e, const Space& space) {
    const int in = e.input(n, {channels, h, width});
    Epilogue epilogue = relu_with(shift);
    const Epilogue plain, *mean = ends_in_means ? &plain : nullptr;
    const DenseWeight dense{weight.data(), rows, channels, 1, w.taps()};
    if (is_dense) {  // with a PReLU, which is part of it where it has no mean
      auto packed = std::make_shared<ConvDenseWeights>(space, dense, w, output);
      epilogue.low = -kInfinity;
      const int sums = e.conv_dense(in, packed, epilogue, -1, mean);
      e.outputs({e.prelu(sums, shift)});
      return;
    }
    if (!in_steps) {
      auto packed = conv_weights(space, weight, rows, channels, w, kind, table, fp16 ? Lane::F16 : Lane::F32, output);
      e.outputs({e.conv(in, packed, epilogue, -1, mean)});
      return;
    }
    for (float& scale : epilogue.scale) scale *= step;
    if (kernel == ConvKernel::Codes) {
      e.outputs({e.conv_codes(in, std::make_shared<ConvCodesWeights>(space, dense, w), epilogue, -1, {step, -127, 127})});
      return;
    }
    e.quantize(in, {step, -127, 127});
    auto packed = std::make_shared<ConvInt8Weights>(space, dense, w, output);
    e.outputs({e.conv_i8(in, packed, epilogue, -1, {out_step, 0, 255}, mean)});
  };
  return c;
}

inline Case pool_case(Random& r) {
  Window w;
  w.kernel_h = w.kernel_w = r.between(2, 3);
  w.stride_h = w.stride_w = r.between(1, 2);
  const int channels = r.between(1, 30), h = r.between(4, 20), width = r.between(4, 20);
  const Shape output{channels, (h - w.kernel_h) / w.stride_h + 1, (width - w.kernel_w) / w.stride_w + 1};
  const bool is_max = r.between(0, 1);
  Case c;
  c.n = r.between(1, 9);
  c.input = r.floats(size_t(c.n) * channels * h * width);
  c.outputs = size_t(c.n) * output.numel();
  c.reference = [=, n = c.n, x = c.input] { return pooled(x, {n, channels, h, width}, w, is_max); };
  c.build = [=, n = c.n](Engine& e, const Space&) {
    const int in = e.input(n, {channels, h, width});
    e.outputs({is_max ? e.max_pool(in, w, output.h, output.w) : e.avg_pool(in, w, output.h, output.w, true)});
  };
  return c;
}

// A case on a workspace of its own.
class Running {
 public:
  Running(const Case& c, Isa isa, int threads)
      : input_(c.input), output_(c.outputs), space_(std::make_shared<Workspace>(isa, threads)), engine_(space_) {
    c.build(engine_, space_);
  }
  void once() {
    if (!engine_.run({span(input_)}, {span(output_)})) std::abort();
  }
  const Numbers& output() const { return output_; }

 private:
  static Span span(Numbers& numbers) { return {reinterpret_cast<char*>(numbers.data()), int64_t(numbers.size())}; }
  Numbers input_, output_;
  Space space_;
  Engine engine_;
};

inline Numbers run(const Case& c, Isa isa, int threads) {
  Running running(c, isa, threads);
  running.once();
  return running.output();
}

}  // namespace tersify::checks
