// A model with its weights packed for one CPU and a number of threads, and an engine for each of the last
// sizes it has seen.
#pragma once

#include <list>
#include <memory>
#include <mutex>

#include "lib/plan.hpp"

namespace tersify::lib {

struct Model {
  Model(std::shared_ptr<const Source> source, uint64_t max_bytes) : file(std::move(source), max_bytes), plan(file) {}
  const TerseFile file;
  const Plan plan;
};

class Session {
 public:
  Session(std::shared_ptr<const Model> model, Isa isa, int threads, uint64_t max_bytes);
  void run(int64_t batch, const std::vector<Span>& inputs, const std::vector<Span>& outputs);
  std::vector<StepTime> profile(int64_t batch, const std::vector<Span>& inputs, const std::vector<Span>& outputs);
  const Plan& plan() const { return model_->plan; }

 private:
  std::shared_ptr<Engine> engine(const Asked& asked);
  Asked asked(int64_t batch, const std::vector<Span>& inputs) const;  // the length is what the inputs have

  const std::shared_ptr<const Model> model_;
  const std::shared_ptr<Workspace> workspace_;
  const Plan::Weights weights_;
  const uint64_t max_bytes_;
  std::mutex mutex_;
  std::list<std::pair<Asked, std::shared_ptr<Engine>>> engines_;  // the last one used is the first
};

}  // namespace tersify::lib
