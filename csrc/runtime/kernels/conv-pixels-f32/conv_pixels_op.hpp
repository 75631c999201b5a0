// A convolution as the engine is told of it, and whether it runs with rows in lanes.
#pragma once

#include <memory>

#include "engine/window_layouts.hpp"

namespace tersify {

struct ConvOp {
  std::shared_ptr<const ListConvWeights> weights;
  std::shared_ptr<Epilogue> epilogue, mean;  // mean null: none
  Shape made;                                // by the sums; a mean is smaller
  int residual;

  std::shared_ptr<const Epilogue> finished(const Op& op) const;  // with the PReLU that is part of the operation
};

// `lanes`: what it would read and write otherwise.
bool pixels_are_faster(const Schedule& schedule, const Op& op, const ConvOp& conv, const WindowLayouts& lanes);
void add_pixels(Schedule& schedule, const Op& op, const ConvOp& conv);

}  // namespace tersify
