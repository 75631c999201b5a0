// One linear layer, run once: for who counts the instructions of its kernel.
#pragma once

#include <stdexcept>
#include <string>

#include "kernel_cases.hpp"

namespace tersify::checks {

// `kind`: signs, table (16 levels), sparse (signs, one of 20 not zero) or bits (signs of both sides).
inline Case one_layer(const std::string& kind, int vectors) {
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
