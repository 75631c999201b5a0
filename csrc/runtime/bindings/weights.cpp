#include "bindings/weights.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/conversions.hpp"
#include "engine/checksum.hpp"
#include "engine/weight_class.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tersify {
namespace {

using ConvArray = nb::ndarray<const float, nb::ndim<4>, nb::c_contig, nb::device::cpu>;

enum class ConvLane { F32, F16 };

int int_of(size_t size) {
  if (size > INT_MAX)
    throw std::invalid_argument("a weight of " + std::to_string(size) + " rows or columns is too large");
  return int(size);
}

// Weights of `window`, which the array must agree with.
DenseWeight dense_weight(const ConvArray& w, const Window& window, int groups) {
  if (groups < 1) throw std::invalid_argument("groups must be at least 1, got " + std::to_string(groups));
  if (w.shape(2) != size_t(window.kernel_h) || w.shape(3) != size_t(window.kernel_w))
    throw std::invalid_argument("the weight's kernel is " + std::to_string(w.shape(2)) + "×" +
                                std::to_string(w.shape(3)) + ", the window's is " + std::to_string(window.kernel_h) +
                                "×" + std::to_string(window.kernel_w));
  const int channels = int_of(int_of(w.shape(1)) * size_t(groups));
  return {w.data(), int_of(w.shape(0)), channels, groups, window.taps()};
}

Shape output_shape(const DenseWeight& weight, const Size2& output) {
  return checked_shape(weight.rows, std::get<0>(output), std::get<1>(output));
}

const SharedWorkspace& checked(const SharedWorkspace& workspace) {
  if (!workspace) throw std::invalid_argument("weights are packed for a workspace");
  return workspace;
}

std::shared_ptr<ConvWeights> pack_conv(const SharedWorkspace& workspace, const ConvArray& weight,
                                       const std::vector<int>& window, int groups, ValueKind kind,
                                       std::vector<float> table, ConvLane lane, const Size2& output) {
  const Window w = window_of(window);
  const DenseWeight dense = dense_weight(weight, w, groups);
  nb::gil_scoped_release released;
  return std::make_shared<ConvWeights>(checked(workspace), dense, w, kind, std::move(table),
                                       lane == ConvLane::F16 ? Lane::F16 : Lane::F32, output_shape(dense, output));
}

std::shared_ptr<ConvDenseWeights> pack_conv_dense(const SharedWorkspace& workspace, const ConvArray& weight,
                                                  const std::vector<int>& window, const Size2& output) {
  const Window w = window_of(window);
  const DenseWeight dense = dense_weight(weight, w, 1);
  return std::make_shared<ConvDenseWeights>(checked(workspace), dense, w, output_shape(dense, output));
}

std::shared_ptr<ConvInt8Weights> pack_conv_i8(const SharedWorkspace& workspace, const ConvArray& weight,
                                              const std::vector<int>& window, int groups, const Size2& output) {
  const Window w = window_of(window);
  const DenseWeight dense = dense_weight(weight, w, groups);
  nb::gil_scoped_release released;
  return std::make_shared<ConvInt8Weights>(checked(workspace), dense, w, output_shape(dense, output));
}

std::shared_ptr<ConvCodesWeights> pack_conv_codes(const SharedWorkspace& workspace, const ConvArray& weight,
                                                  const std::vector<int>& window) {
  const Window w = window_of(window);
  nb::gil_scoped_release released;
  return std::make_shared<ConvCodesWeights>(checked(workspace), dense_weight(weight, w, 1), w);
}

std::shared_ptr<LinearWeights> pack_linear(const SharedWorkspace& workspace, const Matrix& weight, ValueKind kind,
                                           std::vector<float> table, bool dense) {
  nb::gil_scoped_release released;
  return std::make_shared<LinearWeights>(checked(workspace), weight.data(), int_of(weight.shape(0)),
                                         int_of(weight.shape(1)), kind, std::move(table), dense);
}

std::shared_ptr<RecurrentWeights> pack_recurrent(const SharedWorkspace& workspace, const Matrix& weight, bool gru,
                                                 std::vector<float> bias) {
  nb::gil_scoped_release released;
  return std::make_shared<RecurrentWeights>(checked(workspace), weight.data(), int_of(weight.shape(0)),
                                            int_of(weight.shape(1)), gru ? Cell::Gru : Cell::Lstm, std::move(bias));
}

WeightClass classify_matrix(const Matrix& weight, size_t max_levels, int threads) {
  if (threads < 1) throw std::invalid_argument("classify needs at least one thread, got " + std::to_string(threads));
  nb::gil_scoped_release released;
  return classify(weight.data(), weight.shape(0), weight.shape(1), max_levels, threads);
}

uint64_t checksum_of(uintptr_t address, size_t bytes, int threads) {
  nb::gil_scoped_release released;
  return checksum(reinterpret_cast<const void*>(address), bytes, threads);
}

std::shared_ptr<LinearInt8Weights> pack_linear_i8(const SharedWorkspace& workspace, const Matrix& weight, bool signs) {
  nb::gil_scoped_release released;
  return std::make_shared<LinearInt8Weights>(checked(workspace), weight.data(), int_of(weight.shape(0)),
                                             int_of(weight.shape(1)), signs);
}

std::shared_ptr<BitWeights> pack_linear_bits(const SharedWorkspace& workspace, const Matrix& weight) {
  nb::gil_scoped_release released;
  return std::make_shared<BitWeights>(checked(workspace), weight.data(), int_of(weight.shape(0)),
                                      int_of(weight.shape(1)));
}

std::shared_ptr<ConvBitWeights> pack_conv_bits(const SharedWorkspace& workspace, const ConvArray& weight,
                                               const std::vector<int>& window) {
  const Window w = window_of(window);
  nb::gil_scoped_release released;
  return std::make_shared<ConvBitWeights>(checked(workspace), dense_weight(weight, w, 1), w);
}

std::shared_ptr<EmbeddingWeights> pack_embedding(const Matrix& weight, std::vector<float> levels,
                                                 std::vector<float> scale) {
  nb::gil_scoped_release released;
  return std::make_shared<EmbeddingWeights>(weight.data(), int_of(weight.shape(0)), int_of(weight.shape(1)),
                                            std::move(levels), std::move(scale));
}

}  // namespace

void bind_weights(nb::module_& m) {
  nb::enum_<ConvLane>(m, "Lane").value("F32", ConvLane::F32).value("F16", ConvLane::F16);
  nb::class_<WeightClass>(m, "WeightClass")
      .def_ro("finite", &WeightClass::finite)
      .def_ro("kind", &WeightClass::kind)
      .def_ro("row_scale", &WeightClass::row_scale)
      .def_ro("table", &WeightClass::table)
      .def_ro("nonzeros", &WeightClass::nonzeros);
  m.def("classify", classify_matrix, "weight"_a, "max_levels"_a, "threads"_a,
        "Whether a float32 matrix holds signs with a scale a row, few levels, or any values.");
  m.def("checksum", checksum_of, "address"_a, "bytes"_a, "threads"_a, "A number that changes with any of the bytes.");
  nb::class_<PackedWeights>(m, "PackedWeights")
      .def_prop_ro("resident_bytes", &PackedWeights::resident_bytes, Unlocked(),
                   "Bytes of the forms that exist by now; some are packed when they are first needed.");
  nb::class_<ConvWeights, PackedWeights>(m, "ConvWeights");
  nb::class_<ConvDenseWeights, PackedWeights>(m, "ConvDenseWeights");
  nb::class_<ConvInt8Weights, PackedWeights>(m, "ConvInt8Weights");
  nb::class_<ConvCodesWeights, PackedWeights>(m, "ConvCodesWeights");
  nb::class_<LinearWeights, PackedWeights>(m, "LinearWeights");
  nb::class_<LinearInt8Weights, PackedWeights>(m, "LinearInt8Weights");
  nb::class_<BitWeights, PackedWeights>(m, "BitWeights");
  nb::class_<ConvBitWeights, PackedWeights>(m, "ConvBitWeights");
  nb::class_<EmbeddingWeights, PackedWeights>(m, "EmbeddingWeights");
  nb::class_<RecurrentWeights, PackedWeights>(m, "RecurrentWeights");
  m.def("pack_conv", pack_conv, "workspace"_a, "weight"_a, "window"_a, "groups"_a, "kind"_a, "table"_a, "lane"_a,
        "output"_a, "Lists of the non-zeros of float32 [O, I / groups, kh, kw]; `output`: a typical (h, w).");
  m.def("pack_conv_dense", pack_conv_dense, "workspace"_a, "weight"_a, "window"_a, "output"_a,
        "Every weight of float32 [O, I, kh, kw]; `output`: a typical (h, w).");
  m.def("pack_conv_i8", pack_conv_i8, "workspace"_a, "weight"_a, "window"_a, "groups"_a, "output"_a,
        "Lists of signs for activations in bytes.");
  m.def("pack_conv_codes", pack_conv_codes, "workspace"_a, "weight"_a, "window"_a,
        "Whole numbers of -127..127, zeros and all, for activations in bytes.");
  m.def("pack_linear", pack_linear, "workspace"_a, "weight"_a, "kind"_a, "table"_a, "dense"_a = false);
  m.def("pack_recurrent", pack_recurrent, "workspace"_a, "weight"_a, "gru"_a, "bias"_a,
        "Float32 [gates × size, size]; a GRU's bias of the gates of its state.");
  m.def("pack_linear_i8", pack_linear_i8, "workspace"_a, "weight"_a, "signs"_a = false,
        "Whole numbers of -127..127, or the signs alone, for vectors rounded to 8 bits.");
  m.def("pack_linear_bits", pack_linear_bits, "workspace"_a, "weight"_a,
        "Signs for vectors of two or three levels.");
  m.def("pack_conv_bits", pack_conv_bits, "workspace"_a, "weight"_a, "window"_a,
        "Signs for pixels of two or three levels.");
  m.def("pack_embedding", pack_embedding, "weight"_a, "levels"_a, "scale"_a);
}

}  // namespace tersify
