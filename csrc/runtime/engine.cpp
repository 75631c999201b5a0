#include "engine.hpp"

#include <stdexcept>

#include "schedule.hpp"

namespace tersify {
namespace {

const Kernels& kernels_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::Avx512) return avx512_kernels();
  if (isa == Isa::Avx2) return avx2_kernels();
#endif
  (void)isa;
  return portable_kernels();
}

}  // namespace

Finish FinishData::view() const {
  auto data = [](const std::vector<float>& v) { return v.empty() ? nullptr : v.data(); };
  return {data(scale), data(shift), data(scale2), data(shift2), act, low, high};
}

Engine::Engine(Isa isa, int threads) : isa_(isa), kernels_(kernels_of(isa)), pool_(threads), scratch_(threads) {}

Engine::~Engine() = default;

int Engine::input(Shape shape) {
  shapes_.push_back(shape);
  inputs_.push_back(static_cast<int>(shapes_.size()) - 1);
  return inputs_.back();
}

int Engine::add(std::vector<int> inputs, Shape shape, std::function<void(Schedule&, const Op&)> plan) {
  for (int value : inputs) shapes_.at(value);  // throws for a value that does not exist
  shapes_.push_back(shape);
  const int output = static_cast<int>(shapes_.size()) - 1;
  ops_.push_back({std::move(inputs), output, std::move(plan)});
  return output;
}

std::shared_ptr<SparseWeights> Engine::pack(const DenseWeight& weight, const Window& window, ValueKind kind,
                                            std::vector<float> table) {
  const int block = choose_block(window, weight.channels, kernels_.vector_bytes, kernels_.patch_limit);
  auto packed = std::make_shared<SparseWeights>(weight, kind, std::move(table), block);
  weight_bytes_ += packed->resident_bytes();
  return packed;
}

void Engine::run(int n, const std::vector<const float*>& inputs, const std::vector<float*>& outputs) {
  if (inputs.size() != inputs_.size() || outputs.size() != outputs_.size())
    throw std::invalid_argument("the plan takes " + std::to_string(inputs_.size()) + " inputs and " +
                                std::to_string(outputs_.size()) + " outputs");
  std::lock_guard<std::mutex> lock(running_);
  auto& schedule = schedules_[n];
  if (!schedule) schedule = std::make_unique<Schedule>(*this, n);
  arena_.grow(schedule->arena_bytes());
  for (AlignedBytes& scratch : scratch_) scratch.grow(schedule->scratch_bytes());
  schedule->run(pool_, arena_.data(), scratch_, inputs, outputs);
}

}  // namespace tersify
