// Convolutions with lists of weights, as steps.
#include <algorithm>
#include <climits>
#include <cmath>
#include <memory>

#include "engine/window_layouts.hpp"
#include "kernels/conv-lists-f32/conv_lists_step.hpp"
#include "kernels/conv-lists-i8/byte_epilogue.hpp"
#include "kernels/conv-pixels-f32/conv_pixels_op.hpp"
#include "kernels/conv-pixels-f32/conv_pixels_step.hpp"

namespace tersify {
namespace {

// Whether no window crosses the rim of a patch, and no two patches overlap.
bool fills_patches(const Layout& layout, const Patch& patch, const Window& pool) {
  return patch.h % pool.kernel_h == 0 && patch.w % pool.kernel_w == 0 && layout.tile_h % patch.h == 0 &&
         layout.tile_w % patch.w == 0;
}

// A mean whose sums have one order: lanes have an order of their own, so the image is made, and made flat.
void add_conv_and_mean(Schedule& s, const Op& op, const ConvOp& conv, ConvStep step) {
  const LaneView view = s.lane_view(step.out, step.to);
  const Image out = step.out;
  const int lanes = step.target = s.temporary(s.bytes(out, step.to)), flat = s.temporary(s.bytes(out, {}));
  add_conv(s, std::move(step), conv.weights->window);
  s.add_exchange(view, lanes, flat, false);
  add_mean(s, out, flat, s.new_buffer_for(op.output, {}), false, conv.mean);
}

void add_list_conv(Schedule& s, const Op& op, const ConvOp& conv) {
  const Window& w = conv.weights->window;
  const int in = op.inputs[0];
  const Image input = s.image(in), output{input.n, conv.made.c, conv.made.h, conv.made.w};
  const WindowLayouts layouts = window_layouts(s, in, output, w, s.lanes(conv.weights->lane));
  if (pixels_are_faster(s, op, conv, layouts)) return add_pixels(s, op, conv);
  const Layout& to = layouts.to;
  ConvStep step;
  step.weights = conv.weights->lists();
  step.epilogue = conv.finished(op);
  step.in = input;
  step.out = output;
  step.from = layouts.from;
  step.to = to;
  step.lane = conv.weights->lane;
  step.source = s.buffer_of(in, layouts.from);
  step.residual = conv.residual < 0 ? -1 : s.buffer_of(conv.residual, to);
  step.input_quant = s.quant(in);
  step.residual_quant = conv.residual < 0 ? Quant{} : s.quant(conv.residual);
  step.output_quant = s.quant(op.output);
  if (conv.mean && step.lane == Lane::F32 && s.in_order()) return add_conv_and_mean(s, op, conv, std::move(step));
  if (op.maxima >= 0 && fills_patches(to, choose_patch(to, step.patch_limit(s)), op.pool)) {
    step.pool_h = op.pool.kernel_h;
    step.pool_w = op.pool.kernel_w;
    step.target = s.new_buffer_for(op.maxima, pooled_layout(to, step.pool_h, step.pool_w));
  } else {
    step.target = s.new_buffer_for(op.output, conv.mean ? Layout{} : to);
  }
  if (step.lane == Lane::I8 && !conv.mean)
    step.byte_epilogues = byte_epilogues(*step.epilogue, step.out.c, step.residual_quant, step.output_quant);
  if (!conv.mean) return add_conv(s, std::move(step), w);
  if (step.lane != Lane::I8) return add_mean_conv(s, std::move(step), w, *conv.mean);
  step.mean_steps = mean_steps(*step.epilogue, step.out.c, conv.weights->row_weights, step.residual_quant);
  add_mean_conv_i8(s, std::move(step), w, *conv.mean);
}

std::vector<int> with_residual(int in, int residual) {
  return residual < 0 ? std::vector<int>{in} : std::vector<int>{in, residual};
}

// Takes back what every weight adds because its activations lie shifted by kByteZero.
void without_zeros(Epilogue& epilogue, const std::vector<int32_t>& sign_sums) {
  epilogue.scale.resize(sign_sums.size(), 1.0f);
  epilogue.shift.resize(sign_sums.size(), 0.0f);
  for (size_t r = 0; r < sign_sums.size(); ++r)
    epilogue.shift[r] -= static_cast<float>(double(epilogue.scale[r]) * kByteZero * sign_sums[r]);
}

}  // namespace

int Engine::list_conv(int in, std::shared_ptr<const ListConvWeights> weights, Epilogue epilogue, int residual,
                      const Epilogue* mean) {
  const Value input = at(in);
  if (input.shape.c != weights->channels)
    throw std::invalid_argument("the convolution reads " + std::to_string(weights->channels) +
                                " channels, its input has " + std::to_string(input.shape.c));
  const Shape made = conv_shape(input.shape, weights->window, weights->rows);
  if (residual != -1) residual_at(residual, input.items, made);
  ConvOp conv;
  const bool plain = epilogue.activation == Activation::Clamp && std::isinf(epilogue.low) && std::isinf(epilogue.high);
  conv.epilogue = std::make_shared<Epilogue>(std::move(epilogue));
  if (mean) conv.mean = std::make_shared<Epilogue>(mean->checked(weights->rows).folded());
  conv.made = made;
  conv.residual = residual;
  conv.weights = weights;
  const int value = add(with_residual(in, residual), mean ? Shape{made.c, 1, 1} : made,
                        [conv](Schedule& s, const Op& op) { add_list_conv(s, op, conv); });
  ops_.back().takes_maxima = !mean;
  ops_.back().takes_slopes = !mean && plain && conv.weights->lane == Lane::F32;
  return value;
}

int Engine::conv(int in, std::shared_ptr<const ConvWeights> weights, Epilogue epilogue, int residual,
                 const Epilogue* mean) {
  use(weights, "convolution");
  epilogue = epilogue.checked(weights->rows);
  return list_conv(in, std::move(weights), std::move(epilogue), residual, mean);
}

int Engine::conv_dense(int in, std::shared_ptr<const ConvDenseWeights> weights, Epilogue epilogue, int residual,
                       const Epilogue* mean) {
  use(weights, "convolution");
  epilogue = epilogue.checked(weights->rows);
  return list_conv(in, std::move(weights), std::move(epilogue), residual, mean);
}

int Engine::conv_i8(int in, std::shared_ptr<const ConvInt8Weights> weights, Epilogue epilogue, int residual,
                    Quant output, const Epilogue* mean) {
  use(weights, "convolution");
  check_quant(output);
  for (int value : with_residual(in, residual))
    if (at(value).quant.scale <= 0)
      throw std::invalid_argument("value " + std::to_string(value) +
                                  " is not quantized; an int8 convolution reads steps");
  epilogue = epilogue.checked(weights->rows);
  if (at(in).quant.low < 0) without_zeros(epilogue, weights->sign_sums);
  const int value = list_conv(in, std::move(weights), std::move(epilogue), residual, mean);
  values_[value].quant = output;
  return value;
}

}  // namespace tersify
