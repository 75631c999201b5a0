#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "engine.hpp"
#include "rerun.hpp"

namespace nb = nanobind;
using namespace nb::literals;

namespace tersify {
namespace {

using Floats = nb::ndarray<const float, nb::c_contig, nb::device::cpu>;
using Sizes = std::tuple<int, int, int>;

Shape shape_of(const Sizes& s) { return {std::get<0>(s), std::get<1>(s), std::get<2>(s)}; }

Window window_of(const std::vector<int>& v) {
  if (v.size() != 8) throw std::invalid_argument("a window has 8 numbers: kernel, stride, pad, dilation, each h and w");
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7]};
}

ValueKind kind_of(const std::string& name) {
  if (name == "sign") return ValueKind::Sign;
  if (name == "table") return ValueKind::Table;
  if (name == "float") return ValueKind::Float;
  throw std::invalid_argument("value kinds are sign, table and float, got '" + name + "'");
}

float* floats_at(uintptr_t address) {
  if (!address)
    throw std::invalid_argument("a tensor has no memory to compute with: its storage was emptied, or it stands for another");
  return reinterpret_cast<float*>(address);
}

// Addresses of contiguous float32 data; the caller has checked their sizes.
void run_into(Engine& engine, int n, const std::vector<uintptr_t>& inputs, const std::vector<uintptr_t>& outputs,
              std::vector<StepTime>* profile) {
  std::vector<const float*> in;
  std::vector<float*> out;
  for (uintptr_t a : inputs) in.push_back(floats_at(a));
  for (uintptr_t a : outputs) out.push_back(floats_at(a));
  nb::gil_scoped_release released;
  engine.run(n, in, out, profile);
}

void run(Engine& engine, int n, const std::vector<uintptr_t>& inputs, const std::vector<uintptr_t>& outputs) {
  run_into(engine, n, inputs, outputs, nullptr);
}

// The same, and of every step: the value it helps to make, its kernel, its microseconds.
std::vector<std::tuple<int, std::string, double>> profile(Engine& engine, int n, const std::vector<uintptr_t>& inputs,
                                                          const std::vector<uintptr_t>& outputs) {
  std::vector<StepTime> times;
  run_into(engine, n, inputs, outputs, &times);
  std::vector<std::tuple<int, std::string, double>> found;
  for (const StepTime& t : times) found.emplace_back(t.value, t.kernel, t.microseconds);
  return found;
}

std::vector<std::string> isa_names() {
  std::vector<std::string> names;
  for (Isa isa : available_isas()) names.push_back(isa_name(isa));
  return names;
}

}  // namespace
}  // namespace tersify

NB_MODULE(_runtime, m) {
  using namespace tersify;
  m.def("isas", isa_names, "Instruction sets of this CPU that have kernels, slowest first.");
  m.def("adds_halves", [](const std::string& isa) { return adds_halves(isa_named(isa)); }, "isa"_a,
        "Whether the instruction set adds 16-bit floats; all others emulate it, slowly.");

  nb::class_<FinishData>(m, "Finish")
      .def("__init__",
           [](FinishData* self, std::vector<float> scale, std::vector<float> shift, std::vector<float> scale2,
              std::vector<float> shift2, const std::string& act, float low, float high) {
             new (self) FinishData{std::move(scale), std::move(shift), std::move(scale2), std::move(shift2),
                                   act == "gelu"   ? Act::Gelu
                                   : act == "silu" ? Act::Silu
                                                   : Act::Clamp,
                                   low, high};
           },
           "scale"_a, "shift"_a, "scale2"_a, "shift2"_a, "act"_a, "low"_a, "high"_a);

  nb::class_<Engine>(m, "Engine")
      .def("__init__",
           [](Engine* self, const std::string& isa, int threads) { new (self) Engine(isa_named(isa), threads); },
           "isa"_a, "threads"_a)
      .def("input", [](Engine& e, const Sizes& s) { return e.input(shape_of(s)); })
      .def("conv",
           [](Engine& e, int in, const std::vector<int>& window, int groups, const Floats& weight,
              const std::string& kind, std::vector<float> table, const FinishData& finish, int residual, const FinishData* mean,
              bool half) {
             return e.conv(in, window_of(window), groups, weight.data(), int(weight.shape(0)), kind_of(kind),
                           std::move(table), finish, residual, mean, half);
           },
           "value"_a, "window"_a, "groups"_a, "weight"_a, "kind"_a, "table"_a, "finish"_a, "residual"_a, "mean"_a.none(),
           "half"_a = false)
      .def("narrow_conv",
           [](Engine& e, int in, const std::vector<int>& window, int groups, const Floats& weight,
              const FinishData& finish, int residual, std::tuple<float, float, float> output, const FinishData* mean) {
             return e.narrow_conv(in, window_of(window), groups, weight.data(), int(weight.shape(0)), finish, residual,
                                  {std::get<0>(output), std::get<1>(output), std::get<2>(output)}, mean);
           },
           "value"_a, "window"_a, "groups"_a, "weight"_a, "finish"_a, "residual"_a, "output"_a, "mean"_a.none())
      .def("dense_conv",
           [](Engine& e, int in, const std::vector<int>& window, const Floats& weight, const FinishData& finish,
              int residual, std::tuple<float, float, float> quant) {
             return e.dense_conv(in, window_of(window), weight.data(), int(weight.shape(0)), finish, residual,
                                 {std::get<0>(quant), std::get<1>(quant), std::get<2>(quant)});
           },
           "value"_a, "window"_a, "weight"_a, "finish"_a, "residual"_a, "quant"_a)
      .def("quantize",
           [](Engine& e, int value, float scale, float low, float high) { e.quantize(value, {scale, low, high}); })
      .def("linear",
           [](Engine& e, int in, const Floats& weight, const std::string& kind, std::vector<float> table,
              const FinishData& finish) {
             return e.linear(in, int(weight.shape(1)), weight.data(), int(weight.shape(0)), kind_of(kind),
                             std::move(table), finish);
           },
           "value"_a, "weight"_a, "kind"_a, "table"_a, "finish"_a)
      .def("byte_linear",
           [](Engine& e, int in, const Floats& weight, const FinishData& finish) {
             return e.byte_linear(in, int(weight.shape(1)), weight.data(), int(weight.shape(0)), finish);
           },
           "value"_a, "weight"_a, "finish"_a)
      .def("pool",
           [](Engine& e, int in, const std::vector<int>& window, bool is_max, bool count_padding, const Sizes& output) {
             return e.pool(in, window_of(window), is_max, count_padding, shape_of(output));
           })
      .def("fold_maxima",
           [](Engine& e, int conv, const std::vector<int>& window, const Sizes& output) {
             return e.fold_maxima(conv, window_of(window), shape_of(output));
           })
      .def("embedding",
           [](Engine& e, int in, const Floats& weight, std::vector<float> table, std::vector<float> scale) {
             return e.embedding(in, weight.data(), int(weight.shape(0)), int(weight.shape(1)), std::move(table),
                                std::move(scale));
           },
           "value"_a, "weight"_a, "table"_a, "scale"_a)
      .def("global_mean", &Engine::global_mean)
      .def("elementwise", &Engine::elementwise)
      .def("concatenate", &Engine::concatenate)
      .def("view", [](Engine& e, int in, const Sizes& s) { return e.view(in, shape_of(s)); })
      .def("softmax", &Engine::softmax)
      .def("layer_norm", &Engine::layer_norm)
      .def("outputs", &Engine::outputs)
      .def("run", &run)
      .def("profile", &profile)
      .def_prop_ro("weight_bytes", &Engine::weight_bytes)
      .def_prop_ro("arena_bytes", &Engine::arena_bytes)
      .def_prop_ro("threads", &Engine::threads)
      .def_prop_ro("isa", [](const Engine& e) { return isa_name(e.isa()); });

  nb::class_<Rerun>(m, "Rerun")
      .def(nb::init<Engine*, nb::handle, nb::capsule, nb::tuple, nb::handle, nb::tuple, bool, nb::tuple, nb::tuple>(),
           nb::keep_alive<1, 2>(), "engine"_a, "type"_a, "exchange"_a, "shapes"_a, "empty_like"_a, "blanks"_a, "one"_a,
           "hooks"_a, "watchers"_a)
      .def_prop_ro("shapes", &Rerun::shapes)
      .def("__call__", &Rerun::operator());
}
