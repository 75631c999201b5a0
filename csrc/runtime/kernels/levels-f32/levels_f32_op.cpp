// Inputs rounded as training left them, as steps.
#include "engine/schedule.hpp"

namespace tersify {

void check_levels(const Quant& levels) {
  if (levels.scale != 0) check_quant(levels);
}

int Engine::levels(int in, Quant levels) {
  check_levels(levels);
  const Shape shape = at(in).shape;
  return add({in}, shape, [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    Step step;
    step.tasks = s.items(in);
    step.reads = {source};
    step.writes = {target};
    step.kernel = "levels";
    step.run = [=, k = &s.kernels()](char* const* b, int item, char*) {
      const size_t at = size_t(item) * shape.numel();
      k->levels(reinterpret_cast<float*>(b[target]) + at, reinterpret_cast<const float*>(b[source]) + at,
                shape.numel(), levels);
    };
    s.add(std::move(step));
  });
}

}  // namespace tersify
