// Words that all kernels share. Plain data: the translation units of kernels are compiled for CPUs that may differ from
// the one that runs the rest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersify {

// Clamp with infinite ends is no activation at all; Leaky multiplies negative numbers with `low`.
enum class Activation : uint8_t { Clamp, Gelu, GeluTanh, Silu, Sigmoid, Tanh, HardSwish, Leaky };
enum class Curve : uint8_t { Exp, Log, LogSigmoid, Root };
enum class ValueKind : uint8_t { Sign, Table, Float };
enum class Lane : uint8_t { I8 = 1, F16 = 2, F32 = 4 };  // what one holds: its bytes

// What happens to a finished sum: ×scale +shift, + residual, ×scale2 +shift2, activation.
struct EpilogueView {
  const float* scale;   // per channel; null: 1
  const float* shift;   // per channel; null: 0
  const float* scale2;  // null: no second affine
  const float* shift2;
  Activation activation;
  float low, high;
  const float* slopes = nullptr;  // Leaky: per channel, instead of `low`; null: none
};

// Whole numbers that stand for numbers × scale; scale 0: not quantized. In byte lanes they lie shifted by kByteZero
// where they may be negative.
struct Quant {
  float scale = 0, low = 0, high = 0;
};
constexpr int kByteZero = 128;

// What one vector meets is read once, in order, and often from far away: 16 KiB ahead it is asked for into the
// second-level cache. The CPU's own prefetching ends at every page.
constexpr int kAheadBytes = 1 << 14;

}  // namespace tersify
