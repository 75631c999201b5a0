// One layer, run once: for who counts the instructions of its kernel.
#pragma once

#include <stdexcept>
#include <string>

#include "kernel_cases.hpp"

namespace tersify::checks {

// A convolution with 3 × 3 windows of 64 channels, on images of 8 × 8: `kind` is conv (signs, two bits each) or lists
// (signs, one of 20 not zero, in lanes of fp16).
inline Case one_convolution(const std::string& kind, int images) {
  constexpr int rows = 64, channels = 64, side = 8;
  const bool lists = kind == "lists";
  Window w;
  w.kernel_h = w.kernel_w = 3;
  w.pad_h = w.pad_w = 1;
  Random r(1);
  Case c;
  c.n = images;
  c.input = r.floats(size_t(images) * channels * side * side);
  c.outputs = size_t(images) * rows * side * side;
  Numbers weight(size_t(rows) * channels * w.taps());
  for (float& v : weight)
    v = lists ? float(r.between(0, 19) == 0 ? 2 * r.between(0, 1) - 1 : 0) : float(r.between(-1, 1));
  c.build = [=](Engine& e, const Space& space) {
    const int in = e.input(images, {channels, side, side});
    const DenseWeight dense{weight.data(), rows, channels, 1, w.taps()};
    if (lists)
      e.outputs({e.conv(
          in, conv_weights(space, weight, rows, channels, w, ValueKind::Sign, {}, Lane::F16, {rows, side, side}),
          Epilogue{}, -1, nullptr)});
    else
      e.outputs({e.conv_codes(in, std::make_shared<ConvCodesWeights>(space, dense, w), Epilogue{}, -1,
                              {1.0f / 127, -127, 127})});
  };
  return c;
}

// `kind`: signs, table (16 levels), sparse (signs, one of 20 not zero) or bits (signs of both sides); or one of a
// convolution.
inline Case one_layer(const std::string& kind, int vectors) {
  if (kind == "conv" || kind == "lists") return one_convolution(kind, vectors);
  constexpr int rows = 64, features = 2048, most = 7;
  const bool table = kind == "table", sparse = kind == "sparse", bits = kind == "bits";
  if (kind != "signs" && !table && !sparse && !bits) throw std::invalid_argument("there is no layer of " + kind);
  Random r(1);
  Case c;
  c.n = vectors;
  c.input = r.floats(size_t(vectors) * features);
  c.outputs = size_t(vectors) * rows;
  Numbers weight(size_t(rows) * features);
  for (float& v : weight)
    v = table    ? float(r.between(-most, most + 1))
        : sparse ? float(r.between(0, 19) == 0 ? 2 * r.between(0, 1) - 1 : 0)
        : bits   ? float(2 * r.between(0, 1) - 1)
                 : float(r.between(-1, 1));
  c.build = [=](Engine& e, const Space& space) {
    const int in = e.input(vectors, {features, 1, 1});
    if (bits) {
      auto packed = std::make_shared<BitWeights>(space, weight.data(), rows, features);
      e.outputs({e.linear_bits(in, packed, Epilogue{}, {0, -1, 1})});
    } else {
      auto packed = std::make_shared<LinearInt8Weights>(space, weight.data(), rows, features, false);
      e.outputs({e.linear_i8(in, packed, Epilogue{})});
    }
  };
  return c;
}

}  // namespace tersify::checks
