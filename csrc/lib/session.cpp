#include "lib/session.hpp"

namespace tersify::lib {
namespace {

constexpr size_t kMaxEngines = 16;
constexpr int64_t kMaxBatch = 1 << 24;

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
      workspace_(std::make_shared<Workspace>(isa, threads)),
      weights_(blaming_the_file([&] { return model_->plan.pack(model_->file, workspace_); })),
      max_bytes_(max_bytes) {
  engine(model_->plan.batch ? model_->plan.batch : 1);  // what does not fit together is told before anything runs
}

std::shared_ptr<Engine> Session::engine(int64_t batch) {
  const int only = model_->plan.batch;
  if (batch < 1 || batch > kMaxBatch || (only && batch != only))
    throw std::invalid_argument("the plan runs a batch of " + (only ? std::to_string(only) : "1 or more") + ", got " +
                                std::to_string(batch));
  const std::lock_guard<std::mutex> lock(mutex_);
  for (auto found = engines_.begin(); found != engines_.end(); ++found)
    if (found->first == batch) {
      engines_.splice(engines_.begin(), engines_, found);
      return found->second;
    }
  std::shared_ptr<Engine> made =
      blaming_the_file([&] { return model_->plan.engine(weights_, workspace_, int(batch), max_bytes_); });
  engines_.emplace_front(batch, made);
  if (engines_.size() > kMaxEngines) engines_.pop_back();
  return made;
}

void Session::run(int64_t batch, const std::vector<Span>& inputs, const std::vector<Span>& outputs) {
  if (!engine(batch)->run(inputs, outputs))
    throw NotFinite("an input, or a curve of one, is NaN or infinite, which kernels that skip zeros do not take");
}

std::vector<StepTime> Session::profile(int64_t batch, const std::vector<Span>& inputs,
                                       const std::vector<Span>& outputs) {
  run(batch, inputs, outputs);
  return engine(batch)->profile(inputs, outputs);
}

}  // namespace tersify::lib
