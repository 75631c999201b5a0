#include "engine/schedule.hpp"

#include <algorithm>
#include <climits>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace tersify {
namespace {

size_t aligned(size_t bytes) { return AlignedBytes::rounded(bytes); }

constexpr double kNearBytes = 2 << 20;
constexpr int kExchangeTask = 1 << 10;  // numbers: fewer change their layout before another thread has come

}  // namespace

Schedule::Schedule(const Engine& engine, int parts, int of, int threads)
    : engine_(engine), parts_(parts), of_(of), threads_(threads), homes_(engine.values_.size()) {
  for (size_t value = 0; value < engine.values_.size(); ++value)
    if (int64_t(items(int(value))) * engine.values_[value].shape.numel() > INT_MAX)
      throw std::invalid_argument("a value of more than 2^31 numbers cannot be computed at once; run smaller batches");
  for (size_t i = 0; i < engine.inputs_.size(); ++i) {
    const int value = engine.inputs_[i];
    homes_[value].push_back({{}, new_buffer(Where::Input, 0, static_cast<int>(i))});
  }
  for (const Op& op : engine.ops_) {
    planned_ = op.output;
    if (has(op.output)) continue;  // part of an operation before it
    Op both = op;
    if (const Op* prelu = engine.prelu_behind(op)) {
      both.output = prelu->output;
      both.slopes = prelu->slopes;
    }
    op.plan(*this, both);
  }
  for (size_t i = 0; i < engine.outputs_.size(); ++i) {
    planned_ = engine.outputs_[i];
    const int from = buffer_of(engine.outputs_[i], {});
    const Buffer& home = buffers_[from];
    if (home.where == Where::Output && home.number == static_cast<int>(i)) continue;
    const int to = new_buffer(Where::Output, 0, static_cast<int>(i));
    const size_t size = bytes(image(engine.outputs_[i]), {});
    Step copy("copy");
    copy.tasks = 1;
    copy.reads = {from};
    copy.writes = {to};
    copy.run = [=](char* const* b, int, char*) { std::memcpy(b[to], b[from], size); };
    add(std::move(copy));
  }
  place_buffers();
}

Image Schedule::image(int value) const {
  const Shape s = engine_.values_[value].shape;
  return {items(value), s.c, s.h, s.w};
}

size_t Schedule::bytes(const Image& image, const Layout& layout) const {
  if (layout.flat() || layout.pixels) return size_t(image.n) * image.c * image.h * image.w * sizeof(float);
  return size_t(layout.groups(image.n)) * image.c * layout.channel_vectors() * kernels().vector_bytes;
}

int Schedule::new_buffer(Where where, size_t bytes, int number) {
  buffers_.push_back({where, bytes, number, 0});
  return static_cast<int>(buffers_.size()) - 1;
}

int Schedule::temporary(size_t bytes) { return new_buffer(Where::Arena, bytes); }

int Schedule::new_buffer_for(int value, const Layout& layout) {
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

void Schedule::alias(int value, int other) { homes_[value].push_back({{}, buffer_of(other, {})}); }

const Layout* Schedule::lanes_of(int value, int lanes) const {
  for (const Home& home : homes_[value])
    if (home.layout.lanes() == lanes) return &home.layout;
  return nullptr;
}

bool Schedule::lies(int value, const Layout& layout) const {
  for (const Home& home : homes_[value])
    if (home.layout == layout) return true;
  return false;
}

Layout Schedule::pixels(int value) const {
  const Shape shape = engine_.values_[value].shape;
  Layout layout;
  layout.pixels = shape.c > 1 && shape.h * shape.w > 1;  // else it lies so already
  return layout;
}

int Schedule::buffer_of(int value, const Layout& layout) {
  for (const Home& home : homes_[value])
    if (home.layout == layout) return home.buffer;
  if (layout.flat()) {
    const Home from = homes_[value].front();
    const int to = new_buffer_for(value, layout);
    if (from.layout.pixels)
      add_swap(image(value), from.buffer, to, false);
    else
      add_exchange(lane_view(image(value), from.layout), from.buffer, to, false, quant(value));
    return to;
  }
  const int from = buffer_of(value, {});
  const int to = new_buffer_for(value, layout);
  if (layout.pixels)
    add_swap(image(value), from, to, true);
  else
    add_exchange(lane_view(image(value), layout), from, to, true, quant(value));
  return to;
}

LaneView Schedule::lane_view(const Image& i, const Layout& l) const {
  const ptrdiff_t plane = ptrdiff_t(i.h) * i.w;
  return {.images = l.images,
          .rows = l.rows,
          .cols = l.cols,
          .tile_h = l.tile_h,
          .tile_w = l.tile_w,
          .channel_vectors = l.channel_vectors(),
          .n = i.n,
          .c = i.c,
          .h = i.h,
          .w = i.w,
          .stride_n = plane * i.c,
          .stride_c = plane,
          .stride_y = i.w,
          .stride_x = 1};
}

void Schedule::add_exchange(const LaneView& view, int from, int to, bool into_lanes, const Quant& quant) {
  const int groups = (view.n + view.images - 1) / view.images;
  const int worthwhile =
      1 + int(std::min<int64_t>(INT_MAX / 2, int64_t(view.images) * view.c * view.h * view.w / kExchangeTask));
  const int parts = std::clamp(std::min(4 * threads() / groups, worthwhile), 1, view.c);
  const Kernels* k = &kernels();
  const int count = view.images * view.rows * view.cols;
  const bool int8 = count == lanes(Lane::I8), fp16 = count == lanes(Lane::F16);
  Step step(into_lanes ? "to lanes" : "from lanes");
  step.tasks = groups * parts;
  step.reads = {from};
  step.writes = {to};
  step.run = [=](char* const* b, int task, char*) {
    const int group = task / parts, part = task % parts;
    const int begin = view.c * part / parts, end = view.c * (part + 1) / parts;
    if (int8 && into_lanes)
      k->to_lanes_i8(view, reinterpret_cast<const float*>(b[from]), b[to], group, begin, end, quant);
    else if (int8)
      k->from_lanes_i8(view, b[from], reinterpret_cast<float*>(b[to]), group, begin, end, quant);
    else if (into_lanes)
      (fp16 ? k->to_lanes_f16 : k->to_lanes)(view, reinterpret_cast<const float*>(b[from]), b[to], group, begin, end);
    else
      (fp16 ? k->from_lanes_f16 : k->from_lanes)(view, b[from], reinterpret_cast<float*>(b[to]), group, begin, end);
  };
  add(std::move(step));
}

void Schedule::add_swap(const Image& image, int from, int to, bool into_pixels) {
  const int plane = image.h * image.w, rows = into_pixels ? image.c : plane, columns = into_pixels ? plane : image.c;
  Step step(into_pixels ? "to pixels" : "from pixels");
  step.tasks = image.n;
  step.reads = {from};
  step.writes = {to};
  step.run = [=, k = &kernels()](char* const* b, int item, char*) {
    const size_t at = size_t(item) * rows * columns;
    k->swap_axes(reinterpret_cast<const float*>(b[from]) + at, rows, columns, reinterpret_cast<float*>(b[to]) + at);
  };
  add(std::move(step));
}

std::vector<Schedule::Lifetime> Schedule::lifetimes() const {
  std::vector<Lifetime> found(buffers_.size());
  for (int step = 0; step < static_cast<int>(steps_.size()); ++step) {
    for (int buffer : steps_[step].writes) {
      if (found[buffer].birth < 0) found[buffer].birth = step;
      found[buffer].death = step;
    }
    for (int buffer : steps_[step].reads) found[buffer].death = step;
  }
  return found;
}

// First fit, in the order of birth; a buffer is free again after its last reader.
void Schedule::place_buffers() {
  const std::vector<Lifetime> lives = lifetimes();
  std::vector<int> order;
  for (size_t b = 0; b < buffers_.size(); ++b)
    if (buffers_[b].where == Where::Arena && lives[b].birth >= 0) order.push_back(static_cast<int>(b));
  std::stable_sort(order.begin(), order.end(), [&](int a, int b) { return lives[a].birth < lives[b].birth; });
  std::vector<int> placed;
  for (int b : order) {
    std::vector<std::pair<size_t, size_t>> taken;
    for (int other : placed)
      if (lives[other].meets(lives[b]))
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
  for (const Step& step : steps_) scratch_bytes_ = std::max(scratch_bytes_, step.scratch_bytes);
}

Schedule::Prepared::Prepared(const Schedule& schedule) : schedule_(schedule) {
  try {
    for (const Step& step : schedule_.steps_)
      if (step.prepare) step.prepare();
  } catch (...) {
    release();
    throw;
  }
}

Schedule::Prepared::~Prepared() { release(); }

void Schedule::Prepared::release() const {
  for (const Step& step : schedule_.steps_)
    if (step.release) step.release();
}

double Schedule::cost() const {
  // Measured: each doubling of the arena beyond the second-level cache costs about a twentieth.
  const double excess = std::log2(std::max(1.0, double(arena_bytes_) / kNearBytes));
  return cost_ * (1 + 0.05 * excess);
}

std::vector<char*> Schedule::bind(char* arena, const std::vector<const char*>& inputs,
                                  const std::vector<char*>& outputs) const {
  std::vector<char*> pointers;
  for (const Buffer& buffer : buffers_) {
    // Inputs are only ever read: no step lists an input among what it writes.
    if (buffer.where == Where::Input)
      pointers.push_back(const_cast<char*>(inputs[buffer.number]));
    else if (buffer.where == Where::Output)
      pointers.push_back(outputs[buffer.number]);
    else
      pointers.push_back(arena + buffer.offset);
  }
  return pointers;
}

}  // namespace tersify
