// Attention, as steps: every head of every item is a task, cut into ranges of queries where threads would wait.
#include <algorithm>
#include <memory>
#include <stdexcept>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

constexpr int kLeastQueries = 32;  // a task turns all the keys of its head first

// One head of a value that holds [heads][tokens][width], or [tokens][heads][width].
struct Heads {
  ptrdiff_t head, token;
};

Heads heads_of(bool tokens_first, int heads, int tokens, int width) {
  if (tokens_first) return {width, ptrdiff_t(heads) * width};
  return {ptrdiff_t(tokens) * width, width};
}

// How many numbers of an item each input has: queries, keys, values.
int64_t wanted_of(const Attention& a, int input) {
  if (input == 0) return int64_t(a.heads) * a.queries * a.width;
  return int64_t(a.key_heads) * a.keys * (input == 1 ? a.width : a.value_width);
}

}  // namespace

int Engine::attention(const std::vector<int>& inputs, const Attention& a, std::vector<float> mask) {
  if (inputs.size() != 3 && inputs.size() != 4)
    throw std::invalid_argument("attention reads queries, keys, values and perhaps a mask, got " +
                                std::to_string(inputs.size()) + " values");
  if (a.heads < 1 || a.key_heads < 1 || a.heads % a.key_heads || a.queries < 1 || a.keys < 1 || a.width < 1 ||
      a.value_width < 1)
    throw std::invalid_argument("attention needs positive sizes, and heads that are a multiple of the keys' heads");
  const int items = at(inputs[0]).items;
  for (int i = 0; i < 3; ++i)
    if (at(inputs[i]).items != items || at(inputs[i]).shape.numel() != wanted_of(a, i))
      throw std::invalid_argument("attention of " + std::to_string(items) + " items reads " +
                                  std::to_string(wanted_of(a, i)) + " numbers of each, got " +
                                  std::to_string(at(inputs[i]).items) + " × " + to_string(at(inputs[i]).shape));
  const int64_t mask_size = (a.mask_heads ? a.heads : 1) * int64_t(a.mask_queries ? a.queries : 1) * a.keys;
  int masks = 1;  // of items, before they begin again
  if (inputs.size() == 4) {
    const Value& given = at(inputs[3]);
    masks = given.items;
    if (given.shape.numel() != mask_size || (masks != items && masks != 1) || !mask.empty())
      throw std::invalid_argument("a mask of attention has " + std::to_string(mask_size) +
                                  " numbers for each item, got " + std::to_string(masks) + " × " +
                                  to_string(given.shape));
  } else if (!mask.empty()) {
    masks = int(int64_t(mask.size()) / mask_size);
    if (int64_t(mask.size()) % mask_size || items % masks)
      throw std::invalid_argument("a constant mask of attention has " + std::to_string(mask_size) +
                                  " numbers for each of some items, got " + std::to_string(mask.size()) + " for " +
                                  std::to_string(items));
    // No portion of the items may begin in the middle of the masks.
    const Shape& own = at(inputs[0]).shape;
    if (masks > 1) view_of(inputs[0], items / masks, checked_shape(int64_t(masks) * own.c, own.h, own.w));
  }
  const auto constant = mask.empty() ? nullptr : std::make_shared<const std::vector<float>>(std::move(mask));
  const Shape shape = a.out_tokens_first ? checked_shape(a.queries, a.heads, a.value_width)
                                         : checked_shape(a.heads, a.queries, a.value_width);
  return add(inputs, shape, [=](Schedule& s, const Op& op) {
    std::vector<int> from;
    for (int in : op.inputs) from.push_back(s.buffer_of(in, {}));
    const int target = s.new_buffer_for(op.output, {}), heads = s.items(op.inputs[0]) * a.heads;
    const int parts = std::clamp(2 * s.threads() / heads, 1, (a.queries + kLeastQueries - 1) / kLeastQueries);
    const Kernels* k = &s.kernels();
    Step step("attention");
    step.tasks = heads * parts;
    step.reads = from;
    step.writes = {target};
    step.scratch_bytes = k->attention_scratch_bytes(a.keys, a.width, a.value_width);
    step.run = [=](char* const* b, int task, char* scratch) {
      const int item = task / parts / a.heads, head = task / parts % a.heads, part = task % parts;
      const int key_head = head / (a.heads / a.key_heads);
      const int begin = int(int64_t(a.queries) * part / parts), end = int(int64_t(a.queries) * (part + 1) / parts);
      const Heads q = heads_of(a.q_tokens_first, a.heads, a.queries, a.width);
      const Heads keys = heads_of(a.k_tokens_first, a.key_heads, a.keys, a.width);
      const Heads values = heads_of(a.v_tokens_first, a.key_heads, a.keys, a.value_width);
      const Heads out = heads_of(a.out_tokens_first, a.heads, a.queries, a.value_width);
      auto floats = [&](int input) {
        return reinterpret_cast<const float*>(b[from[input]]) + item * wanted_of(a, input);
      };
      AttentionTask t{};
      t.q = floats(0) + head * q.head + begin * q.token;
      t.k = floats(1) + key_head * keys.head;
      t.v = floats(2) + key_head * values.head;
      t.q_stride = q.token;
      t.k_stride = keys.token;
      t.v_stride = values.token;
      t.out_stride = out.token;
      t.queries = end - begin;
      t.keys = a.keys;
      t.width = a.width;
      t.value_width = a.value_width;
      t.scale = a.scale;
      if (from.size() == 4 || constant) {
        t.mask_stride = a.mask_queries ? a.keys : 0;
        const int64_t rows = a.mask_queries ? a.queries : 1;
        t.mask = (constant ? constant->data() : reinterpret_cast<const float*>(b[from[3]])) +
                 item % masks * mask_size + (a.mask_heads ? head * rows * a.keys : 0) + begin * t.mask_stride;
        t.added = a.mask_added;
      }
      t.visible = a.causal ? begin + 1 : a.keys;
      t.out = reinterpret_cast<float*>(b[target]) + int64_t(item) * a.heads * a.queries * a.value_width +
              head * out.head + begin * out.token;
      t.scratch = scratch;
      k->attention(t);
    };
    s.add(std::move(step));
    s.add_cost(2.0 * heads * a.queries * a.keys * a.width / s.lanes());
  });
}

}  // namespace tersify
