// Runs a network again on inputs like those of an earlier run, which have passed every check, without asking Python more than
// it must: kernels have swept the caches, and every function of the caller's that is entered costs.
#pragma once

#include <nanobind/nanobind.h>

#include "engine.hpp"

namespace tersify {

class Rerun {
 public:
  // What every input was: of this very type, with this dtype and layout, and of its shape in `shapes`. `empty_like` makes an
  // output from one of `blanks`. It runs only while all `hooks`, dicts of torch's, are empty and all `watchers`, functions,
  // return what is false.
  Rerun(Engine* engine, nanobind::handle type, nanobind::handle dtype, nanobind::handle layout, nanobind::tuple shapes,
        nanobind::handle empty_like, nanobind::tuple blanks, nanobind::tuple hooks, nanobind::tuple watchers);

  // The outputs as a list; None where an input differs, somebody watches or, as its attributes say, stands around the module.
  // It is not told of the module before: that would hold it, and the garbage collector does not see what C++ holds.
  nanobind::object operator()(const nanobind::tuple& inputs, const nanobind::dict& module) const;
  nanobind::tuple shapes() const { return shapes_; }

 private:
  bool watched() const;
  bool usual(nanobind::handle x, nanobind::handle shape) const;

  Engine* engine_;
  int batch_;
  nanobind::object type_, dtype_, layout_, empty_like_;
  nanobind::tuple shapes_, blanks_, hooks_, watchers_;
};

}  // namespace tersify
