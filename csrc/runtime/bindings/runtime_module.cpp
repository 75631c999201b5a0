#include <nanobind/nanobind.h>
#include <nanobind/stl/shared_ptr.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "bindings/conversions.hpp"
#include "bindings/decoding.hpp"
#include "bindings/fast_call.hpp"
#include "bindings/weights.hpp"
#include "engine/engine.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tersify {
namespace {

using Sizes = std::tuple<int, int, int>;
using Range = std::tuple<float, float, float>;                // scale, low, high
using Buffers = std::vector<std::tuple<uintptr_t, int64_t>>;  // address and number of elements, contiguous

Shape shape_of(const Sizes& s) { return {std::get<0>(s), std::get<1>(s), std::get<2>(s)}; }
Quant quant_of(const Range& r) { return {std::get<0>(r), std::get<1>(r), std::get<2>(r)}; }

std::vector<Span> spans_of(const Buffers& buffers) {
  std::vector<Span> spans;
  for (const auto& [address, count] : buffers) spans.push_back({reinterpret_cast<char*>(address), count});
  return spans;
}

bool run(Engine& engine, const Buffers& inputs, const Buffers& outputs) {
  const auto from = spans_of(inputs), to = spans_of(outputs);
  engine.seal();
  nb::gil_scoped_release released;
  return engine.run(from, to);
}

// The same, and of every step: the value it helps to make, its kernel, its microseconds.
std::vector<std::tuple<int, std::string, double>> profile(Engine& engine, const Buffers& inputs,
                                                          const Buffers& outputs) {
  const auto from = spans_of(inputs), to = spans_of(outputs);
  engine.seal();
  std::vector<StepTime> times;
  {
    nb::gil_scoped_release released;
    times = engine.profile(from, to);
  }
  std::vector<std::tuple<int, std::string, double>> found;
  for (const StepTime& t : times) found.emplace_back(t.value, t.kernel, t.microseconds);
  return found;
}

int move(Engine& engine, int in, const Sizes& shape, const std::vector<std::tuple<int, int, int, int64_t>>& axes,
         int64_t offset, float fill) {
  Move made;
  for (const auto& [size, low, high, stride] : axes) made.axes.push_back({size, low, high, stride});
  made.offset = offset;
  made.fill = fill;
  return engine.move(in, shape_of(shape), std::move(made));
}

int attention(Engine& engine, const std::vector<int>& inputs, const std::tuple<int, int, int, int, int, int>& sizes,
              float scale, bool causal, const std::tuple<bool, bool, bool, bool>& tokens_first,
              const std::tuple<bool, bool, bool>& mask, std::vector<float> constant) {
  const auto [heads, key_heads, queries, keys, width, value_width] = sizes;
  const auto [q_first, k_first, v_first, out_first] = tokens_first;
  const auto [mask_heads, mask_queries, added] = mask;
  return engine.attention(inputs,
                          {heads, key_heads, queries, keys, width, value_width, scale, causal, q_first, k_first,
                           v_first, out_first, mask_heads, mask_queries, added},
                          std::move(constant));
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (Isa isa : available_isas()) names.push_back(isa_name(isa));
  return names;
}

void bind_engine(nb::module_& m) {
  nb::class_<Engine>(m, "Engine")
      .def(nb::init<SharedWorkspace>(), "workspace"_a)
      .def(
          "input", [](Engine& e, int items, const Sizes& s) { return e.input(items, shape_of(s)); }, "items"_a,
          "shape"_a)
      .def("input_ids", &Engine::input_ids, "items"_a, "count"_a)
      .def("conv", &Engine::conv, "value"_a, "weights"_a, "epilogue"_a, "residual"_a = -1, "mean"_a.none() = nb::none())
      .def("conv_dense", &Engine::conv_dense, "value"_a, "weights"_a, "epilogue"_a, "residual"_a = -1,
           "mean"_a.none() = nb::none())
      .def(
          "conv_i8",
          [](Engine& e, int in, std::shared_ptr<const ConvInt8Weights> weights, const Epilogue& epilogue, int residual,
             const Range& output, const Epilogue* mean) {
            return e.conv_i8(in, std::move(weights), epilogue, residual, quant_of(output), mean);
          },
          "value"_a, "weights"_a, "epilogue"_a, "residual"_a, "output"_a, "mean"_a.none() = nb::none())
      .def(
          "conv_codes",
          [](Engine& e, int in, std::shared_ptr<const ConvCodesWeights> weights, const Epilogue& epilogue, int residual,
             const Range& input) { return e.conv_codes(in, std::move(weights), epilogue, residual, quant_of(input)); },
          "value"_a, "weights"_a, "epilogue"_a, "residual"_a, "input"_a)
      .def(
          "quantize",
          [](Engine& e, int value, float scale, float low, float high) { e.quantize(value, {scale, low, high}); },
          "value"_a, "scale"_a, "low"_a, "high"_a)
      .def(
          "conv_bits",
          [](Engine& e, int in, std::shared_ptr<const ConvBitWeights> weights, const Epilogue& epilogue, int residual,
             const Range& levels) { return e.conv_bits(in, std::move(weights), epilogue, residual, quant_of(levels)); },
          "value"_a, "weights"_a, "epilogue"_a, "residual"_a, "levels"_a)
      .def(
          "linear_bits",
          [](Engine& e, int in, std::shared_ptr<const BitWeights> weights, const Epilogue& epilogue,
             const Range& levels) { return e.linear_bits(in, std::move(weights), epilogue, quant_of(levels)); },
          "value"_a, "weights"_a, "epilogue"_a, "levels"_a)
      .def(
          "levels", [](Engine& e, int in, const Range& levels) { return e.levels(in, quant_of(levels)); }, "value"_a,
          "levels"_a, "The nearest of (scale, low, high); scale 0: signs.")
      .def("linear", &Engine::linear, "value"_a, "weights"_a, "epilogue"_a)
      .def("linear_i8", &Engine::linear_i8, "value"_a, "weights"_a, "epilogue"_a)
      .def(
          "max_pool",
          [](Engine& e, int in, const std::vector<int>& window, const Size2& output) {
            return e.max_pool(in, window_of(window), std::get<0>(output), std::get<1>(output));
          },
          "value"_a, "window"_a, "output"_a)
      .def(
          "avg_pool",
          [](Engine& e, int in, const std::vector<int>& window, const Size2& output, bool count_padding) {
            return e.avg_pool(in, window_of(window), std::get<0>(output), std::get<1>(output), count_padding);
          },
          "value"_a, "window"_a, "output"_a, "count_padding"_a)
      .def(
          "fold_max_pool",
          [](Engine& e, int conv, const std::vector<int>& window, const Size2& output) {
            return e.fold_max_pool(conv, window_of(window), std::get<0>(output), std::get<1>(output));
          },
          "conv"_a, "window"_a, "output"_a)
      .def("global_mean", &Engine::global_mean, "value"_a, "epilogue"_a)
      .def("elementwise", &Engine::elementwise, "a"_a, "b"_a, "multiply"_a, "epilogue"_a)
      .def("concatenate", &Engine::concatenate, "values"_a)
      .def(
          "view", [](Engine& e, int in, int items, const Sizes& s) { return e.view(in, items, shape_of(s)); },
          "value"_a, "items"_a, "shape"_a)
      .def("embedding", &Engine::embedding, "value"_a, "weights"_a)
      .def("softmax", &Engine::softmax, "value"_a, "count"_a)
      .def("softmax_along", &Engine::softmax_along, "value"_a, "count"_a, "apart"_a)
      .def("layer_norm", &Engine::layer_norm, "value"_a, "count"_a, "weight"_a, "bias"_a, "eps"_a, "centred"_a = true)
      .def("group_norm", &Engine::group_norm, "value"_a, "groups"_a, "weight"_a, "bias"_a, "eps"_a)
      .def("prelu", &Engine::prelu, "value"_a, "slopes"_a)
      .def("curve", &Engine::curve, "value"_a, "curve"_a)
      .def("with_constant", &Engine::with_constant, "value"_a, "constant"_a, "multiply"_a)
      .def("move", &move, "value"_a, "shape"_a, "axes"_a, "offset"_a, "fill"_a,
           "Axes of an item, outermost first: (size, low, high, stride).")
      .def(
          "attention",
          [](Engine& e, const std::vector<int>& inputs, const std::tuple<int, int, int, int, int, int>& sizes,
             float scale, bool causal, const std::tuple<bool, bool, bool, bool>& tokens_first,
             const std::tuple<bool, bool, bool>& mask) {
            return attention(e, inputs, sizes, scale, causal, tokens_first, mask, {});
          },
          "values"_a, "sizes"_a, "scale"_a, "causal"_a, "tokens_first"_a, "mask"_a,
          "Sizes: heads, key heads, queries, keys, width, value width. Tokens first: of queries, keys, values, output. "
          "Mask: whether it has heads, has queries, is added.")
      .def("attention_masked", &attention, "values"_a, "sizes"_a, "scale"_a, "causal"_a, "tokens_first"_a, "mask"_a,
           "constant"_a, "With a mask that is the same at every run, of one item or of a few.")
      .def(
          "recurrent",
          [](Engine& e, int in, std::shared_ptr<const RecurrentWeights> weights, bool backwards) {
            return e.recurrent(in, std::move(weights), backwards);
          },
          "value"_a, "weights"_a, "backwards"_a)
      .def("recurrent_from", &Engine::recurrent, "value"_a, "weights"_a, "backwards"_a, "first"_a, "keeps_cell"_a,
           "First: values of the state and, of an LSTM, the cell that it begins with; none: zeros. A cell that is kept "
           "stands behind the states.")
      .def("outputs", &Engine::outputs, "values"_a)
      .def(
          "shape",
          [](const Engine& e, int value) {
            const Value& v = e.value(value);
            return std::make_tuple(v.items, v.shape.c, v.shape.h, v.shape.w);
          },
          "value"_a, "(items, c, h, w) of a value.")
      .def("run", &run, "inputs"_a, "outputs"_a,
           "Whether it ran: not where an input holds NaN or infinity, or a curve makes one. Lists of (address, number of elements).")
      .def("profile", &profile, "inputs"_a, "outputs"_a)
      .def_prop_ro("weight_bytes", &Engine::weight_bytes, Unlocked())
      .def_prop_ro("arena_bytes", &Engine::arena_bytes, Unlocked());
}

}  // namespace
}  // namespace tersify

NB_MODULE(_runtime, m) {
  using namespace tersify;
  m.def("isas", isa_names, "Instruction sets of this CPU that have kernels, slowest first.");
  m.def(
      "adds_fp16", [](const std::string& isa) { return adds_fp16(isa_named(isa)); }, "isa"_a,
      "Whether the instruction set adds 16-bit floats; all others emulate it, slowly.");

  nb::enum_<ValueKind>(m, "ValueKind")
      .value("SIGN", ValueKind::Sign)
      .value("TABLE", ValueKind::Table)
      .value("FLOAT", ValueKind::Float);
  nb::enum_<Curve>(m, "Curve")
      .value("EXP", Curve::Exp)
      .value("LOG", Curve::Log)
      .value("LOG_SIGMOID", Curve::LogSigmoid)
      .value("ROOT", Curve::Root);
  nb::enum_<Activation>(m, "Activation")
      .value("CLAMP", Activation::Clamp)
      .value("GELU", Activation::Gelu)
      .value("GELU_TANH", Activation::GeluTanh)
      .value("SILU", Activation::Silu)
      .value("SIGMOID", Activation::Sigmoid)
      .value("TANH", Activation::Tanh)
      .value("HARD_SWISH", Activation::HardSwish)
      .value("LEAKY", Activation::Leaky);

  nb::class_<Epilogue>(m, "Epilogue")
      .def(
          "__init__",
          [](Epilogue* self, std::vector<float> scale, std::vector<float> shift, std::vector<float> scale2,
             std::vector<float> shift2, Activation activation, float low, float high) {
            new (self) Epilogue{
                std::move(scale), std::move(shift), std::move(scale2), std::move(shift2), {}, activation, low, high};
          },
          "scale"_a = std::vector<float>{}, "shift"_a = std::vector<float>{}, "scale2"_a = std::vector<float>{},
          "shift2"_a = std::vector<float>{}, "activation"_a = Activation::Clamp, "low"_a = -INFINITY,
          "high"_a = INFINITY);

  nb::class_<Workspace>(m, "Workspace")
      .def(
          "__init__",
          [](Workspace* self, const std::string& isa, int threads, bool in_order) {
            new (self) Workspace(isa_named(isa), threads, in_order);
          },
          "isa"_a, "threads"_a, "in_order"_a = false)
      .def_prop_ro("isa", [](const Workspace& w) { return isa_name(w.isa()); })
      .def_prop_ro("threads", &Workspace::threads)
      .def_prop_ro("arena_bytes", &Workspace::arena_bytes, Unlocked());
  bind_weights(m);
  bind_engine(m);
  bind_decoding(m);

  nb::class_<FastCall>(m, "FastCall")
      .def(nb::init<nb::handle, nb::capsule, nb::handle, bool, nb::tuple, nb::tuple>(), "type"_a, "exchange"_a,
           "empty_like"_a, "one"_a, "hooks"_a, "watchers"_a)
      .def("remember", &FastCall::remember, "shapes"_a, "engine"_a, "blanks"_a)
      .def("remember_function", &FastCall::remember_function, "examples"_a, "function"_a)
      .def("__call__", &FastCall::operator())
      .def("run", &FastCall::run, "inputs"_a);
}
