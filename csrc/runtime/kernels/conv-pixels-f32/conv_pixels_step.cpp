#include "kernels/conv-pixels-f32/conv_pixels_step.hpp"

#include <algorithm>

namespace tersify {
namespace {

constexpr int kTasks = 4;            // a thread
constexpr int kTaskPositions = 64;   // at least: fewer read the weights too often

float* image_at(char* buffer, const Image& image, int item) {
  return reinterpret_cast<float*>(buffer) + size_t(item) * image.c * image.h * image.w;
}

}  // namespace

void add_pixel_conv(Schedule& s, PixelConvStep conv) {
  const int positions = conv.out.h * conv.out.w, items = conv.out.n, blocks = conv.weights->blocks();
  // One thread takes an image at once; several share its positions where there are few blocks.
  const int wanted = s.threads() == 1 ? 1 : (kTasks * s.threads() + items * blocks - 1) / (items * blocks);
  const int parts = std::clamp(wanted, 1, std::max(1, positions / kTaskPositions));
  const auto zeros = std::make_shared<std::vector<float>>(conv.runs->length);
  Step step("pixels");
  step.tasks = blocks * items * parts;
  step.reads = {conv.source};
  if (conv.residual >= 0) step.reads.push_back(conv.residual);
  step.writes = {conv.target};
  step.run = [=, k = &s.kernels()](char* const* b, int task, char*) {
    const int part = task % parts, item = task / parts % items, block = task / parts / items;
    PixelConvTask t{};
    t.weights = conv.weights->block(block);
    t.input = image_at(b[conv.source], conv.in, item);
    t.starts = conv.runs->starts.data();
    t.zeros = zeros->data();
    t.runs = conv.runs->runs;
    t.length = conv.runs->length;
    t.positions = positions;
    t.first = int(int64_t(positions) * part / parts);
    t.last = int(int64_t(positions) * (part + 1) / parts);
    t.first_row = conv.weights->first_row(block);
    t.rows = conv.weights->rows_of(block);
    t.channels = conv.out.c;
    t.residual = conv.residual < 0 ? nullptr : image_at(b[conv.residual], conv.out, item);
    t.output = image_at(b[conv.target], conv.out, item);
    t.epilogue = conv.epilogue->view();
    k->conv_pixels_f32(t);
  };
  s.add(std::move(step));
  s.add_cost(double(items) * conv.weights->cost(positions));
}

void add_mean(Schedule& s, const Image& image, int source, int target, bool pixels,
              std::shared_ptr<const Epilogue> epilogue) {
  Step step("mean");
  step.tasks = image.n;
  step.reads = {source};
  step.writes = {target};
  step.run = [=, mean = pixels ? s.kernels().mean_pixels : s.kernels().mean_planes](char* const* b, int item, char*) {
    mean(image_at(b[source], image, item), image.h * image.w, image.c,
         reinterpret_cast<float*>(b[target]) + size_t(item) * image.c, epilogue->view());
  };
  s.add(std::move(step));
}

}  // namespace tersify
