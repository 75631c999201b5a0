// Calls a network again with inputs like those of an earlier call, which passed every check, without asking Python more
// than it must: kernels have swept the caches, and every function of the caller's that is entered costs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <vector>

#include "engine/engine.hpp"

namespace tersify {

// The functions that torch offers C programs in `Tensor.__dlpack_c_exchange_api__`, version 1.
struct TensorExchange {
  uint32_t major, minor;
  const TensorExchange* older;  // null, or the same of an earlier version
  void *allocate, *export_owned, *import_owned;
  int (*describe)(void* tensor,
                  nanobind::dlpack::dltensor* description);  // 0, or a Python exception is set; may be null
  void* current_stream;
};

class FastCall {
 public:
  // Every input must be of this very type, which `exchange` describes. `empty_like` makes an output from a blank; `one`
  // wants no list of it. It runs only while all `hooks`, dicts of torch's, are empty and all `watchers`, functions,
  // return what is false.
  FastCall(nanobind::handle type, nanobind::capsule exchange, nanobind::handle empty_like, bool one,
           nanobind::tuple hooks, nanobind::tuple watchers);

  // From now on inputs of these shapes run on `engine`, whose outputs are like `blanks`. The shapes used last are kept.
  void remember(const nanobind::tuple& shapes, nanobind::object engine, nanobind::tuple blanks);
  // From now on `function` takes the tuple of inputs that are like these: for networks that are not one engine.
  void remember_function(const nanobind::tuple& examples, nanobind::object function);

  // The outputs as a list, or the one, or what the function returns. None where an input differs, is given twice or is
  // not finite, somebody watches or, as its attributes say, stands around the module. It is not told of the module
  // before: that would hold it, and the garbage collector does not see what C++ holds.
  nanobind::object operator()(const nanobind::tuple& inputs, const nanobind::dict& module);
  // The same for a part of a network, whose caller has seen to it that nobody watches.
  nanobind::object run(const nanobind::tuple& inputs);

 private:
  using Sizes = std::vector<int64_t>;
  struct Input {
    Sizes shape;
    nanobind::dlpack::dtype type;
    bool operator==(const Input& other) const { return shape == other.shape && type == other.type; }
  };
  struct Entry {
    nanobind::object runs;  // an engine or a function
    Engine* engine = nullptr;
    nanobind::tuple blanks;
    std::vector<Input> inputs;
    std::vector<Sizes> outputs;
  };

  void keep(Entry entry);
  bool watched() const;
  bool describe(nanobind::handle x, nanobind::dlpack::dltensor& description) const;
  // The entry that takes these inputs, in front now, and where they lie; null: none.
  const Entry* find(const nanobind::tuple& inputs, std::vector<Span>& sources);

  bool one_;
  const TensorExchange* exchange_;  // null: torch's is of another version
  nanobind::object type_, empty_like_;
  nanobind::tuple hooks_, watchers_;
  std::vector<Entry> entries_;  // the one used last in front
};

}  // namespace tersify
