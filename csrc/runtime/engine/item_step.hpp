// Steps that make each item of a value from the same item of another, whatever its shape.
#pragma once

#include <cstddef>
#include <utility>

#include "engine/schedule.hpp"

namespace tersify {

// A task for each item: `run(kernels, to, from, count)` makes its numbers, which lie one behind the other.
template <class Run>
void add_item_step(Schedule& s, const Op& op, const char* kernel, size_t count, Run run) {
  const int in = op.inputs[0];
  const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
  Step step(kernel);
  step.tasks = s.items(in);
  step.reads = {source};
  step.writes = {target};
  step.run = [=, k = &s.kernels()](char* const* b, int item, char*) {
    const size_t at = size_t(item) * count;
    run(*k, reinterpret_cast<float*>(b[target]) + at, reinterpret_cast<const float*>(b[source]) + at, count);
  };
  s.add(std::move(step));
}

}  // namespace tersify
