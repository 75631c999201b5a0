#include "kernels/conv-pixels-f32/conv_pixels_op.hpp"

#include <algorithm>

#include "kernels/conv-pixels-f32/conv_pixels_step.hpp"

namespace tersify {
namespace {

constexpr int kMaxLaneTaps = 128;  // of a window over lanes of positions: more make long footprints
// Of a number that changes its layout, in vector operations: into or out of lanes, and of pixels.
constexpr double kIntoLanes = 3.0, kIntoPixels = 0.4;

}  // namespace

std::shared_ptr<const Epilogue> ConvOp::finished(const Op& op) const {
  if (!op.slopes) return epilogue;
  auto made = std::make_shared<Epilogue>(*epilogue);
  made->activation = Activation::Leaky;
  made->slopes = *op.slopes;
  return made;
}

bool pixels_are_faster(const Schedule& s, const Op& op, const ConvOp& conv, const WindowLayouts& lanes) {
  const auto weights = conv.weights->pixels();
  if (!weights) return false;
  if (conv.weights->window.taps() > kMaxLaneTaps) return true;
  const int in = op.inputs[0];
  const Image input = s.image(in);
  const double numbers = double(input.n) * input.c * input.h * input.w;
  const int limit = std::min(kDensePatch, s.patch_limit(lanes.to.lanes()));
  double pixels = double(input.n) * weights->cost(conv.made.h * conv.made.w);
  double apart = layout_cost(lanes.to, input.n, limit) * double(conv.made.c) * conv.weights->row_weights;
  if (!s.lies(in, s.pixels(in))) pixels += numbers * kIntoPixels;
  if (!s.lies(in, s.pixels(in)) && !s.lies(in, {})) pixels += numbers * kIntoLanes;
  if (!s.lies(in, lanes.from)) apart += numbers * kIntoLanes;
  apart += double(input.n) * conv.made.numel() * kIntoLanes / 2;  // what follows may want it otherwise, or not
  return pixels < apart;
}

void add_pixels(Schedule& s, const Op& op, const ConvOp& conv) {
  const int in = op.inputs[0];
  const Image input = s.image(in), output{input.n, conv.made.c, conv.made.h, conv.made.w};
  PixelConvStep step;
  step.weights = conv.weights->pixels();
  step.epilogue = conv.finished(op);
  step.runs = s.known_runs().of(input, output, conv.weights->window);
  step.in = input;
  step.out = output;
  step.source = s.buffer_of(in, s.pixels(in));
  if (conv.residual >= 0) step.residual = s.buffer_of(conv.residual, s.pixels(conv.residual));
  if (!conv.mean) {
    step.target = s.new_buffer_for(op.output, s.pixels(op.output));
    return add_pixel_conv(s, std::move(step));
  }
  const int sums = step.target = s.temporary(s.bytes(output, {}));
  const int target = s.new_buffer_for(op.output, {});
  add_pixel_conv(s, std::move(step));
  add_mean(s, output, sums, target, true, conv.mean);
}

}  // namespace tersify
