// Numbers that move: slices, permutations, paddings and repetitions, each one map from places of the output to places
// of the input.
#include <algorithm>
#include <climits>
#include <cstring>
#include <memory>
#include <stdexcept>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

constexpr size_t kMaxAxes = 8;

// The innermost axis: what lies between its ends comes from the input, the rest is filled.
void move_row(const MoveAxis& axis, float fill, const float* in, float* out) {
  std::fill(out, out + axis.low, fill);
  if (axis.stride == 1)
    std::memcpy(out + axis.low, in + axis.low, size_t(axis.high - axis.low) * sizeof(float));
  else
    for (int i = axis.low; i < axis.high; ++i) out[i] = in[i * axis.stride];
  std::fill(out + axis.high, out + axis.size, fill);
}

void move_axes(const MoveAxis* axis, const MoveAxis* last, float fill, const float* in, float* out, size_t count) {
  if (axis == last) return move_row(*axis, fill, in, out);
  const size_t inner = count / axis->size;
  for (int i = 0; i < axis->size; ++i, out += inner) {
    if (i < axis->low || i >= axis->high)
      std::fill(out, out + inner, fill);
    else
      move_axes(axis + 1, last, fill, in + i * axis->stride, out, inner);
  }
}

// Throws unless every place that is read lies within an item of `numel` numbers.
void check_move(const Move& m, int64_t numel, int64_t made) {
  if (m.axes.empty() || m.axes.size() > kMaxAxes)
    throw std::invalid_argument("a move has 1..8 axes, got " + std::to_string(m.axes.size()));
  int64_t count = 1, lowest = m.offset, highest = m.offset;
  bool reads = true;
  for (const MoveAxis& a : m.axes) {
    if (a.size < 1 || a.low < 0 || a.high < a.low || a.high > a.size || count > INT_MAX / a.size)
      throw std::invalid_argument("an axis of a move reads places low..high of its size, got " + std::to_string(a.low) +
                                  ".." + std::to_string(a.high) + " of " + std::to_string(a.size));
    count *= a.size;
    reads = reads && a.high > a.low;
    const int64_t ends[] = {a.stride * a.low, a.stride * (a.high - 1)};
    lowest += std::min(ends[0], ends[1]);
    highest += std::max(ends[0], ends[1]);
  }
  if (count != made)
    throw std::invalid_argument("a move makes " + std::to_string(count) + " numbers, its output has " +
                                std::to_string(made));
  if (reads && (lowest < 0 || highest >= numel))
    throw std::invalid_argument("a move reads places " + std::to_string(lowest) + ".." + std::to_string(highest) +
                                " of " + std::to_string(numel) + " numbers");
}

}  // namespace

int Engine::move(int in, Shape shape, Move move) {
  shape = checked_shape(shape.c, shape.h, shape.w);
  const int64_t numel = at(in).shape.numel(), made = shape.numel();
  check_move(move, numel, made);
  auto shared = std::make_shared<Move>(std::move(move));
  return add({in}, shape, [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {}), items = s.items(in);
    const bool splits = s.threads() > 1 && shared->axes.size() > 1;
    const int parts = splits ? shared->axes[0].size : 1;
    Step step("move");
    step.tasks = items * parts;
    step.reads = {source};
    step.writes = {target};
    step.run = [=](char* const* b, int task, char*) {
      const int item = task / parts, part = task % parts;
      const float* x = reinterpret_cast<const float*>(b[source]) + item * numel + shared->offset;
      float* out = reinterpret_cast<float*>(b[target]) + item * made;
      const MoveAxis *first = shared->axes.data(), *last = first + shared->axes.size() - 1;
      if (!splits) return move_axes(first, last, shared->fill, x, out, size_t(made));
      const size_t inner = size_t(made / parts);
      if (part < first->low || part >= first->high)
        std::fill(out + part * inner, out + (part + 1) * inner, shared->fill);
      else
        move_axes(first + 1, last, shared->fill, x + part * first->stride, out + part * inner, inner);
    };
    s.add(std::move(step));
  });
}

}  // namespace tersify
