// One part of the items: where every value lives, in which layout, and the steps in order.
#pragma once

#include <vector>

#include "engine/engine.hpp"
#include "layout/pixel_runs.hpp"

namespace tersify {

class Schedule {
 public:
  // Steps for `parts` of the `of` equal parts of every value's items, each step cut for `threads`.
  Schedule(const Engine& engine, int parts, int of, int threads);

  // For the operations.
  int items(int value) const { return engine_.values_[value].items / of_ * parts_; }
  const Kernels& kernels() const { return engine_.workspace().kernels(); }
  int threads() const { return threads_; }
  bool in_order() const { return engine_.workspace().in_order(); }
  void add_cost(double vector_operations) { cost_ += vector_operations; }
  int lanes(Lane lane = Lane::F32) const { return kernels().vector_bytes / int(lane); }
  // Vectors of outputs that a patch may hold: byte lanes have two sums each.
  int patch_limit(int lanes) const { return kernels().patch_limit / (lanes == this->lanes(Lane::I8) ? 2 : 1); }
  Image image(int value) const;
  int buffer_of(int value, const Layout& layout);       // the buffer that holds `value` so; converts where none does
  int new_buffer_for(int value, const Layout& layout);  // a new buffer for `value`
  int temporary(size_t bytes);
  bool has(int value) const { return !homes_[value].empty(); }
  bool lies(int value, const Layout& layout) const;    // whether the value already lies so
  Layout pixels(int value) const;                      // pixel by pixel, for this value
  const Layout* lanes_of(int value, int lanes) const;  // such a layout that the value already has, or null
  const Quant& quant(int value) const { return engine_.values_[value].quant; }
  void alias(int value, int other);  // the same flat bytes under another shape
  void add(Step step) {
    step.value = planned_;
    steps_.push_back(std::move(step));
  }
  LaneView lane_view(const Image& image, const Layout& layout) const;
  void add_exchange(const LaneView& view, int from, int to, bool into_lanes, const Quant& quant = {});
  size_t bytes(const Image& image, const Layout& layout) const;
  KnownRuns& known_runs() { return known_runs_; }

  // For the engine.
  size_t arena_bytes() const { return arena_bytes_; }
  size_t scratch_bytes() const { return scratch_bytes_; }
  double cost() const;  // to compare sizes of portions; the unit means nothing
  std::vector<char*> bind(char* arena, const std::vector<const char*>& inputs, const std::vector<char*>& outputs) const;
  const std::vector<Step>& steps() const { return steps_; }
  // For as long as it lives, the steps have what they must ask for before a run.
  class Prepared {
   public:
    explicit Prepared(const Schedule& schedule);
    ~Prepared();
    Prepared(const Prepared&) = delete;
    Prepared& operator=(const Prepared&) = delete;

   private:
    void release() const;
    const Schedule& schedule_;
  };

 private:
  enum class Where { Arena, Input, Output };
  struct Buffer {
    Where where;
    size_t bytes;
    int number;  // of the input or output
    size_t offset;
  };
  struct Home {
    Layout layout;
    int buffer;
  };
  int new_buffer(Where where, size_t bytes, int number = 0);
  void add_swap(const Image& image, int from, int to, bool into_pixels);
  struct Lifetime {  // first and last step that touches a buffer
    int birth = -1, death = -1;
    bool meets(const Lifetime& other) const { return death >= other.birth && birth <= other.death; }
  };
  std::vector<Lifetime> lifetimes() const;
  void place_buffers();

  const Engine& engine_;
  int parts_, of_, threads_;
  std::vector<Buffer> buffers_;
  std::vector<std::vector<Home>> homes_;
  std::vector<Step> steps_;
  KnownRuns known_runs_;
  size_t arena_bytes_ = 0, scratch_bytes_ = 0;
  double cost_ = 0;
  int planned_ = -1;  // the output of the operation whose steps are being added
};

}  // namespace tersify
