#include "rerun.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>

namespace nb = nanobind;

namespace tersify {
namespace {

// Made once: looking a name up by its bytes would cost more than the call.
struct Names {
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* forward = PyUnicode_InternFromString("forward");
  PyObject* compiled = PyUnicode_InternFromString("_compiled_call_impl");
  PyObject* hooks[4] = {
      PyUnicode_InternFromString("_forward_hooks"), PyUnicode_InternFromString("_forward_pre_hooks"),
      PyUnicode_InternFromString("_backward_hooks"), PyUnicode_InternFromString("_backward_pre_hooks")};
};

const Names& names() {
  static const Names made;
  return made;
}

nb::object checked(PyObject* made) {
  if (!made) nb::raise_python_error();
  return nb::steal(made);
}

const TensorExchange* exchange_of(const nb::capsule& offered) {
  auto* found = static_cast<const TensorExchange*>(offered.data("dlpack_exchange_api"));
  while (found && found->major != 1) found = found->older;
  return found && found->describe ? found : nullptr;
}

// Floats in memory, one behind the other, of this shape.
bool plain(const nb::dlpack::dltensor& t, const std::vector<int64_t>& shape) {
  if (t.device.device_type != nb::device::cpu::value || t.dtype != nb::dtype<float>() || t.byte_offset != 0) return false;
  if (!std::equal(shape.begin(), shape.end(), t.shape, t.shape + t.ndim)) return false;
  int64_t apart = 1;
  for (int dim = t.ndim - 1; dim >= 0; apart *= shape[dim--])
    if (shape[dim] != 1 && t.strides[dim] != apart) return false;
  return true;
}

// What lies in memory is the negative of what is meant.
bool negative(nb::handle x) {
  return checked(PyObject_CallMethodNoArgs(x.ptr(), names().is_neg)).ptr() != Py_False;
}

PyObject* item(const nb::dict& attributes, PyObject* name) {
  PyObject* found = PyDict_GetItemWithError(attributes.ptr(), name);
  if (!found && PyErr_Occurred()) nb::raise_python_error();
  return found;
}

// Hooks, a `forward` of its own, or torch's compiler.
bool wrapped(const nb::dict& module) {
  for (PyObject* name : names().hooks) {
    PyObject* hooks = item(module, name);
    if (!hooks || !PyDict_Check(hooks) || PyDict_Size(hooks) != 0) return true;
  }
  PyObject* compiled = item(module, names().compiled);
  return item(module, names().forward) || (compiled && compiled != Py_None);
}

}  // namespace

Rerun::Rerun(Engine* engine, nb::handle type, nb::capsule exchange, nb::tuple shapes, nb::handle empty_like,
             nb::tuple blanks, bool one, nb::tuple hooks, nb::tuple watchers)
    : engine_(engine), batch_(nb::cast<int>(shapes[0][0])), one_(one), exchange_(exchange_of(exchange)), type_(nb::borrow(type)),
      empty_like_(nb::borrow(empty_like)), shapes_(std::move(shapes)), blanks_(std::move(blanks)),
      hooks_(std::move(hooks)), watchers_(std::move(watchers)) {
  for (nb::handle shape : shapes_) sizes_.push_back(nb::cast<std::vector<int64_t>>(shape));
  for (nb::handle blank : blanks_) output_sizes_.push_back(nb::cast<std::vector<int64_t>>(blank.attr("shape")));
}

bool Rerun::watched() const {
  for (nb::handle hooks : hooks_)
    if (PyDict_Size(hooks.ptr()) != 0) return true;
  for (nb::handle watcher : watchers_)
    if (PyObject_IsTrue(checked(PyObject_CallNoArgs(watcher.ptr())).ptr()) != 0) return true;
  return false;
}

// Where they begin; null where they are not as they were.
float* Rerun::numbers(nb::handle x, const std::vector<int64_t>& shape) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(x.ptr())) != type_.ptr() || !exchange_) return nullptr;
  nb::dlpack::dltensor found;
  if (exchange_->describe(x.ptr(), &found) == 0) return plain(found, shape) ? static_cast<float*>(found.data) : nullptr;
  PyErr_Clear();  // not in memory: the ordinary way tells the caller
  return nullptr;
}

nb::object Rerun::operator()(const nb::tuple& inputs, const nb::dict& module) const {
  if (inputs.size() != sizes_.size() || wrapped(module) || watched()) return nb::none();
  std::vector<const float*> sources;
  for (size_t i = 0; i < sizes_.size(); ++i) {
    sources.push_back(numbers(inputs[i], sizes_[i]));
    if (!sources.back() || negative(inputs[i])) return nb::none();
  }
  std::vector<float*> targets;
  nb::object made, all = one_ ? nb::object() : nb::list();
  for (size_t i = 0; i < output_sizes_.size(); ++i) {
    made = checked(PyObject_CallOneArg(empty_like_.ptr(), blanks_[i].ptr()));
    targets.push_back(numbers(made, output_sizes_[i]));
    if (!targets.back()) return nb::none();  // a mode made something else
    if (!one_) nb::borrow<nb::list>(all).append(made);
  }
  {
    nb::gil_scoped_release released;
    engine_->run(batch_, sources, targets);
  }
  return one_ ? made : all;
}

}  // namespace tersify
