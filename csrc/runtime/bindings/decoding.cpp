#include "bindings/decoding.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <climits>
#include <cstdlib>
#include <optional>
#if defined(__GLIBC__)
#include <malloc.h>
#endif

#include "bindings/conversions.hpp"
#include "engine/engine.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tersify {
namespace {

using Codes = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

template <class Array>
void check(const SharedWorkspace& workspace, const Array& weight) {
  if (!workspace) throw std::invalid_argument("weights are packed for a workspace");
  if (weight.shape(0) > INT_MAX || weight.shape(1) > INT_MAX)
    throw std::invalid_argument("a weight of " + std::to_string(weight.shape(0)) + " rows is too large");
}

std::shared_ptr<RowWeights> pack_rows(const SharedWorkspace& workspace, const Matrix& weight) {
  check(workspace, weight);
  nb::gil_scoped_release released;
  return std::make_shared<RowWeights>(workspace, weight.data(), int(weight.shape(0)), int(weight.shape(1)));
}

std::shared_ptr<RowWeights> pack_row_codes(const SharedWorkspace& workspace, const Codes& codes,
                                           std::vector<float> levels) {
  check(workspace, codes);
  nb::gil_scoped_release released;
  return std::make_shared<RowWeights>(workspace, codes.data(), int(codes.shape(0)), int(codes.shape(1)),
                                      std::move(levels));
}

std::shared_ptr<LinearInt8Weights> pack_codes_i8(const SharedWorkspace& workspace, const Codes& codes,
                                                 const std::vector<int>& levels, std::optional<bool> smallest) {
  check(workspace, codes);
  nb::gil_scoped_release released;
  return std::make_shared<LinearInt8Weights>(workspace, codes.data(), int(codes.shape(0)), int(codes.shape(1)), levels,
                                             smallest.value_or(!multiplies_faster_than_it_looks_up()));
}

void set_rotation(KeyCache& cache, const Matrix& cosines, const Matrix& sines) {
  if (cosines.shape(0) != sines.shape(0) || cosines.shape(1) != sines.shape(1))
    throw std::invalid_argument("a rotation has as many sines as cosines");
  cache.set_rotation(cosines.data(), sines.data(), int(cosines.shape(0)), int(cosines.shape(1)));
}

// Packing leaves free pages between the weights that stay, and glibc would keep them.
void release_free_memory() {
#if defined(__GLIBC__)
  malloc_trim(0);
#endif
}

}  // namespace

void bind_decoding(nb::module_& m) {
  nb::class_<RowWeights, PackedWeights>(m, "RowWeights");
  m.def("release_free_memory", release_free_memory, nb::call_guard<nb::gil_scoped_release>(),
        "Gives pages that nothing uses back to the system.");
  m.def("pack_rows", pack_rows, "workspace"_a, "weight"_a, "Every weight of float32 [rows, features].");
  m.def("pack_row_codes", pack_row_codes, "workspace"_a, "codes"_a, "levels"_a,
        "The same of uint8 [rows, features], the numbers of levels.");
  m.def("pack_codes_i8", pack_codes_i8, "workspace"_a, "codes"_a, "levels"_a, "smallest"_a = nb::none(),
        "The same for vectors rounded to 8 bits; levels are whole numbers of -127..127. smallest: signs take the fewest "
        "bytes, where the CPU would else read others faster; None: what is fastest here.");
  nb::class_<KeyCache>(m, "KeyCache")
      .def(nb::init<int, int, int, bool>(), "layers"_a, "key_heads"_a, "width"_a, "half"_a)
      .def("reserve", &KeyCache::reserve, "slots"_a, "positions"_a)
      .def("set_rotation", set_rotation, "cosines"_a, "sines"_a, "Float32 [positions, pairs] of every position.")
      .def("set_rows", &KeyCache::set_rows, "slots"_a, "positions"_a, "wanted"_a)
      .def("copy", &KeyCache::copy, "source"_a, "target"_a, "positions"_a)
      .def_prop_ro("slots", &KeyCache::slots)
      .def_prop_ro("capacity", &KeyCache::capacity)
      .def_prop_ro("resident_bytes", &KeyCache::resident_bytes);
  m.def("linear_rows", &Engine::linear_rows, "engine"_a, "value"_a, "weights"_a, "epilogue"_a);
  m.def("embedding_rows", &Engine::embedding_rows, "engine"_a, "value"_a, "weights"_a, "scale"_a);
  m.def("wanted_rows", &Engine::wanted_rows, "engine"_a, "value"_a, "cache"_a, "count"_a);
  m.def("scale_columns", &Engine::scale_columns, "engine"_a, "value"_a, "factors"_a);
  m.def("gate", &Engine::gate, "engine"_a, "value"_a, "width"_a, "activation"_a, "square"_a = false);
  m.def(
      "cached_attention",
      [](Engine& engine, int value, std::shared_ptr<KeyCache> cache, int layer, int heads, float scale, int window,
         bool rotated, std::vector<float> query_norm, std::vector<float> key_norm, float eps) {
        return engine.cached_attention(
            value, std::move(cache),
            {layer, heads, scale, window, rotated, std::move(query_norm), std::move(key_norm), eps});
      },
      "engine"_a, "value"_a, "cache"_a, "layer"_a, "heads"_a, "scale"_a, "window"_a, "rotated"_a, "query_norm"_a,
      "key_norm"_a, "eps"_a, "Values of a token: queries, keys, values, each all its heads.");
}

}  // namespace tersify
