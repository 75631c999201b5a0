// How long some kernels take on an instruction set of this CPU.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "kernel_cases.hpp"

namespace tersify::checks {

inline double best_microseconds(const Case& c, Isa isa, int threads) {
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
inline Case four_images(Random& r, int channels, int size) {
  Case c;
  c.n = 4;
  c.input = r.floats(size_t(c.n) * channels * size * size);
  c.outputs = c.input.size();
  return c;
}

inline void time_conv(Isa isa) {
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
inline void time_lists(Isa isa, bool fp16) {
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

inline void time_linear(Isa isa, int n, bool sparse) {
  Random r(1);
  const int size = 4096;
  Case c;
  c.n = n;
  c.input = r.floats(size_t(n) * size);
  c.outputs = size_t(n) * size;
  c.build = [&r, sparse, n, size](Engine& e, const Space& space) {
    Numbers weight(size_t(size) * size);
    for (float& v : weight) v = sparse && r.between(0, 9) ? 0.0f : float(r.between(0, 1) * 2 - 1);
    auto packed = std::make_shared<LinearInt8Weights>(space, weight.data(), size, size, true);
    e.outputs({e.linear_i8(e.input(n, {size, 1, 1}), packed, relu_with(Numbers(size)))});
  };
  for (int threads : {1, 2})
    std::printf("%s linear 4096x4096 in bytes, %d %% zeros, batch %d, %d threads: %.1f us\n", isa_name(isa).c_str(),
                sparse ? 90 : 0, n, threads, best_microseconds(c, isa, threads));
}

inline void print_times(Isa isa) {
  for (int n : {1, 16, 64})
    for (bool sparse : {false, true}) time_linear(isa, n, sparse);
  time_conv(isa);
  time_lists(isa, false);
  if (adds_fp16(isa)) time_lists(isa, true);
  std::fflush(stdout);
}

}  // namespace tersify::checks
