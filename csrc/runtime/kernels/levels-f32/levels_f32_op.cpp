// Inputs rounded as training left them, as steps.
#include "engine/item_step.hpp"

namespace tersify {

void check_levels(const Quant& levels) {
  if (levels.scale != 0) check_quant(levels);
}

int Engine::levels(int in, Quant levels) {
  check_levels(levels);
  const Shape shape = at(in).shape;
  return add({in}, shape, [=](Schedule& s, const Op& op) {
    add_item_step(s, op, "levels", shape.numel(), [=](const Kernels& k, float* to, const float* from, size_t count) {
      k.levels(to, from, count, levels);
    });
  });
}

}  // namespace tersify
