// Concatenation along the channels, as steps.
#include <cstring>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

void add_concatenation(Schedule& s, const Op& op) {
  const std::vector<int>& inputs = op.inputs;
  const Layout* current = nullptr;
  for (int value : inputs)
    if (!current) current = s.lanes_of(value, s.lanes());
  const Layout layout = current ? *current : Layout{};
  const Image out = s.image(op.output);
  const int groups = layout.flat() ? out.n : layout.groups(out.n);
  const int target = s.new_buffer_for(op.output, layout);
  const size_t whole = s.bytes(out, layout) / groups;
  size_t at = 0;
  for (int value : inputs) {
    const int source = s.buffer_of(value, layout);
    const size_t part = s.bytes(s.image(value), layout) / groups, offset = at;
    Step step("concat");
    step.tasks = groups;
    step.reads = {source};
    step.writes = {target};
    step.run = [=](char* const* b, int group, char*) {
      std::memcpy(b[target] + group * whole + offset, b[source] + group * part, part);
    };
    s.add(std::move(step));
    at += part;
  }
}

}  // namespace

int Engine::concatenate(const std::vector<int>& inputs) {
  if (inputs.empty()) throw std::invalid_argument("a concatenation needs at least one value");
  const Value first = at(inputs[0]);
  int64_t channels = 0;
  for (int value : inputs) {
    const Value& next = at(value);
    if (next.items != first.items || next.shape.h != first.shape.h || next.shape.w != first.shape.w)
      throw std::invalid_argument("concatenated values have the same items, height and width; got " +
                                  std::to_string(first.items) + " × " + to_string(first.shape) + " and " +
                                  std::to_string(next.items) + " × " + to_string(next.shape));
    channels += next.shape.c;
  }
  return add(inputs, checked_shape(channels, first.shape.h, first.shape.w), add_concatenation);
}

}  // namespace tersify
