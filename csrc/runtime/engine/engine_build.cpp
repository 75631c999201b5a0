// The engine's entries that add a value: every count, rank and number is checked here, because kernels trust them.
#include <algorithm>
#include <climits>
#include <cmath>
#include <stdexcept>

#include "engine/schedule.hpp"
#include "kernels/conv-lists-f32/list_weights.hpp"

namespace tersify {
namespace {

constexpr size_t kMaxValues = 1 << 20;

}  // namespace

int Engine::new_value(int items, Shape shape) {
  if (sealed_) throw std::invalid_argument("a plan that has run takes no more operations; make another engine");
  if (items < 1) throw std::invalid_argument("a value has at least one item, got " + std::to_string(items));
  if (values_.size() >= kMaxValues) throw std::invalid_argument("a plan has at most 2^20 values");
  values_.push_back({items, checked_shape(shape.c, shape.h, shape.w)});
  return int(values_.size()) - 1;
}

int Engine::input(int items, Shape shape) {
  inputs_.push_back(new_value(items, shape));
  return inputs_.back();
}

int Engine::input_ids(int items, int count) {
  const int value = input(items, {1, 1, count});
  values_[value].ids = true;
  values_[value].root = value;
  return value;
}

const Value& Engine::at(int value) const {
  if (value < 0 || value >= int(values_.size()))
    throw std::invalid_argument("there is no value " + std::to_string(value) + "; the plan has " +
                                std::to_string(values_.size()));
  const Value& found = values_[value];
  if (found.ids)
    throw std::invalid_argument("value " + std::to_string(value) + " holds ids, which only an embedding reads");
  if (found.folded)
    throw std::invalid_argument("of value " + std::to_string(value) + " only the maxima exist; read those");
  return found;
}

const Value& Engine::residual_at(int residual, int items, const Shape& shape) const {
  const Value& found = at(residual);
  if (found.items != items || found.shape != shape)
    throw std::invalid_argument("a residual has the output's size, " + std::to_string(items) + " × " +
                                to_string(shape) + ", got " + std::to_string(found.items) + " × " +
                                to_string(found.shape));
  return found;
}

int Engine::add(std::vector<int> inputs, Shape shape, std::function<void(Schedule&, const Op&)> plan) {
  const int output = new_value(values_.at(inputs.at(0)).items, shape);
  Op op;
  op.inputs = std::move(inputs);
  op.output = output;
  op.plan = std::move(plan);
  ops_.push_back(std::move(op));
  return output;
}

void Engine::quantize(int value, Quant quant) {
  const Quant& known = at(value).quant;
  if (sealed_) throw std::invalid_argument("a plan that has run cannot be changed; make another engine");
  check_quant(quant);
  if (known.scale > 0 && (known.scale != quant.scale || known.low != quant.low || known.high != quant.high))
    throw std::invalid_argument("value " + std::to_string(value) + " is quantized otherwise already");
  values_[value].quant = quant;
}

int Engine::view(int in, int items, Shape shape) {
  if (in >= 0 && in < int(values_.size()) && values_[in].ids) {
    const Value ids = values_[in];
    const int seen = view_of(in, items, shape);
    values_[seen].ids = true;
    values_[seen].root = ids.root;
    return seen;
  }
  at(in);
  return view_of(in, items, shape);
}

int Engine::view_of(int in, int items, Shape shape) {
  const int64_t numel = values_[in].numel();
  shape = checked_shape(shape.c, shape.h, shape.w);
  if (items < 1 || int64_t(items) * shape.numel() != numel)
    throw std::invalid_argument("a view keeps the " + std::to_string(numel) + " numbers of its value, got " +
                                std::to_string(items) + " × " + to_string(shape));
  const int seen = add({in}, shape, [=](Schedule& s, const Op& op) { s.alias(op.output, in); });
  values_[seen].items = items;
  views_[seen] = in;
  return seen;
}

const Op* Engine::prelu_behind(const Op& op) const {
  if (!op.takes_slopes || std::find(outputs_.begin(), outputs_.end(), op.output) != outputs_.end()) return nullptr;
  const Op* found = nullptr;
  for (const Op& other : ops_)
    if (std::find(other.inputs.begin(), other.inputs.end(), op.output) != other.inputs.end()) {
      if (found || !other.slopes) return nullptr;
      found = &other;
    }
  return found;
}

void Engine::check_folds(int conv, const Window& window, int output_h, int output_w) const {
  const auto made = std::find_if(ops_.begin(), ops_.end(), [&](const Op& op) { return op.output == conv; });
  bool is_read = std::find(outputs_.begin(), outputs_.end(), conv) != outputs_.end();
  for (const Op& op : ops_) is_read |= std::find(op.inputs.begin(), op.inputs.end(), conv) != op.inputs.end();
  if (made == ops_.end() || !made->takes_maxima || is_read)
    throw std::invalid_argument("maxima can be folded into a convolution of lists that nothing else reads");
  Window side_by_side;
  side_by_side.kernel_h = side_by_side.stride_h = window.kernel_h;
  side_by_side.kernel_w = side_by_side.stride_w = window.kernel_w;
  if (window != side_by_side)
    throw std::invalid_argument("folded maxima have windows side by side: kernel = stride, no padding, no dilation");
  const Shape& whole = values_[conv].shape;
  if (output_h != whole.h / window.kernel_h || output_w != whole.w / window.kernel_w)
    throw std::invalid_argument("folded maxima have whole windows only");
}

int Engine::fold_max_pool(int conv, const Window& window, int output_h, int output_w) {
  at(conv);
  check_folds(conv, window, output_h, output_w);
  const Quant quant = values_[conv].quant;
  const int value = max_pool(conv, window, output_h, output_w);
  values_[value].quant = quant;
  values_[conv].folded = true;
  for (Op& op : ops_)
    if (op.output == conv) {
      op.maxima = value;
      op.pool = window;
    }
  return value;
}

void Engine::outputs(const std::vector<int>& values) {
  if (sealed_) throw std::invalid_argument("a plan that has run cannot be changed; make another engine");
  if (values.empty()) throw std::invalid_argument("a plan has at least one output");
  for (int value : values) at(value);
  outputs_ = values;
}

void check_quant(const Quant& q) {
  if (!(q.scale > 0) || !std::isfinite(q.scale) || !(q.low <= 0) || !(q.high >= 0) || !(q.high <= kInt8High) ||
      (q.low < 0 && !(std::max(-q.low, q.high) <= kInt8High / 2)))
    throw std::invalid_argument("8-bit values are 0..255 or -127..127 with a positive scale, got " +
                                std::to_string(q.low) + ".." + std::to_string(q.high) + " × " +
                                std::to_string(q.scale));
}

}  // namespace tersify
