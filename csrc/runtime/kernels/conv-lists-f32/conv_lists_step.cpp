#include "kernels/conv-lists-f32/conv_lists_step.hpp"

#include <algorithm>
#include <cmath>

namespace tersify {
namespace {

constexpr size_t kSumsBytes = 160 << 10;

int ceil_div(int a, int b) { return (a + b - 1) / b; }

auto kernel_of(const Kernels& k, Lane lane, LaneForm form) {
  return form == LaneForm::Dense   ? k.conv_dense_f32
         : form == LaneForm::Pairs ? k.conv_pairs_f32
         : lane == Lane::I8  ? k.conv_lists_i8
         : lane == Lane::F16 ? k.conv_lists_f16
                             : k.conv_lists_f32;
}

auto scratch_of(const Kernels& k, Lane lane) {
  return lane == Lane::I8    ? k.conv_lists_i8_scratch_bytes
         : lane == Lane::F16 ? k.conv_lists_f16_scratch_bytes
                             : k.conv_lists_f32_scratch_bytes;
}

}  // namespace

ConvTask ConvStep::task(char* const* buffers, int number, char* scratch) const {
  const int bytes = kernels->vector_bytes, ranges = static_cast<int>(splits.size()) - 1;
  const int range = number % ranges, rest = number / ranges;
  const int positions = static_cast<int>(geometry.positions.size());
  const Geometry::Position& position = geometry.positions[rest % positions];
  const int group = rest / positions;
  ConvTask t{};
  weights->fill(t, lists.get());
  t.patch = geometry.view(position, bytes);
  t.chunk_begin = splits[range];
  t.chunk_end = splits[range + 1];
  t.epilogue = epilogue->view();
  t.input_channel_bytes = size_t(from.channel_vectors()) * bytes;
  t.output_channel_bytes = size_t(to.channel_vectors()) * bytes;
  t.output_row_bytes = size_t(to.tile_w) * bytes;
  t.pool_h = pool_h;
  t.pool_w = pool_w;
  t.pooled_channel_bytes = size_t(pooled_layout(to, pool_h, pool_w).channel_vectors()) * bytes;
  t.pooled_row_bytes = size_t(to.tile_w / pool_w) * bytes;
  t.fill = input_quant.low < 0 ? kByteZero : 0;
  t.residual_quant = residual_quant;
  t.output_quant = output_quant;
  t.byte_epilogues = byte_epilogues.data();
  t.scratch = scratch;
  if (!buffers) return t;
  const size_t at = group * t.output_channel_bytes * out.c + (size_t(position.y) * to.tile_w + position.x) * bytes;
  t.input = buffers[source] + group * t.input_channel_bytes * in.c;
  t.residual = residual < 0 ? nullptr : buffers[residual] + at;
  if (pool_h * pool_w > 1) {
    const size_t pooled = size_t(position.y / pool_h) * (to.tile_w / pool_w) + position.x / pool_w;
    t.output = buffers[target] + group * t.pooled_channel_bytes * out.c + pooled * bytes;
    return t;
  }
  if (!mean) {
    t.output = buffers[target] + at;
    return t;
  }
  const int images = std::min(to.images, out.n - group * to.images);
  const size_t place = size_t(rest % positions) * out.n * out.c + size_t(group) * to.images * out.c;
  const bool whole = lane == Lane::I8;
  t.mean = {.sums = whole ? nullptr : reinterpret_cast<float*>(buffers[target]) + place,
            .totals = whole ? reinterpret_cast<int64_t*>(buffers[target]) + place : nullptr,
            .steps = mean_steps.data(),
            .image_stride = size_t(out.c),
            .images = images,
            .grid = to.rows * to.cols,
            .cols = to.cols,
            .tile_h = to.tile_h,
            .tile_w = to.tile_w,
            .h = out.h,
            .w = out.w,
            .top = position.y,
            .left = position.x,
            .fraction = 1.0f / (float(out.h) * out.w),
            .epilogue = mean->view()};
  return t;
}

void ConvStep::split(int groups, int threads) {
  const int positions = groups * static_cast<int>(geometry.positions.size());
  const int sums = lane == Lane::F32 ? 1 : lane == Lane::I8 ? 2 : 3;  // vectors that a position may wait in
  const size_t row_bytes = size_t(geometry.patch.h) * geometry.patch.w * kernels->vector_bytes * sums;
  int ranges = static_cast<int>((weights->rows() * row_bytes + kSumsBytes - 1) / kSumsBytes);
  if (threads > 1) ranges = std::max(ranges, ceil_div(kTasksPerThread * threads, positions));
  ranges = std::min(ranges, weights->chunks());
  for (int r = 0; r <= ranges; ++r) splits.push_back(weights->chunks() * r / ranges);
}

int ConvStep::patch_limit(const Schedule& s) const {
  const int limit = s.patch_limit(to.lanes());
  switch (weights->form()) {
    case LaneForm::Dense:
      return std::min(kDensePatch, limit);
    case LaneForm::Pairs:
      return limit / 2;  // two rows' patches
    default:
      return limit;
  }
}

void add_conv(Schedule& s, ConvStep step, const Window& window) {
  const Kernels& k = s.kernels();
  step.kernels = &k;
  step.geometry = make_geometry(step.in, step.from, step.to, window, step.patch_limit(s),
                                step.weights->block_channels(), k.vector_bytes);
  const int groups = step.to.groups(step.out.n);
  s.add_cost(layout_cost(step.to, step.out.n, step.patch_limit(s)) *
             double(step.weights->products() + step.weights->rows()));
  step.split(groups, s.threads());
  auto shared = std::make_shared<ConvStep>(std::move(step));
  Step out(shared->weights->kernel_name());
  out.tasks = groups * static_cast<int>(shared->geometry.positions.size() * (shared->splits.size() - 1));
  const auto scratch_bytes = scratch_of(k, shared->lane);
  for (size_t r = 0; r + 1 < shared->splits.size(); ++r)
    out.scratch_bytes = std::max(out.scratch_bytes, scratch_bytes(shared->task(nullptr, int(r), nullptr)));
  out.prepare = [shared] { shared->lists = shared->weights->lists_for(shared->geometry.tap_positions); };
  out.release = [shared] { shared->lists = nullptr; };
  out.reads = {shared->source};
  if (shared->residual >= 0) out.reads.push_back(shared->residual);
  out.writes = {shared->target};
  out.run = [shared, kernel = kernel_of(k, shared->lane, shared->weights->form())](
                char* const* buffers, int task, char* scratch) { kernel(shared->task(buffers, task, scratch)); };
  s.add(std::move(out));
}

void add_mean_conv(Schedule& s, ConvStep step, const Window& window, const Epilogue& mean) {
  const int patches = patch_count(step.to, step.patch_limit(s)), target = step.target;
  auto epilogue = std::make_shared<Epilogue>(mean);
  if (patches == 1) {
    step.mean = std::move(epilogue);
    return add_conv(s, std::move(step), window);
  }
  const int rows = step.out.n, channels = step.out.c;
  const int parts = s.temporary(size_t(patches) * rows * channels * sizeof(float));
  step.target = parts;
  step.mean = std::make_shared<Epilogue>();
  add_conv(s, std::move(step), window);
  const Kernels* k = &s.kernels();
  Step add_up("mean");
  add_up.tasks = 1;
  add_up.reads = {parts};
  add_up.writes = {target};
  add_up.run = [=](char* const* b, int, char*) {
    float* sums = reinterpret_cast<float*>(b[parts]);
    const size_t count = size_t(rows) * channels;
    for (int p = 1; p < patches; ++p)
      for (size_t i = 0; i < count; ++i) sums[i] += sums[p * count + i];
    float* out = reinterpret_cast<float*>(b[target]);
    for (int r = 0; r < rows; ++r)
      k->elementwise_rows(out + r * channels, sums + r * channels, nullptr, false, channels, epilogue->view());
  };
  s.add(std::move(add_up));
}

void add_mean_conv_i8(Schedule& s, ConvStep step, const Window& window, const Epilogue& mean) {
  const int patches = patch_count(step.to, step.patch_limit(s)), target = step.target;
  const int rows = step.out.n, channels = step.out.c;
  const int parts = s.temporary(size_t(patches) * rows * channels * sizeof(int64_t));
  const float fraction = 1.0f / (float(step.out.h) * step.out.w);
  std::vector<float> fractions;  // a power of two: no second rounding
  for (const float steps : step.mean_steps) fractions.push_back(steps > 0 ? fraction / steps : NAN);
  step.target = parts;
  step.mean = std::make_shared<Epilogue>();
  add_conv(s, std::move(step), window);
  Step add_up("mean");
  add_up.tasks = rows;
  add_up.reads = {parts};
  add_up.writes = {target};
  add_up.run = [=, k = &s.kernels(), fractions = std::move(fractions)](char* const* b, int row, char*) {
    const size_t count = size_t(rows) * channels, first = size_t(row) * channels;
    const int64_t* totals = reinterpret_cast<int64_t*>(b[parts]) + first;
    float* out = reinterpret_cast<float*>(b[target]) + first;
    for (int c = 0; c < channels; ++c) {
      int64_t total = 0;
      for (int p = 0; p < patches; ++p) total += totals[p * count + c];
      out[c] = static_cast<float>(total) * fractions[c];
    }
    k->elementwise_rows(out, out, nullptr, false, channels, mean.view());
  };
  s.add(std::move(add_up));
}

}  // namespace tersify
