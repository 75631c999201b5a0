// What decoders of language models need of the engine, for Python.
#pragma once

#include <nanobind/nanobind.h>

namespace tersify {

void bind_decoding(nanobind::module_& m);

}  // namespace tersify
