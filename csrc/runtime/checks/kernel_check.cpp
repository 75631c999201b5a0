// Every kernel of every instruction set of this CPU against the portable one, on random shapes, and how long some take
// (not with --quick).
// One static program, for machines that have nothing but the CPU: cmake --build BUILD --target kernel_check
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <random>
#include <vector>

#include "engine/engine.hpp"

namespace {

using namespace tersify;

constexpr int kCases = 40;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Numbers = std::vector<float>;
using Build = std::function<void(Engine&, const std::shared_ptr<Workspace>&)>;  // adds input, layer and outputs

struct Case {
  Build build;
  int n = 1;
  Numbers input;
  size_t outputs = 0;       // numbers
  double tolerance = 1e-5;  // of the largest output
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

Epilogue relu_with(const Numbers& shift, float scale = 0.5f) {
  Epilogue made;
  made.scale = Numbers(shift.size(), scale);
  made.shift = shift;
  made.low = 0.0f;
  made.high = kInfinity;
  return made;
}

std::shared_ptr<ConvWeights> conv_weights(const Space& space, const Numbers& weight, int rows, int channels,
                                          const Window& w, ValueKind kind, const Numbers& table, Lane lane,
                                          const Shape& output) {
  return std::make_shared<ConvWeights>(space, DenseWeight{weight.data(), rows, channels, 1, w.taps()}, w, kind, table,
                                       lane, output);
}

Case linear_case(Random& r, ValueKind kind) {
  const int rows = r.between(1, 300), features = r.between(1, 300);
  const Numbers table = kind == ValueKind::Table ? Numbers{-1.5f, -0.25f, 0.75f} : Numbers{};
  Case c;
  c.n = r.between(1, 20);
  c.input = r.floats(size_t(c.n) * features);
  c.outputs = size_t(c.n) * rows;
  c.build = [=, weight = r.weights(size_t(rows) * features, kind, table), shift = r.floats(rows), n = c.n](
                Engine& e, const Space& space) {
    auto packed = std::make_shared<LinearWeights>(space, weight.data(), rows, features, kind, table, false);
    e.outputs({e.linear(e.input(n, {features, 1, 1}), packed, relu_with(shift))});
  };
  return c;
}

// Layers of many rows are looked up where the CPU can.
Case codes_case(Random& r, ValueKind kind, int least_rows = 1) {
  const int rows = least_rows + r.between(0, 299), features = r.between(1, 600);
  Case c;
  c.n = r.between(1, 40);
  for (int i = 0; i < c.n * features; ++i) c.input.push_back(float(i % features ? r.between(-127, 127) : 127));
  c.outputs = size_t(c.n) * rows;
  c.build = [=, weight = r.weights(size_t(rows) * features, kind, {-127, -60, -3, 1, 8, 90}), shift = r.floats(rows),
             n = c.n](Engine& e, const Space& space) {
    auto packed = std::make_shared<LinearInt8Weights>(space, weight.data(), rows, features);
    e.outputs({e.linear_i8(e.input(n, {features, 1, 1}), packed, relu_with(shift))});
  };
  return c;
}

enum class ConvKernel { Lists, Fp16, Int8, Codes };

Case conv_case(Random& r, ValueKind kind, ConvKernel kernel) {
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
  const bool fp16 = kernel == ConvKernel::Fp16, in_steps = kernel != ConvKernel::Lists && !fp16;
  if (in_steps)
    for (float& v : c.input) v = std::round(v * 127) * step;
  Numbers weight = r.weights(size_t(rows) * channels * w.taps(), kind, table);
  if (fp16) {  // runs of such numbers are exact: what may differ is how the result is rounded
    for (float& v : c.input) v = std::round(v * 3);
    if (kind == ValueKind::Float)
      for (float& v : weight) v = std::round(v * 8) / 8;
    c.tolerance = 1e-3;
  }
  if (kernel == ConvKernel::Int8 && !ends_in_means) c.tolerance = out_step;  // a sum between two steps
  c.build = [=, shift = r.floats(rows), n = c.n](Engine& e, const Space& space) {
    const int in = e.input(n, {channels, h, width});
    Epilogue epilogue = relu_with(shift);
    const Epilogue plain, *mean = ends_in_means ? &plain : nullptr;
    if (!in_steps) {
      auto packed = conv_weights(space, weight, rows, channels, w, kind, table, fp16 ? Lane::F16 : Lane::F32, output);
      e.outputs({e.conv(in, packed, epilogue, -1, mean)});
      return;
    }
    for (float& scale : epilogue.scale) scale *= step;
    const DenseWeight dense{weight.data(), rows, channels, 1, w.taps()};
    if (kernel == ConvKernel::Codes) {
      e.outputs(
          {e.conv_codes(in, std::make_shared<ConvCodesWeights>(space, dense, w), epilogue, -1, {step, -127, 127})});
      return;
    }
    e.quantize(in, {step, -127, 127});
    auto packed = std::make_shared<ConvInt8Weights>(space, dense, w, output);
    e.outputs({e.conv_i8(in, packed, epilogue, -1, {out_step, 0, 255}, mean)});
  };
  return c;
}

Case pool_case(Random& r) {
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

Numbers run(const Case& c, Isa isa, int threads) {
  Running running(c, isa, threads);
  running.once();
  return running.output();
}

bool agree(const Case& c, Isa isa, int threads) {
  const Numbers wanted = run(c, Isa::Portable, 1), given = run(c, isa, threads);
  float top = 1;
  for (float v : wanted) top = std::max(top, std::abs(v));
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!(std::abs(wanted[i] - given[i]) <= 1.01 * c.tolerance * top)) return false;
  return true;
}

double best_microseconds(const Case& c, Isa isa, int threads) {
  Running running(c, isa, threads);
  double best = 1e30;
  for (int i = 0; i < 300; ++i) {
    const auto start = std::chrono::steady_clock::now();
    running.once();
    best = std::min(best, std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

constexpr Window kThreeByThree{3, 3, 1, 1, 1, 1, 1, 1};

// For convolutions that keep size and channels.
Case four_images(Random& r, int channels, int size) {
  Case c;
  c.n = 4;
  c.input = r.floats(size_t(c.n) * channels * size * size);
  c.outputs = c.input.size();
  return c;
}

void time_conv(Isa isa) {
  Random r(1);
  const int channels = 160, size = 16;
  Case c = four_images(r, channels, size);
  c.build = [&](Engine& e, const Space& space) {
    const Numbers weight = r.weights(size_t(channels) * channels * 9, ValueKind::Sign, {});
    auto packed =
        std::make_shared<ConvCodesWeights>(space, DenseWeight{weight.data(), channels, channels, 1, 9}, kThreeByThree);
    e.outputs({e.conv_codes(e.input(c.n, {channels, size, size}), packed, relu_with(Numbers(channels)), -1,
                            {1.0f / 127, -127, 127})});
  };
  std::printf("%s two-bit conv 3x3, 160 channels, 16x16, batch 4, 1 thread: %.1f us\n", isa_name(isa).c_str(),
              best_microseconds(c, isa, 1));
}

// Lists of a tenth of the weights, in floats of 32 and 16 bits.
void time_lists(Isa isa, bool fp16) {
  Random r(1);
  const int channels = 64, size = 32;
  Case c = four_images(r, channels, size);
  c.build = [&](Engine& e, const Space& space) {
    Numbers weight(size_t(channels) * channels * 9);
    for (float& v : weight)
      if (r.between(0, 9) == 0) v = r.between(0, 1) ? 1.0f : -1.0f;
    auto packed = conv_weights(space, weight, channels, channels, kThreeByThree, ValueKind::Sign, {},
                               fp16 ? Lane::F16 : Lane::F32, {channels, size, size});
    int value = e.input(c.n, {channels, size, size});
    for (int layer = 0; layer < 4; ++layer)
      value = e.conv(value, packed, relu_with(Numbers(channels), 0.1f), -1, nullptr);
    e.outputs({value});
  };
  std::printf("%s four sparse convs 3x3 of signs, %s, 90 %% zeros, 64 channels, 32x32, batch 4, 1 thread: %.1f us\n",
              isa_name(isa).c_str(), fp16 ? "fp16" : "fp32", best_microseconds(c, isa, 1));
}

void time_linear(Isa isa, int n, bool sparse) {
  Random r(1);
  const int size = 4096;
  Case c;
  c.n = n;
  c.input = r.floats(size_t(n) * size);
  c.outputs = size_t(n) * size;
  c.build = [&r, sparse, n, size](Engine& e, const Space& space) {
    Numbers weight(size_t(size) * size);
    for (float& v : weight) v = sparse && r.between(0, 9) ? 0.0f : float(r.between(0, 1) * 2 - 1);
    auto packed = std::make_shared<LinearInt8Weights>(space, weight.data(), size, size);
    e.outputs({e.linear_i8(e.input(n, {size, 1, 1}), packed, relu_with(Numbers(size)))});
  };
  for (int threads : {1, 2})
    std::printf("%s linear 4096x4096 in bytes, %d %% zeros, batch %d, %d threads: %.1f us\n", isa_name(isa).c_str(),
                sparse ? 90 : 0, n, threads, best_microseconds(c, isa, threads));
}

struct Checked {
  const char* name;
  std::function<Case(Random&)> make;
};

std::vector<Checked> all_kernels() {
  auto conv = [](ValueKind kind, ConvKernel kernel) { return [=](Random& r) { return conv_case(r, kind, kernel); }; };
  auto linear = [](ValueKind kind) { return [=](Random& r) { return linear_case(r, kind); }; };
  auto codes = [](ValueKind kind, int rows) { return [=](Random& r) { return codes_case(r, kind, rows); }; };
  return {
      {"conv of signs", conv(ValueKind::Sign, ConvKernel::Lists)},
      {"conv of tables", conv(ValueKind::Table, ConvKernel::Lists)},
      {"conv of floats", conv(ValueKind::Float, ConvKernel::Lists)},
      {"fp16 conv of signs", conv(ValueKind::Sign, ConvKernel::Fp16)},
      {"fp16 conv of tables", conv(ValueKind::Table, ConvKernel::Fp16)},
      {"fp16 conv of floats", conv(ValueKind::Float, ConvKernel::Fp16)},
      {"int8 conv", conv(ValueKind::Sign, ConvKernel::Int8)},
      {"two-bit conv", conv(ValueKind::Sign, ConvKernel::Codes)},
      {"linear of signs", linear(ValueKind::Sign)},
      {"linear of tables", linear(ValueKind::Table)},
      {"linear of floats", linear(ValueKind::Float)},
      {"two-bit linear", codes(ValueKind::Sign, 1)},
      {"two-bit linear of many rows", codes(ValueKind::Sign, 1000)},
      {"four-bit linear", codes(ValueKind::Table, 1)},
      {"pool", pool_case},
  };
}

bool all_agree(Isa isa) {
  bool good = true;
  for (const Checked& kernel : all_kernels()) {
    int passed = 0;
    for (int i = 0; i < kCases; ++i) {
      Random r(i);
      passed += agree(kernel.make(r), isa, 1 + i % 3);
    }
    std::printf("%s %s %d of %d cases passed\n", isa_name(isa).c_str(), kernel.name, passed, kCases);
    good = good && passed == kCases;
  }
  std::fflush(stdout);
  return good;
}

void print_times(Isa isa) {
  for (int n : {1, 16, 64})
    for (bool sparse : {false, true}) time_linear(isa, n, sparse);
  time_conv(isa);
  time_lists(isa, false);
  if (adds_fp16(isa)) time_lists(isa, true);
  std::fflush(stdout);
}

}  // namespace

int main(int count, char** arguments) {
  const bool quick = count > 1 && std::strcmp(arguments[1], "--quick") == 0;
  bool good = true;
  for (Isa isa : available_isas()) {
    good = all_agree(isa) && good;
    if (!quick && isa != Isa::Portable) print_times(isa);
  }
  std::printf(good ? "all kernels agree\n" : "SOME KERNELS DISAGREE\n");
  return good ? 0 : 1;
}
