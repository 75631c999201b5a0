#include "bindings/fast_call.hpp"

#include <nanobind/stl/vector.h>

#include <algorithm>
#include <functional>
#include <numeric>

namespace nb = nanobind;

namespace tersify {
namespace {

constexpr size_t kMaxEntries = 8;

// Made once: looking a name up by its bytes would cost more than the call.
struct Names {
  PyObject* is_neg = PyUnicode_InternFromString("is_neg");
  PyObject* attributes = PyUnicode_InternFromString("__dict__");
  PyObject* forward = PyUnicode_InternFromString("forward");
  PyObject* compiled = PyUnicode_InternFromString("_compiled_call_impl");
  PyObject* hooks[4] = {PyUnicode_InternFromString("_forward_hooks"), PyUnicode_InternFromString("_forward_pre_hooks"),
                        PyUnicode_InternFromString("_backward_hooks"),
                        PyUnicode_InternFromString("_backward_pre_hooks")};
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

// Numbers of this type in memory, one behind the other, of this shape.
bool plain(const nb::dlpack::dltensor& t, const std::vector<int64_t>& shape, nb::dlpack::dtype type) {
  if (t.device.device_type != nb::device::cpu::value || t.dtype != type || t.byte_offset != 0) return false;
  if (!std::equal(shape.begin(), shape.end(), t.shape, t.shape + t.ndim)) return false;
  int64_t apart = 1;
  for (int dim = t.ndim - 1; dim >= 0; apart *= shape[dim--])
    if (shape[dim] != 1 && t.strides[dim] != apart) return false;
  return true;
}

int64_t numel(const std::vector<int64_t>& shape) {
  return std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<int64_t>());
}

// What lies in memory is the negative of what is meant.
bool negative(nb::handle x) {
  PyObject* self = x.ptr();
  return checked(PyObject_VectorcallMethod(names().is_neg, &self, 1, nullptr)).ptr() != Py_False;
}

// A module may tell an input given twice from two equal ones.
bool twice(const nb::tuple& inputs) {
  for (size_t i = 1; i < inputs.size(); ++i)
    for (size_t j = 0; j < i; ++j)
      if (inputs[i].ptr() == inputs[j].ptr()) return true;
  return false;
}

// Attributes that somebody gave a tensor: a forward may read them.
bool carries(nb::handle x) {
  const nb::object held = checked(PyObject_GetAttr(x.ptr(), names().attributes));
  return PyDict_Size(held.ptr()) != 0;
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

FastCall::FastCall(nb::handle type, nb::capsule exchange, nb::handle empty_like, bool one, nb::tuple hooks,
                   nb::tuple watchers)
    : one_(one),
      exchange_(exchange_of(exchange)),
      type_(nb::borrow(type)),
      empty_like_(nb::borrow(empty_like)),
      hooks_(std::move(hooks)),
      watchers_(std::move(watchers)) {}

void FastCall::remember(const nb::tuple& shapes, nb::object engine, nb::tuple blanks) {
  Entry entry;
  entry.engine = nb::cast<Engine*>(engine);
  if (!entry.engine) throw std::invalid_argument("a fast call needs an engine");
  for (nb::handle shape : shapes) entry.inputs.push_back({nb::cast<Sizes>(shape), nb::dtype<float>()});
  for (nb::handle blank : blanks) entry.outputs.push_back(nb::cast<Sizes>(blank.attr("shape")));
  const Engine& e = *entry.engine;
  bool fits = entry.inputs.size() == e.input_number() && entry.outputs.size() == e.output_number();
  for (size_t i = 0; fits && i < entry.inputs.size(); ++i) {
    if (e.input_is_ids(i)) entry.inputs[i].type = nb::dtype<int64_t>();
    fits = numel(entry.inputs[i].shape) == e.input_count(i);
  }
  for (size_t i = 0; fits && i < entry.outputs.size(); ++i) fits = numel(entry.outputs[i]) == e.output_count(i);
  if (!fits || (one_ && entry.outputs.size() != 1))
    throw std::invalid_argument("the shapes and blanks of a fast call are not those of its engine");
  entry.engine->seal();
  entry.runs = std::move(engine);
  entry.blanks = std::move(blanks);
  keep(std::move(entry));
}

void FastCall::remember_function(const nb::tuple& examples, nb::object function) {
  Entry entry;
  for (nb::handle example : examples) {
    nb::dlpack::dltensor t;
    if (!describe(example, t)) return;  // such inputs would not be recognised either
    entry.inputs.push_back({Sizes(t.shape, t.shape + t.ndim), t.dtype});
  }
  entry.runs = std::move(function);
  keep(std::move(entry));
}

void FastCall::keep(Entry entry) {
  const auto known =
      std::find_if(entries_.begin(), entries_.end(), [&](const Entry& e) { return e.inputs == entry.inputs; });
  if (known != entries_.end()) entries_.erase(known);
  entries_.insert(entries_.begin(), std::move(entry));
  if (entries_.size() > kMaxEntries) entries_.pop_back();
}

bool FastCall::watched() const {
  for (nb::handle hooks : hooks_)
    if (PyDict_Size(hooks.ptr()) != 0) return true;
  for (nb::handle watcher : watchers_)
    if (PyObject_IsTrue(checked(PyObject_CallNoArgs(watcher.ptr())).ptr()) != 0) return true;
  return false;
}

bool FastCall::describe(nb::handle x, nb::dlpack::dltensor& description) const {
  if (reinterpret_cast<PyObject*>(Py_TYPE(x.ptr())) != type_.ptr() || !exchange_) return false;
  if (exchange_->describe(x.ptr(), &description) == 0) return true;
  PyErr_Clear();  // not in memory: the ordinary way tells the caller
  return false;
}

const FastCall::Entry* FastCall::find(const nb::tuple& inputs, std::vector<Span>& sources) {
  std::vector<nb::dlpack::dltensor> given(inputs.size());
  // Asking Python may let other threads run, which may move the entries: nothing below does.
  for (size_t i = 0; i < given.size(); ++i)
    if (!describe(inputs[i], given[i]) || !given[i].data || negative(inputs[i]) || carries(inputs[i])) return nullptr;
  for (size_t e = 0; e < entries_.size(); ++e) {
    const Entry& entry = entries_[e];
    bool fits = entry.inputs.size() == given.size();
    for (size_t i = 0; fits && i < given.size(); ++i)
      fits = plain(given[i], entry.inputs[i].shape, entry.inputs[i].type);
    if (!fits) continue;
    for (size_t i = 0; i < given.size(); ++i)
      sources.push_back({static_cast<char*>(given[i].data), numel(entry.inputs[i].shape)});
    if (e > 0) std::rotate(entries_.begin(), entries_.begin() + e, entries_.begin() + e + 1);
    return &entries_.front();
  }
  return nullptr;
}

nb::object FastCall::operator()(const nb::tuple& inputs, const nb::dict& module) {
  return entries_.empty() || wrapped(module) || watched() || twice(inputs) ? nb::none() : run(inputs);
}

nb::object FastCall::run(const nb::tuple& inputs) {
  std::vector<Span> sources, targets;
  const Entry* found = find(inputs, sources);
  if (!found) return nb::none();
  const Entry entry = *found;  // another thread may move or drop it while this one runs
  if (!entry.engine) return checked(PyObject_CallFunctionObjArgs(entry.runs.ptr(), inputs.ptr(), nullptr));
  nb::object made, all = one_ ? nb::object() : nb::list();
  for (size_t i = 0; i < entry.outputs.size(); ++i) {
    PyObject* blank = entry.blanks[i].ptr();
    made = checked(PyObject_Vectorcall(empty_like_.ptr(), &blank, 1, nullptr));
    nb::dlpack::dltensor description;
    if (!describe(made, description) || !plain(description, entry.outputs[i], nb::dtype<float>()) || !description.data)
      return nb::none();  // a mode made something else
    targets.push_back({static_cast<char*>(description.data), numel(entry.outputs[i])});
    if (!one_) nb::borrow<nb::list>(all).append(made);
  }
  bool finite;
  {
    nb::gil_scoped_release released;
    finite = entry.engine->run(sources, targets);
  }
  if (!finite) return nb::none();
  return one_ ? made : all;
}

}  // namespace tersify
