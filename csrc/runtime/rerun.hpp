// Runs a network again on inputs like those of an earlier run, which have passed every check, without asking Python more than
// it must: kernels have swept the caches, and every function of the caller's that is entered costs.
#pragma once

#include <nanobind/nanobind.h>

#include <vector>

#include "engine.hpp"

namespace tersify {

class Rerun {
 public:
  // What every input was: of this very type, with this dtype and layout, and of its shape in `shapes`. `empty` makes an
  // output, called with its sizes and `empty_options`, a dict; `outputs` are those sizes, a tuple of tuples.
  Rerun(Engine* engine, nanobind::handle type, nanobind::handle dtype, nanobind::handle layout, nanobind::tuple shapes,
        nanobind::handle empty, nanobind::dict empty_options, nanobind::tuple outputs);

  // The outputs as a list; None where an input differs.
  nanobind::object operator()(const nanobind::tuple& inputs) const;

 private:
  bool usual(nanobind::handle x, nanobind::handle shape) const;

  Engine* engine_;
  int batch_;
  nanobind::object type_, dtype_, layout_, shapes_, empty_, option_names_;
  std::vector<nanobind::object> option_values_;
  std::vector<std::vector<nanobind::object>> sizes_;  // of every output
};

}  // namespace tersify
