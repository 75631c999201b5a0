// Runs a network again on inputs like those of an earlier run, which have passed every check, without asking Python more than
// it must: kernels have swept the caches, and every function of the caller's that is entered costs.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <cstdint>
#include <vector>

#include "engine.hpp"

namespace tersify {

// The functions that torch offers C programs in `Tensor.__dlpack_c_exchange_api__`, version 1.
struct TensorExchange {
  uint32_t major, minor;
  const TensorExchange* older;  // null, or the same of an earlier version
  void *allocate, *export_owned, *import_owned;
  int (*describe)(void* tensor, nanobind::dlpack::dltensor* description);  // 0, or a Python exception is set; may be null
  void* current_stream;
};

class Rerun {
 public:
  // What every input was: of this very type, which `exchange` describes, and of its shape in `shapes`. `empty_like` makes an
  // output from one of `blanks`; `one` wants no list of it. It runs only while all `hooks`, dicts of torch's, are empty and all
  // `watchers`, functions, return what is false.
  Rerun(Engine* engine, nanobind::handle type, nanobind::capsule exchange, nanobind::tuple shapes,
        nanobind::handle empty_like, nanobind::tuple blanks, bool one, nanobind::tuple hooks, nanobind::tuple watchers);

  // The outputs as a list, or the one; None where an input differs, somebody watches or, as its attributes say, stands around
  // the module.
  // It is not told of the module before: that would hold it, and the garbage collector does not see what C++ holds.
  nanobind::object operator()(const nanobind::tuple& inputs, const nanobind::dict& module) const;
  nanobind::tuple shapes() const { return shapes_; }

 private:
  bool watched() const;
  float* numbers(nanobind::handle x, const std::vector<int64_t>& shape) const;

  Engine* engine_;
  int batch_;
  bool one_;
  const TensorExchange* exchange_;  // null: torch's is of another version
  nanobind::object type_, empty_like_;
  nanobind::tuple shapes_, blanks_, hooks_, watchers_;
  std::vector<std::vector<int64_t>> sizes_, output_sizes_;  // shapes, as numbers
};

}  // namespace tersify
