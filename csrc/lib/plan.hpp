// The plan of a file: what an engine is told, call by call; docs/reference/format.md, section 10.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "lib/json.hpp"
#include "lib/terse_file.hpp"

namespace tersify::lib {

struct Port {
  std::string name;
  bool ids = false;
  std::vector<int64_t> shape;  // −1 is the batch
};

class Plan {
 public:
  explicit Plan(const TerseFile& file);  // throws NoPlan, BadFile, TooLarge

  std::string precision;
  int batch = 0;  // 0: any
  std::vector<Port> inputs, outputs;
  std::vector<std::string> labels;
  std::vector<float> mean, std;

  using Weights = std::vector<std::shared_ptr<PackedWeights>>;
  // Every weight packed for the workspace, one after the other.
  Weights pack(const TerseFile& file, const std::shared_ptr<Workspace>& workspace) const;
  // An engine for this batch. All its values together take no more than `max_bytes`.
  std::unique_ptr<Engine> engine(const Weights& weights, const std::shared_ptr<Workspace>& workspace, int batch,
                                 uint64_t max_bytes) const;

 private:
  friend class Arguments;
  std::vector<float> numbers_;
  std::unique_ptr<const Json> json_;
};

}  // namespace tersify::lib
