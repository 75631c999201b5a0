#include "schedule.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>

namespace tersify {
namespace {

size_t aligned(size_t bytes) { return AlignedBytes::rounded(bytes); }

constexpr double kNearBytes = 2 << 20;
constexpr int kExchangeTask = 1 << 10;  // numbers: fewer change their layout before another thread has come

}  // namespace

Schedule::Schedule(Engine& engine, int n, int threads)
    : engine_(engine), n_(n), threads_(threads), homes_(engine.shapes_.size()) {
  for (size_t i = 0; i < engine.inputs_.size(); ++i) {
    const int value = engine.inputs_[i];
    homes_[value].push_back({{}, new_buffer(Where::Input, 0, static_cast<int>(i))});
  }
  for (const Op& op : engine.ops_) {
    planned_ = op.output;
    op.plan(*this, op);
  }
  for (size_t i = 0; i < engine.outputs_.size(); ++i) {
    planned_ = engine.outputs_[i];
    const int from = need(engine.outputs_[i], {});
    const Buffer& home = buffers_[from];
    if (home.where == Where::Output && home.number == static_cast<int>(i)) continue;
    const int to = new_buffer(Where::Output, 0, static_cast<int>(i));
    const size_t size = size_t(n) * engine.shapes_[engine.outputs_[i]].numel() * sizeof(float);
    add({1, 0, {from}, {to}, [=](char* const* b, int, char*) { std::memcpy(b[to], b[from], size); }});
  }
  place_buffers();
}

Image Schedule::image(int value) const {
  const Shape s = engine_.shapes_[value];
  return {n_, s.c, s.h, s.w};
}

size_t Schedule::bytes(const Image& image, const Layout& layout) const {
  if (layout.flat()) return size_t(image.n) * image.c * image.h * image.w * sizeof(float);
  return size_t(layout.groups(image.n)) * image.c * layout.channel_vectors() * kernels().vector_bytes;
}

int Schedule::new_buffer(Where where, size_t bytes, int number) {
  buffers_.push_back({where, bytes, number, 0});
  return static_cast<int>(buffers_.size()) - 1;
}

int Schedule::temporary(size_t bytes) { return new_buffer(Where::Arena, bytes); }

int Schedule::give(int value, const Layout& layout) {
  int buffer = -1;
  const auto& outputs = engine_.outputs_;
  const auto found = std::find_if(outputs.begin(), outputs.end(), [&](int output) {
    for (auto view = engine_.views_.find(output); view != engine_.views_.end(); view = engine_.views_.find(output))
      output = view->second;
    return output == value;
  });
  if (layout.flat() && found != outputs.end())
    buffer = new_buffer(Where::Output, 0, static_cast<int>(found - outputs.begin()));
  else
    buffer = new_buffer(Where::Arena, bytes(image(value), layout));
  homes_[value].push_back({layout, buffer});
  return buffer;
}

void Schedule::alias(int value, int other) { homes_[value].push_back({{}, need(other, {})}); }

const Layout* Schedule::lanes_of(int value, int lanes) const {
  for (const Home& home : homes_[value])
    if (home.layout.lanes() == lanes) return &home.layout;
  return nullptr;
}

int Schedule::need(int value, const Layout& layout) {
  for (const Home& home : homes_[value])
    if (home.layout == layout) return home.buffer;
  if (layout.flat()) {
    const Home from = homes_[value].front();
    const int to = give(value, layout);
    add_exchange(lane_view(image(value), from.layout), from.buffer, to, false, quant(value));
    return to;
  }
  const int from = need(value, {});
  const int to = give(value, layout);
  add_exchange(lane_view(image(value), layout), from, to, true, quant(value));
  return to;
}

LaneView Schedule::lane_view(const Image& i, const Layout& l) const {
  const ptrdiff_t plane = ptrdiff_t(i.h) * i.w;
  return {l.images, l.rows, l.cols, l.tile_h, l.tile_w, l.channel_vectors(), i.n, i.c, i.h, i.w, plane * i.c, plane, i.w, 1};
}

void Schedule::add_exchange(const LaneView& view, int from, int to, bool into_lanes, const Quant& quant) {
  const int groups = (view.n + view.images - 1) / view.images;
  const int worthwhile = 1 + view.images * view.c * view.h * view.w / kExchangeTask;
  const int parts = std::clamp(std::min(4 * threads() / groups, worthwhile), 1, view.c);
  const Kernels* k = &kernels();
  const int count = view.images * view.rows * view.cols;
  const bool narrow = count == lanes(Lane::Byte), half = count == lanes(Lane::Half);
  add({groups * parts, 0, {from}, {to}, [=](char* const* b, int task, char*) {
         const int group = task / parts, part = task % parts;
         const int begin = view.c * part / parts, end = view.c * (part + 1) / parts;
         if (narrow && into_lanes)
           k->to_narrow_lanes(view, reinterpret_cast<const float*>(b[from]), b[to], group, begin, end, quant);
         else if (narrow)
           k->from_narrow_lanes(view, b[from], reinterpret_cast<float*>(b[to]), group, begin, end, quant);
         else if (into_lanes)
           (half ? k->to_half_lanes : k->to_lanes)(view, reinterpret_cast<const float*>(b[from]), b[to], group, begin, end);
         else
           (half ? k->from_half_lanes : k->from_lanes)(view, b[from], reinterpret_cast<float*>(b[to]), group, begin, end);
       }, {}, into_lanes ? "to lanes" : "from lanes"});
}

// First fit, in the order of birth; a buffer is free again after its last reader.
void Schedule::place_buffers() {
  std::vector<int> birth(buffers_.size(), -1), death(buffers_.size(), -1);
  for (size_t s = 0; s < steps_.size(); ++s) {
    for (int b : steps_[s].writes) {
      if (birth[b] < 0) birth[b] = static_cast<int>(s);
      death[b] = static_cast<int>(s);
    }
    for (int b : steps_[s].reads) death[b] = static_cast<int>(s);
    scratch_bytes_ = std::max(scratch_bytes_, steps_[s].scratch_bytes);
  }
  std::vector<int> order;
  for (size_t b = 0; b < buffers_.size(); ++b)
    if (buffers_[b].where == Where::Arena && birth[b] >= 0) order.push_back(static_cast<int>(b));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return birth[a] < birth[b]; });
  std::vector<int> placed;
  for (int b : order) {
    std::vector<std::pair<size_t, size_t>> taken;
    for (int other : placed)
      if (death[other] >= birth[b] && birth[other] <= death[b])
        taken.emplace_back(buffers_[other].offset, buffers_[other].offset + aligned(buffers_[other].bytes));
    std::sort(taken.begin(), taken.end());
    size_t offset = 0;
    for (const auto& [begin, end] : taken) {
      if (begin >= offset + aligned(buffers_[b].bytes)) break;
      offset = std::max(offset, end);
    }
    buffers_[b].offset = offset;
    arena_bytes_ = std::max(arena_bytes_, offset + aligned(buffers_[b].bytes));
    placed.push_back(b);
  }
}

double Schedule::cost_per_image() const {
  // Measured: each doubling of the arena beyond the second-level cache costs about a twentieth.
  const double excess = std::log2(std::max(1.0, double(arena_bytes_) / kNearBytes));
  return cost_ / n_ * (1 + 0.05 * excess);
}

std::vector<char*> Schedule::bind(char* arena, const std::vector<const float*>& inputs,
                                  const std::vector<float*>& outputs) const {
  std::vector<char*> pointers;
  for (const Buffer& buffer : buffers_) {
    // Inputs are only ever read: no step lists an input among what it writes.
    if (buffer.where == Where::Input)
      pointers.push_back(reinterpret_cast<char*>(const_cast<float*>(inputs[buffer.number])));
    else if (buffer.where == Where::Output)
      pointers.push_back(reinterpret_cast<char*>(outputs[buffer.number]));
    else
      pointers.push_back(arena + buffer.offset);
  }
  return pointers;
}

}  // namespace tersify
