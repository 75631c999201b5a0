#include "rerun.hpp"

#include <vector>

namespace nb = nanobind;

namespace tersify {
namespace {

// Made once: looking a name up by its bytes would cost more than the call.
struct Names {
  PyObject* dtype = PyUnicode_InternFromString("dtype");
  PyObject* layout = PyUnicode_InternFromString("layout");
  PyObject* shape = PyUnicode_InternFromString("shape");
  PyObject* is_cpu = PyUnicode_InternFromString("is_cpu");
  PyObject* is_contiguous = PyUnicode_InternFromString("is_contiguous");
  PyObject* data_ptr = PyUnicode_InternFromString("data_ptr");
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

nb::object attribute(nb::handle x, PyObject* name) { return checked(PyObject_GetAttr(x.ptr(), name)); }
nb::object asked(nb::handle x, PyObject* method) { return checked(PyObject_CallMethodNoArgs(x.ptr(), method)); }

void* address(nb::handle x) {
  void* found = PyLong_AsVoidPtr(asked(x, names().data_ptr).ptr());
  if (!found && PyErr_Occurred()) nb::raise_python_error();
  return found;
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

Rerun::Rerun(Engine* engine, nb::handle type, nb::handle dtype, nb::handle layout, nb::tuple shapes,
             nb::handle empty_like, nb::tuple blanks, nb::tuple hooks, nb::tuple watchers)
    : engine_(engine), batch_(nb::cast<int>(shapes[0][0])), type_(nb::borrow(type)), dtype_(nb::borrow(dtype)),
      layout_(nb::borrow(layout)), empty_like_(nb::borrow(empty_like)), shapes_(std::move(shapes)),
      blanks_(std::move(blanks)), hooks_(std::move(hooks)), watchers_(std::move(watchers)) {}

bool Rerun::watched() const {
  for (nb::handle hooks : hooks_)
    if (PyDict_Size(hooks.ptr()) != 0) return true;
  for (nb::handle watcher : watchers_)
    if (PyObject_IsTrue(checked(PyObject_CallNoArgs(watcher.ptr())).ptr()) != 0) return true;
  return false;
}

bool Rerun::usual(nb::handle x, nb::handle shape) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(x.ptr())) != type_.ptr()) return false;
  if (!attribute(x, names().dtype).is(dtype_) || !attribute(x, names().layout).is(layout_)) return false;
  if (attribute(x, names().is_cpu).ptr() != Py_True || asked(x, names().is_contiguous).ptr() != Py_True) return false;
  return attribute(x, names().shape).equal(shape);
}

nb::object Rerun::operator()(const nb::tuple& inputs, const nb::dict& module) const {
  if (inputs.size() != shapes_.size() || wrapped(module) || watched()) return nb::none();
  std::vector<const float*> sources;
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (!usual(inputs[i], shapes_[i])) return nb::none();
    sources.push_back(static_cast<const float*>(address(inputs[i])));
  }
  std::vector<float*> targets;
  nb::list outputs;
  for (nb::handle blank : blanks_) {
    const nb::object made = checked(PyObject_CallOneArg(empty_like_.ptr(), blank.ptr()));
    targets.push_back(static_cast<float*>(address(made)));
    outputs.append(made);
  }
  if (batch_) {
    nb::gil_scoped_release released;
    engine_->run(batch_, sources, targets);
  }
  return outputs;
}

}  // namespace tersify
