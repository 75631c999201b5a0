// Means of whole channels, as steps.
#include <memory>

#include "kernels/conv-pixels-f32/conv_pixels_step.hpp"

namespace tersify {

int Engine::global_mean(int in, Epilogue epilogue) {
  const Shape i = at(in).shape;
  auto constants = std::make_shared<Epilogue>(epilogue.checked(i.c).folded());
  return add({in}, Shape{i.c, 1, 1}, [=](Schedule& s, const Op& op) {
    const Image image = s.image(in);
    const bool pixels = s.pixels(in).pixels && s.lies(in, s.pixels(in));
    if (pixels || s.in_order()) {  // lanes are added in an order of their own
      const int flat_or_pixels = s.buffer_of(in, pixels ? s.pixels(in) : Layout{});
      return add_mean(s, image, flat_or_pixels, s.new_buffer_for(op.output, {}), pixels, constants);
    }
    const Layout* current = s.lanes_of(in, s.lanes());
    const Layout layout = current ? *current : choose_layout(image, s.lanes(), s.kernels().patch_limit);
    const int source = s.buffer_of(in, layout), target = s.new_buffer_for(op.output, {});
    const LaneView view = s.lane_view(image, layout);
    const Kernels* k = &s.kernels();
    Step step("mean");
    step.tasks = layout.groups(image.n);
    step.reads = {source};
    step.writes = {target};
    step.run = [=](char* const* b, int group, char*) {
      k->global_mean(view, b[source], reinterpret_cast<float*>(b[target]), group, constants->view());
    };
    s.add(std::move(step));
  });
}

}  // namespace tersify
