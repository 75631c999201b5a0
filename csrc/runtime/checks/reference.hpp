// What every kernel should make, by the definition alone: plain loops over numbers, no code of the engine and no vector.
#pragma once

#include <algorithm>
#include <cmath>
#include <vector>

#include "isa/kernel_types.hpp"
#include "layout/window.hpp"

namespace tersify::checks {

using Numbers = std::vector<float>;

struct Sizes {
  int n, channels, h, w;
};

// [n][rows] of [n][features] and [rows][features].
inline std::vector<double> products(const Numbers& x, const Numbers& weight, int n, int rows, int features) {
  std::vector<double> sums(size_t(n) * rows);
  for (int i = 0; i < n; ++i)
    for (int row = 0; row < rows; ++row)
      for (int f = 0; f < features; ++f)
        sums[size_t(i) * rows + row] += double(x[size_t(i) * features + f]) * weight[size_t(row) * features + f];
  return sums;
}

inline int outputs_of(int size, int kernel, int stride, int pad) { return (size + 2 * pad - kernel) / stride + 1; }

// Calls visit(output index, channel, input index, tap) for everything inside an image that a window covers.
template <class Visit>
void for_windows(const Sizes& in, const Window& w, Visit visit) {
  const int oh = outputs_of(in.h, w.kernel_h, w.stride_h, w.pad_h), ow = outputs_of(in.w, w.kernel_w, w.stride_w, w.pad_w);
  for (int i = 0; i < in.n; ++i)
    for (int c = 0; c < in.channels; ++c)
      for (int place = 0; place < oh * ow; ++place)
        for (int tap = 0; tap < w.kernel_h * w.kernel_w; ++tap) {
          const int y = place / ow * w.stride_h - w.pad_h + tap / w.kernel_w;
          const int x = place % ow * w.stride_w - w.pad_w + tap % w.kernel_w;
          if (y < 0 || x < 0 || y >= in.h || x >= in.w) continue;
          visit(i * oh * ow + place, c, ((size_t(i) * in.channels + c) * in.h + y) * in.w + x, tap);
        }
}

// [n · positions][rows]: sums of every window.
inline std::vector<double> convolved(const Numbers& x, const Sizes& in, const Numbers& weight, int rows,
                                     const Window& w) {
  const int taps = w.kernel_h * w.kernel_w;
  const int positions =
      outputs_of(in.h, w.kernel_h, w.stride_h, w.pad_h) * outputs_of(in.w, w.kernel_w, w.stride_w, w.pad_w);
  std::vector<double> sums(size_t(in.n) * positions * rows);
  for_windows(in, w, [&](int place, int c, size_t at, int tap) {
    for (int row = 0; row < rows; ++row)
      sums[size_t(place) * rows + row] += double(x[at]) * weight[(size_t(row) * in.channels + c) * taps + tap];
  });
  return sums;
}

// scale · sum + shift; each of the two roundings to float is the kernels' where sums are whole.
inline float scaled(double sum, float scale, float shift) {
  const float product = static_cast<float>(sum) * scale;
  return product + shift;
}

// The same, and nothing below zero.
inline float finished(double sum, float scale, float shift) { return std::max(0.0f, scaled(sum, scale, shift)); }

// [n][rows][positions]: what is negative, times the slope of its row.
inline void bend(Numbers& made, const Numbers& slopes, int n) {
  const size_t rows = slopes.size(), positions = made.size() / n / rows;
  for (size_t i = 0; i < made.size(); ++i)
    if (made[i] < 0) made[i] *= slopes[i / positions % rows];
}

// The nearest of the levels low..high times scale; scale 0: signs.
inline Numbers levelled(Numbers x, const Quant& levels) {
  for (float& v : x)
    v = levels.scale == 0 ? (v >= 0 ? 1.0f : -1.0f)
                          : std::nearbyint(std::clamp(v / levels.scale, levels.low, levels.high)) * levels.scale;
  return x;
}

// [n · positions][rows] → [n][rows][positions], or the means of these: [n][rows].
inline Numbers laid_out(const Numbers& made, int n, int rows, bool means) {
  const size_t positions = made.size() / n / rows;
  Numbers out(means ? size_t(n) * rows : made.size());
  for (int i = 0; i < n; ++i)
    for (int row = 0; row < rows; ++row) {
      double total = 0;
      for (size_t p = 0; p < positions; ++p) {
        const float value = made[(i * positions + p) * rows + row];
        total += value;
        if (!means) out[(size_t(i) * rows + row) * positions + p] = value;
      }
      if (means) out[size_t(i) * rows + row] = float(total / double(positions));
    }
  return out;
}

// Of windows that never reach over an edge.
inline Numbers pooled(const Numbers& x, const Sizes& in, const Window& w, bool is_max) {
  const int positions = outputs_of(in.h, w.kernel_h, w.stride_h, 0) * outputs_of(in.w, w.kernel_w, w.stride_w, 0);
  const int taps = w.kernel_h * w.kernel_w;
  std::vector<double> made(size_t(in.n) * in.channels * positions, is_max ? -1e30 : 0.0);
  for_windows(in, w, [&](int place, int c, size_t at, int) {
    double& value = made[(size_t(place / positions) * in.channels + c) * positions + place % positions];
    value = is_max ? std::max(value, double(x[at])) : value + double(x[at]) / taps;
  });
  return Numbers(made.begin(), made.end());
}

}  // namespace tersify::checks
