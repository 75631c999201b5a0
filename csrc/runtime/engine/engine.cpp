#include "engine/engine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <stdexcept>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

constexpr int kPortionsPerThread = 2;  // so that a thread that lost its core does not hold up the rest
constexpr int kMaxPortion = 64;
constexpr int64_t kFiniteTask = 1 << 16;  // numbers that one task looks through

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

// Every value falls into `count` equal parts that no operation mixes. `size` of them make a portion, which one thread
// takes through all the steps; what is left over, or all where threads outnumber the parts, every step shares among the
// threads.
struct Engine::Plans {
  int count = 1, size = 0, portions = 0;
  std::unique_ptr<Schedule> portion, together;
};

Engine::Engine(std::shared_ptr<Workspace> workspace) : workspace_(std::move(workspace)) {
  if (!workspace_) throw std::invalid_argument("an engine needs a workspace");
}

Engine::~Engine() = default;

// How many parts a thread takes through the whole network at once: as many as fill the vectors, as few as keep their
// activations near the core. None: too few to give every thread its own.
void Engine::plan() {
  if (plans_) return;
  const int threads = workspace_->threads();
  auto plans = std::make_unique<Plans>();
  plans->count = 0;
  for (const Value& value : values_) plans->count = std::gcd(plans->count, value.items);
  double least = 0;
  const int share = plans->count / (threads > 1 ? kPortionsPerThread * threads : 1);  // one thread waits for no other
  const int limit = std::min(kMaxPortion, std::max(1, share));
  std::vector<int> sizes;
  for (int size = 1; size <= limit && plans->count >= threads; size *= 2) sizes.push_back(size);
  if (threads == 1 && limit == plans->count) sizes.push_back(limit);
  for (int size : sizes) {
    auto schedule = std::make_unique<Schedule>(*this, size, plans->count, 1);
    const double cost = schedule->cost() / size;
    if (plans->size && cost >= least) continue;
    plans->size = size;
    plans->portion = std::move(schedule);
    least = cost;
  }
  if (plans->size) plans->portions = plans->count / (plans->size * threads) * threads;
  const int rest = plans->count - plans->portions * plans->size;
  if (!plans->portions) plans->portion = nullptr;
  if (rest) plans->together = std::make_unique<Schedule>(*this, rest, plans->count, threads);
  plans_ = std::move(plans);
}

template <class Pointers>
Pointers Engine::skip(const Pointers& pointers, const std::vector<int>& values, int parts) const {
  Pointers moved;
  for (size_t i = 0; i < pointers.size(); ++i) {
    const Value& value = values_[values[i]];
    moved.push_back(pointers[i] +
                    size_t(parts) * (value.items / plans_->count) * value.shape.numel() * value.element_bytes());
  }
  return moved;
}

// Every thread takes portions through all the steps: nobody waits, and activations stay near their core.
void Engine::run_portions(Turn& turn, const Inputs& inputs, const Outputs& outputs, std::vector<StepTime>* profile) {
  const Schedule& plan = *plans_->portion;
  const Schedule::Prepared prepared(plan);
  const int threads = workspace_->threads(), size = plans_->size;
  turn.reserve(threads, plan.arena_bytes(), plan.scratch_bytes());
  const std::vector<Step>& steps = plan.steps();
  std::vector<double> spent(profile ? steps.size() * threads : 0);
  turn.pool().run(plans_->portions, [&](int number, int thread) {
    const auto pointers =
        plan.bind(turn.arena(thread), skip(inputs, inputs_, number * size), skip(outputs, outputs_, number * size));
    for (size_t s = 0; s < steps.size(); ++s) {
      const Stopwatch watch(profile ? &spent[thread * steps.size() + s] : nullptr);
      for (int task = 0; task < steps[s].tasks; ++task) steps[s].run(pointers.data(), task, turn.scratch(thread));
    }
  });
  for (size_t i = 0; i < spent.size(); ++i) {
    const Step& step = steps[i % steps.size()];
    profile->push_back({step.value, step.kernel, spent[i] / threads});
  }
}

// All threads share each step.
void Engine::run_together(Turn& turn, const Inputs& inputs, const Outputs& outputs, std::vector<StepTime>* profile) {
  const Schedule& plan = *plans_->together;
  const Schedule::Prepared prepared(plan);
  turn.reserve(1, plan.arena_bytes(), plan.scratch_bytes());
  const auto pointers = plan.bind(turn.arena(0), inputs, outputs);
  for (const Step& step : plan.steps()) {
    if (profile) profile->push_back({step.value, step.kernel, 0.0});
    const Stopwatch watch(profile ? &profile->back().microseconds : nullptr);
    turn.pool().run(step.tasks, [&](int task, int thread) { step.run(pointers.data(), task, turn.scratch(thread)); });
  }
}

void Engine::run_all(Turn& turn, const std::vector<Span>& inputs, const std::vector<Span>& outputs,
                     std::vector<StepTime>* profile) {
  plan();
  Inputs from;
  Outputs to;
  for (const Span& span : inputs) from.push_back(span.data);
  for (const Span& span : outputs) to.push_back(span.data);
  const int apart = plans_->portions * plans_->size;
  if (plans_->portion) run_portions(turn, from, to, profile);
  if (plans_->together) run_together(turn, skip(from, inputs_, apart), skip(to, outputs_, apart), profile);
}

void Engine::check_spans(const std::vector<Span>& inputs, const std::vector<Span>& outputs) const {
  auto check = [&](const std::vector<Span>& spans, const std::vector<int>& values, const char* what) {
    if (spans.size() != values.size())
      throw std::invalid_argument("the plan has " + std::to_string(values.size()) + " " + what + "s, got " +
                                  std::to_string(spans.size()));
    for (size_t i = 0; i < spans.size(); ++i) {
      const int64_t wanted = values_[values[i]].numel();
      if (spans[i].count != wanted)
        throw std::invalid_argument(std::string(what) + " " + std::to_string(i) + " has " + std::to_string(wanted) +
                                    " numbers, got " + std::to_string(spans[i].count));
      if (!spans[i].data)
        throw std::invalid_argument(
            "a tensor has no memory to compute with: its storage was emptied, or it stands for another");
    }
  };
  check(inputs, inputs_, "input");
  check(outputs, outputs_, "output");
}

void Engine::check_ids(const std::vector<Span>& inputs) const {
  for (size_t i = 0; i < inputs.size(); ++i) {
    const Value& value = values_[inputs_[i]];
    if (!value.rows) continue;
    int64_t low = 0, high = 0;
    for (int64_t k = 0; k < inputs[i].count; ++k) {
      int64_t id;
      std::memcpy(&id, inputs[i].data + k * sizeof id, sizeof id);
      low = std::min(low, id);
      high = std::max(high, id);
    }
    if (low < 0 || high >= value.rows)
      throw std::out_of_range("an embedding of " + std::to_string(value.rows) + " rows takes numbers 0.." +
                              std::to_string(value.rows - 1) + ", got " + std::to_string(low) + ".." +
                              std::to_string(high));
  }
}

bool Engine::all_finite(Turn& turn, const std::vector<Span>& inputs) const {
  std::atomic<bool> finite{true};
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (values_[inputs_[i]].ids) continue;
    const float* x = reinterpret_cast<const float*>(inputs[i].data);
    const int64_t count = inputs[i].count;
    turn.pool().run(int((count + kFiniteTask - 1) / kFiniteTask), [&](int task, int) {
      const int64_t begin = task * kFiniteTask, size = std::min(kFiniteTask, count - begin);
      if (!workspace_->kernels().all_finite(x + begin, size_t(size))) finite = false;
    });
  }
  return finite;
}

void Engine::seal() {
  if (sealed_) return;
  if (outputs_.empty()) throw std::invalid_argument("the plan has no outputs; name them before it runs");
  sealed_ = true;
}

bool Engine::run(const std::vector<Span>& inputs, const std::vector<Span>& outputs) {
  seal();
  check_spans(inputs, outputs);
  check_ids(inputs);
  Turn turn(*workspace_);
  turn.pool().reverse_order();
  turn.pool().wake();
  if (!all_finite(turn, inputs)) return false;
  finite_ = true;
  run_all(turn, inputs, outputs, nullptr);
  return finite_;
}

std::vector<StepTime> Engine::profile(const std::vector<Span>& inputs, const std::vector<Span>& outputs) {
  seal();
  check_spans(inputs, outputs);
  check_ids(inputs);
  std::vector<StepTime> times;
  Turn turn(*workspace_);
  turn.pool().reverse_order();
  turn.pool().wake();
  run_all(turn, inputs, outputs, &times);
  return times;
}

size_t Engine::weight_bytes() const {
  const auto held = workspace_->lock();
  size_t bytes = 0;
  for (const auto& weights : weights_) bytes += weights->bytes();
  return bytes;
}

size_t Engine::arena_bytes() const {
  const auto held = workspace_->lock();
  if (!plans_) return 0;
  const size_t portion = plans_->portion ? plans_->portion->arena_bytes() * workspace_->threads() : 0;
  return std::max(portion, plans_->together ? plans_->together->arena_bytes() : 0);
}

}  // namespace tersify
