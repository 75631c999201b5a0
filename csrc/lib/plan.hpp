// The plan of a file: what an engine is told, call by call; docs/reference/format.md, section 10.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/engine.hpp"
#include "lib/json.hpp"
#include "lib/sizes.hpp"
#include "lib/terse_file.hpp"

namespace tersify::lib {

struct Port {
  std::string name;
  bool ids = false;
  std::vector<int64_t> shape;  // −1 is the batch, −2 changes with the length
};

// The sizes of one run.
struct Asked {
  int64_t batch, length;
  bool operator==(const Asked& other) const { return batch == other.batch && length == other.length; }
};

// least, least + step, … up to most; a step of 0: the plan has one length.
struct Lengths {
  int64_t least = 1, step = 0, most = 1;
};

class Plan {
 public:
  explicit Plan(const TerseFile& file);  // throws NoPlan, BadFile, TooLarge

  std::string precision;
  int batch = 0;  // 0: any
  Lengths lengths;
  std::vector<Port> inputs, outputs;
  std::vector<std::string> labels;
  std::vector<float> mean, std;

  using Weights = std::vector<std::shared_ptr<PackedWeights>>;
  // Every weight packed for the workspace, one after the other.
  Weights pack(const TerseFile& file, const std::shared_ptr<Workspace>& workspace) const;
  // An engine for these sizes. All its values together take no more than `max_bytes`.
  std::unique_ptr<Engine> engine(const Weights& weights, const std::shared_ptr<Workspace>& workspace,
                                 const Asked& wanted, uint64_t max_bytes) const;
  const std::vector<Port>& ports(bool outputs_wanted) const { return outputs_wanted ? outputs : inputs; }
  // The sizes of a port, each 1 or more.
  std::vector<int64_t> shape_of(bool output, size_t number, const Asked& asked) const;
  void check(const Asked& asked) const;  // throws std::invalid_argument for sizes that the plan does not run

 private:
  friend class Arguments;
  Sizes sizes_of(const Asked& asked) const { return free_ ? Sizes(asked.batch, asked.length) : Sizes(); }
  void read_lengths(const Json::Value& given);
  bool free_ = false;  // sizes may be polynomials
  std::vector<float> numbers_;
  std::unique_ptr<const Json> json_;
};

}  // namespace tersify::lib
