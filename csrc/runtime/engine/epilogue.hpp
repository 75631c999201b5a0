// What happens to the sums of an operation before they are written, with its constants.
#pragma once

#include <cmath>
#include <vector>

#include "isa/kernel_table.hpp"

namespace tersify {

// The constants of an EpilogueView, owned. An empty vector leaves its step out.
struct Epilogue {
  std::vector<float> scale, shift, scale2, shift2;
  std::vector<float> slopes{};  // with Leaky: of each channel
  Activation activation = Activation::Clamp;
  float low = -INFINITY, high = INFINITY;

  EpilogueView view() const;
  // The same, its vectors of `channels` numbers, both of a pair or none; throws where they are of another length.
  Epilogue checked(int channels) const;
  // The same for an operation that adds nothing between the two affine steps: they become one.
  Epilogue folded() const;
};

}  // namespace tersify
