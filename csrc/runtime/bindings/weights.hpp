// Weights, looked at and packed for kernels, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tersify {

void bind_weights(nanobind::module_& m);

}  // namespace tersify
