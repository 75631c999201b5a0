#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "schedule.hpp"

namespace tersify {
namespace {

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
#if defined(TERSIFY_FP16)
  if (isa == Isa::Amx) return amx_kernels(adds_halves(isa) ? fp16_kernels() : avx512_kernels());
  if (isa == Isa::Avx512Fp16) return fp16_kernels();
#else
  if (isa == Isa::Amx) return amx_kernels(avx512_kernels());
#endif
  if (isa == Isa::Avx512Vnni) return vnni_kernels();
  if (isa == Isa::Avx512) return avx512_kernels();
  if (isa == Isa::Avx2) return avx2_kernels();
#endif
  (void)isa;
  return portable_kernels();
}

constexpr int kPortionsPerThread = 2;  // so that a thread that lost its core does not hold up the rest
constexpr int kMaxPortion = 64;

// Adds the time from its birth to its death where somebody wants it.
class Stopwatch {
 public:
  explicit Stopwatch(double* microseconds) : into_(microseconds) {
    if (into_) start_ = Clock::now();
  }
  ~Stopwatch() {
    if (into_) *into_ += std::chrono::duration<double, std::micro>(Clock::now() - start_).count();
  }

 private:
  using Clock = std::chrono::steady_clock;
  double* into_;
  Clock::time_point start_;
};

}  // namespace

Finish FinishData::view() const {
  auto data = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  return {data(scale), data(shift), data(scale2), data(shift2), act, low, high};
}

Engine::Engine(Isa isa, int threads) : isa_(isa), kernels_(kernels_of(isa)), pool_(threads), arenas_(threads), scratch_(threads) {}

Engine::~Engine() = default;

int Engine::input(Shape shape) {
  shapes_.push_back(shape);
  quants_.emplace_back();
  inputs_.push_back(static_cast<int>(shapes_.size()) - 1);
  return inputs_.back();
}

int Engine::add(std::vector<int> inputs, Shape shape, std::function<void(Schedule&, const Op&)> plan) {
  for (int value : inputs) shapes_.at(value);  // throws for a value that does not exist
  shapes_.push_back(shape);
  quants_.emplace_back();
  const int output = static_cast<int>(shapes_.size()) - 1;
  ops_.push_back({std::move(inputs), output, -1, {}, std::move(plan)});
  return output;
}

std::shared_ptr<SparseWeights> Engine::pack(const DenseWeight& weight, const Window& window, const Shape& output,
                                            ValueKind kind, std::vector<float> table, Lane lane) {
  // The block must suit every batch size; a few images in the lanes are the usual portion.
  const bool narrow = lane == Lane::Byte;
  const int lanes = kernels_.vector_bytes / int(lane), images = std::max(1, lanes / 8);
  const int limit = kernels_.patch_limit / (narrow ? 2 : 1);
  const Layout usual = choose_layout({images, output.c, output.h, output.w}, lanes, limit);
  int block = choose_block(window, weight.channels, kernels_.vector_bytes, choose_patch(usual, limit), narrow);
  if (narrow) block = narrow_block(weight, block);
  auto packed = std::make_shared<SparseWeights>(weight, kind, std::move(table), block, lane);
  weight_sizes_.push_back([packed] { return packed->resident_bytes(); });
  return packed;
}

const Schedule& Engine::schedule(int n, int threads) {
  auto& found = schedules_[{n, threads}];
  if (!found) found = std::make_unique<Schedule>(*this, n, threads);
  return *found;
}

// How many images a thread takes through the whole network at once: as many as fill the vectors, as few as
// keep their activations near the core. 0: too few images to give every thread its own.
int Engine::portion(int n) {
  const auto known = portions_.find(n);
  if (known != portions_.end()) return known->second;
  int best = 0;
  double best_cost = 0;
  const int limit = std::max(1, n / (kPortionsPerThread * threads()));
  for (int m = 1; m <= limit && m <= kMaxPortion && n >= threads(); m *= 2) {
    const double cost = schedule(m, 1).cost_per_image();
    if (!best || cost < best_cost) {
      best = m;
      best_cost = cost;
    }
  }
  return portions_[n] = best;
}

template <class T>
std::vector<T*> Engine::skip_images(const std::vector<T*>& pointers, const std::vector<int>& values,
                                    int images) const {
  std::vector<T*> moved;
  for (size_t i = 0; i < pointers.size(); ++i)
    moved.push_back(pointers[i] + size_t(images) * shapes_[values[i]].numel());
  return moved;
}

// Every thread takes portions through all the steps: nobody waits, and activations stay near their core.
void Engine::run_portions(int count, int portion, const std::vector<const float*>& inputs,
                          const std::vector<float*>& outputs, std::vector<StepTime>* profile) {
  const Schedule& plan = schedule(portion, 1);
  plan.prepare();
  for (AlignedBytes& arena : arenas_) arena.grow(plan.arena_bytes());
  for (AlignedBytes& scratch : scratch_) scratch.grow(plan.scratch_bytes());
  const std::vector<Step>& steps = plan.steps();
  std::vector<double> spent(profile ? steps.size() * threads() : 0);
  pool_.run(count, [&](int number, int thread) {
    const auto pointers = plan.bind(arenas_[thread].data(), skip_images(inputs, inputs_, number * portion),
                                    skip_images(outputs, outputs_, number * portion));
    for (size_t s = 0; s < steps.size(); ++s) {
      const Stopwatch watch(profile ? &spent[thread * steps.size() + s] : nullptr);
      for (int task = 0; task < steps[s].tasks; ++task) steps[s].run(pointers.data(), task, scratch_[thread].data());
    }
  });
  for (size_t i = 0; i < spent.size(); ++i) {
    const Step& step = steps[i % steps.size()];
    profile->push_back({step.value, step.kernel, spent[i] / threads()});
  }
}

// All threads share each step.
void Engine::run_together(int n, const std::vector<const float*>& inputs, const std::vector<float*>& outputs,
                          std::vector<StepTime>* profile) {
  const Schedule& plan = schedule(n, threads());
  plan.prepare();
  arenas_[0].grow(plan.arena_bytes());
  for (AlignedBytes& scratch : scratch_) scratch.grow(plan.scratch_bytes());
  const auto pointers = plan.bind(arenas_[0].data(), inputs, outputs);
  for (const Step& step : plan.steps()) {
    if (profile) profile->push_back({step.value, step.kernel, 0.0});
    const Stopwatch watch(profile ? &profile->back().microseconds : nullptr);
    pool_.run(step.tasks,
              [&](int task, int thread) { step.run(pointers.data(), task, scratch_[thread].data()); });
  }
}

void Engine::run(int n, const std::vector<const float*>& inputs, const std::vector<float*>& outputs,
                 std::vector<StepTime>* profile) {
  if (inputs.size() != inputs_.size() || outputs.size() != outputs_.size())
    throw std::invalid_argument("the plan takes " + std::to_string(inputs_.size()) + " inputs and " +
                                std::to_string(outputs_.size()) + " outputs");
  std::lock_guard<std::mutex> lock(running_);
  pool_.turn();
  pool_.rouse();
  const int size = portion(n), round = size * threads();
  const int apart = size ? n / round * round : 0;
  if (apart) run_portions(apart / size, size, inputs, outputs, profile);
  if (!apart)
    run_together(n, inputs, outputs, profile);
  else if (n > apart)
    run_together(n - apart, skip_images(inputs, inputs_, apart), skip_images(outputs, outputs_, apart), profile);
}

size_t Engine::weight_bytes() const {
  size_t bytes = 0;
  for (const auto& size : weight_sizes_) bytes += size();
  return bytes;
}

size_t Engine::arena_bytes() const {
  size_t bytes = 0;
  for (const AlignedBytes& arena : arenas_) bytes += arena.size();
  return bytes;
}

}  // namespace tersify
