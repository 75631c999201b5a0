#include "lib/session.hpp"

#include <algorithm>

namespace tersify::lib {
namespace {

constexpr size_t kMaxEngines = 16;

// What an engine or a packed weight refuses while a plan is built is a fault of the file, not of the caller.
template <class Function>
auto blaming_the_file(const Function& function) {
  try {
    return function();
  } catch (const std::length_error&) {
    throw;
  } catch (const std::logic_error& e) {
    throw BadFile(std::string("the plan does not fit together: ") + e.what());
  }
}

}  // namespace

Session::Session(std::shared_ptr<const Model> model, Isa isa, int threads, uint64_t max_bytes)
    : model_(std::move(model)),
      workspace_(std::make_shared<Workspace>(isa, threads, model_->plan.precision == "int8")),
      weights_(blaming_the_file([&] { return model_->plan.pack(model_->file, workspace_); })),
      max_bytes_(max_bytes) {
  const Plan& plan = model_->plan;
  engine({plan.batch ? plan.batch : 1, plan.lengths.least});  // what does not fit together is told before anything runs
}

Asked Session::asked(int64_t batch, const std::vector<Span>& inputs) const {
  const Plan& plan = model_->plan;
  if (!plan.lengths.step) return {batch, plan.lengths.least};
  for (size_t i = 0; i < inputs.size() && i < plan.inputs.size(); ++i) {
    const std::vector<int64_t>& shape = plan.inputs[i].shape;
    if (std::count(shape.begin(), shape.end(), -2) != 1) continue;
    int64_t left = inputs[i].count;
    for (const int64_t size : shape)
      if (size != -2) left /= std::max<int64_t>(size == -1 ? batch : size, 1);
    return {batch, left};  // where it does not divide, the engine finds another count than it wants
  }
  bad_file("the plan has a free length, and no input that says it");
}

std::shared_ptr<Engine> Session::engine(const Asked& asked) {
  model_->plan.check(asked);
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto found = engines_.begin(); found != engines_.end(); ++found)
    if (found->first == asked) {
      engines_.splice(engines_.begin(), engines_, found);
      return found->second;
    }
  std::shared_ptr<Engine> made =
      blaming_the_file([&] { return model_->plan.engine(weights_, workspace_, asked, max_bytes_); });
  engines_.emplace_front(asked, made);
  if (engines_.size() > kMaxEngines) engines_.pop_back();
  return made;
}

void Session::run(int64_t batch, const std::vector<Span>& inputs, const std::vector<Span>& outputs) {
  if (!engine(asked(batch, inputs))->run(inputs, outputs))
    throw NotFinite("an input, or a curve of one, is NaN or infinite, which kernels that skip zeros do not take");
}

std::vector<StepTime> Session::profile(int64_t batch, const std::vector<Span>& inputs,
                                       const std::vector<Span>& outputs) {
  run(batch, inputs, outputs);
  return engine(asked(batch, inputs))->profile(inputs, outputs);
}

}  // namespace tersify::lib
