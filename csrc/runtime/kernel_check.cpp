// Every kernel of every instruction set of this CPU against the portable one, on random shapes, and how long some take.
// One static program, for machines that have nothing but the CPU: cmake --build BUILD --target kernel_check
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <functional>
#include <limits>
#include <random>
#include <vector>

#include "engine.hpp"

namespace {

using namespace tersify;

constexpr int kCases = 40;
constexpr float kInfinity = std::numeric_limits<float>::infinity();

using Numbers = std::vector<float>;
using Build = std::function<void(Engine&)>;  // adds input, layer and outputs

struct Case {
  Build build;
  int n = 1;
  Numbers input;
  size_t outputs = 0;  // numbers
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
      v = kind == ValueKind::Float ? value
          : kind == ValueKind::Sign ? (value < 0 ? -1.0f : 1.0f)
                                    : table[between(0, int(table.size()) - 1)];
    }
    return all;
  }

 private:
  std::mt19937 engine_;
};

Epilogue relu_with(const Numbers& shift) {
  return {Numbers(shift.size(), 0.5f), shift, {}, {}, Act::Clamp, 0.0f, kInfinity};
}

Case linear_case(Random& r, ValueKind kind) {
  const int rows = r.between(1, 300), features = r.between(1, 300);
  const Numbers table = kind == ValueKind::Table ? Numbers{-1.5f, -0.25f, 0.75f} : Numbers{};
  Case c;
  c.n = r.between(1, 20);
  c.input = r.floats(size_t(c.n) * features);
  c.outputs = size_t(c.n) * rows;
  c.build = [=, weight = r.weights(size_t(rows) * features, kind, table), shift = r.floats(rows)](Engine& e) {
    e.outputs({e.linear(e.input({features, 1, 1}), features, weight.data(), rows, kind, table, relu_with(shift))});
  };
  return c;
}

// Layers of many rows are looked up where the CPU can.
Case dense_case(Random& r, ValueKind kind, int least_rows = 1) {
  const int rows = least_rows + r.between(0, 299), features = r.between(1, 600);
  Case c;
  c.n = r.between(1, 40);
  for (int i = 0; i < c.n * features; ++i) c.input.push_back(float(i % features ? r.between(-127, 127) : 127));
  c.outputs = size_t(c.n) * rows;
  c.build = [=, weight = r.weights(size_t(rows) * features, kind, {-127, -60, -3, 1, 8, 90}), shift = r.floats(rows)](Engine& e) {
    e.outputs({e.byte_linear(e.input({features, 1, 1}), features, weight.data(), rows, relu_with(shift))});
  };
  return c;
}

enum class ConvKernel { Lists, Halves, Narrow, TwoBit };

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
  const bool ends_in_means = kernel != ConvKernel::TwoBit && r.between(0, 2) == 0;
  c.outputs = size_t(c.n) * (ends_in_means ? rows : output.numel());
  const float step = 1.0f / 127, out_step = 0.25f;
  const bool halves = kernel == ConvKernel::Halves, in_steps = kernel != ConvKernel::Lists && !halves;
  if (in_steps)
    for (float& v : c.input) v = std::round(v * 127) * step;
  Numbers weight = r.weights(size_t(rows) * channels * w.taps(), kind, table);
  if (halves) {  // runs of such numbers are exact: what may differ is how the result is rounded
    for (float& v : c.input) v = std::round(v * 3);
    if (kind == ValueKind::Float)
      for (float& v : weight) v = std::round(v * 8) / 8;
    c.tolerance = 1e-3;
  }
  if (kernel == ConvKernel::Narrow && !ends_in_means) c.tolerance = out_step;  // a sum between two steps
  c.build = [=, shift = r.floats(rows)](Engine& e) {
    const int in = e.input({channels, h, width});
    Epilogue finish = relu_with(shift);
    const Epilogue plain, *mean = ends_in_means ? &plain : nullptr;
    if (!in_steps) {
      e.outputs({e.conv(in, w, 1, weight.data(), rows, kind, table, finish, -1, mean, halves)});
      return;
    }
    for (float& scale : finish.scale) scale *= step;
    if (kernel == ConvKernel::TwoBit) {
      e.outputs({e.dense_conv(in, w, weight.data(), rows, finish, -1, {step, -127, 127})});
      return;
    }
    e.quantize(in, {step, -127, 127});
    e.outputs({e.narrow_conv(in, w, 1, weight.data(), rows, finish, -1, {out_step, 0, 255}, mean)});
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
  c.build = [=](Engine& e) { e.outputs({e.pool(e.input({channels, h, width}), w, is_max, true, output)}); };
  return c;
}

Numbers run(const Case& c, Isa isa, int threads) {
  Engine engine(isa, threads);
  c.build(engine);
  Numbers out(c.outputs);
  engine.run(c.n, {c.input.data()}, {out.data()});
  return out;
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
  Engine engine(isa, threads);
  c.build(engine);
  Numbers out(c.outputs);
  double best = 1e30;
  for (int i = 0; i < 300; ++i) {
    const auto start = std::chrono::steady_clock::now();
    engine.run(c.n, {c.input.data()}, {out.data()});
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
  c.build = [&](Engine& e) {
    const Numbers weight = r.weights(size_t(channels) * channels * 9, ValueKind::Sign, {});
    e.outputs({e.dense_conv(e.input({channels, size, size}), kThreeByThree, weight.data(), channels, relu_with(Numbers(channels)), -1,
                            {1.0f / 127, -127, 127})});
  };
  std::printf("%s two-bit conv 3x3, 160 channels, 16x16, batch 4, 1 thread: %.1f us\n", isa_name(isa).c_str(),
              best_microseconds(c, isa, 1));
}

// Lists of a tenth of the weights, in floats of 32 and 16 bits.
void time_lists(Isa isa, bool half) {
  Random r(1);
  const int channels = 64, size = 32;
  Case c = four_images(r, channels, size);
  c.build = [&](Engine& e) {
    Numbers weight(size_t(channels) * channels * 9);
    for (float& v : weight)
      if (r.between(0, 9) == 0) v = r.between(0, 1) ? 1.0f : -1.0f;
    int value = e.input({channels, size, size});
    for (int layer = 0; layer < 4; ++layer)
      value = e.conv(value, kThreeByThree, 1, weight.data(), channels, ValueKind::Sign, {},
                     {Numbers(channels, 0.1f), Numbers(channels), {}, {}, Act::Clamp, 0.0f, kInfinity}, -1, nullptr, half);
    e.outputs({value});
  };
  std::printf("%s four sparse convs 3x3 of signs, %s, 90 %% zeros, 64 channels, 32x32, batch 4, 1 thread: %.1f us\n",
              isa_name(isa).c_str(), half ? "fp16" : "fp32", best_microseconds(c, isa, 1));
}

void time_linear(Isa isa, int n, bool sparse) {
  Random r(1);
  const int size = 4096;
  Case c;
  c.n = n;
  c.input = r.floats(size_t(n) * size);
  c.outputs = size_t(n) * size;
  c.build = [&r, sparse](Engine& e) {
    Numbers weight(size_t(size) * size);
    for (float& v : weight) v = sparse && r.between(0, 9) ? 0.0f : float(r.between(0, 1) * 2 - 1);
    e.outputs({e.byte_linear(e.input({size, 1, 1}), size, weight.data(), size, relu_with(Numbers(size)))});
  };
  for (int threads : {1, 2})
    std::printf("%s linear 4096x4096 in bytes, %d %% zeros, batch %d, %d threads: %.1f us\n", isa_name(isa).c_str(),
                sparse ? 90 : 0, n, threads, best_microseconds(c, isa, threads));
}

}  // namespace

int main() {
  bool good = true;
  for (Isa isa : available_isas()) {
    const std::pair<const char*, std::function<Case(Random&)>> kernels[] = {
        {"conv of signs", [](Random& r) { return conv_case(r, ValueKind::Sign, ConvKernel::Lists); }},
        {"conv of tables", [](Random& r) { return conv_case(r, ValueKind::Table, ConvKernel::Lists); }},
        {"conv of floats", [](Random& r) { return conv_case(r, ValueKind::Float, ConvKernel::Lists); }},
        {"fp16 conv of signs", [](Random& r) { return conv_case(r, ValueKind::Sign, ConvKernel::Halves); }},
        {"fp16 conv of tables", [](Random& r) { return conv_case(r, ValueKind::Table, ConvKernel::Halves); }},
        {"fp16 conv of floats", [](Random& r) { return conv_case(r, ValueKind::Float, ConvKernel::Halves); }},
        {"narrow conv", [](Random& r) { return conv_case(r, ValueKind::Sign, ConvKernel::Narrow); }},
        {"two-bit conv", [](Random& r) { return conv_case(r, ValueKind::Sign, ConvKernel::TwoBit); }},
        {"linear of signs", [](Random& r) { return linear_case(r, ValueKind::Sign); }},
        {"linear of tables", [](Random& r) { return linear_case(r, ValueKind::Table); }},
        {"linear of floats", [](Random& r) { return linear_case(r, ValueKind::Float); }},
        {"two-bit linear", [](Random& r) { return dense_case(r, ValueKind::Sign); }},
        {"two-bit linear of many rows", [](Random& r) { return dense_case(r, ValueKind::Sign, 1000); }},
        {"four-bit linear", [](Random& r) { return dense_case(r, ValueKind::Table); }},
        {"pool", pool_case},
    };
    for (const auto& [name, make] : kernels) {
      int passed = 0;
      for (int i = 0; i < kCases; ++i) {
        Random r(i);
        passed += agree(make(r), isa, 1 + i % 3);
      }
      std::printf("%s %s %d of %d cases passed\n", isa_name(isa).c_str(), name, passed, kCases);
      good = good && passed == kCases;
    }
    for (int n : {1, 16, 64})
      for (bool sparse : {false, true})
        if (isa != Isa::Portable) time_linear(isa, n, sparse);
    if (isa != Isa::Portable) time_conv(isa);
    if (isa != Isa::Portable) time_lists(isa, false);
    if (adds_fp16(isa)) time_lists(isa, true);
    std::fflush(stdout);
  }
  std::printf(good ? "all kernels agree\n" : "SOME KERNELS DISAGREE\n");
  return good ? 0 : 1;
}
