// The C border: what the classes throw becomes a code and a sentence.
#include <algorithm>
#include <new>

#include "lib/include/tersify.h"
#include "lib/session.hpp"

#if !defined(TERSIFY_VERSION)
#define TERSIFY_VERSION "0"
#endif

struct tersify_model {
  std::shared_ptr<const tersify::lib::Model> real;
};
struct tersify_session {
  tersify::lib::Session real;
};

namespace tersify::lib {
namespace {

constexpr uint64_t kUsualLimit = uint64_t(1) << 31;

std::string& last_error() {
  thread_local std::string sentence;
  return sentence;
}

tersify_status failed(tersify_status code, const char* sentence) {
  try {
    last_error() = sentence;
  } catch (...) {  // no memory for the sentence: the code says enough
  }
  return code;
}

template <class Function>
tersify_status guarded(const Function& function) {
  try {
    function();
    return TERSIFY_OK;
  } catch (const CannotRead& e) {
    return failed(TERSIFY_CANNOT_READ, e.what());
  } catch (const BadFile& e) {
    return failed(TERSIFY_BAD_FILE, e.what());
  } catch (const NoPlan& e) {
    return failed(TERSIFY_NO_PLAN, e.what());
  } catch (const TooLarge& e) {
    return failed(TERSIFY_TOO_LARGE, e.what());
  } catch (const NotFinite& e) {
    return failed(TERSIFY_NOT_FINITE, e.what());
  } catch (const std::bad_alloc&) {
    return failed(TERSIFY_NO_MEMORY, "there is not enough memory");
  } catch (const std::length_error&) {
    return failed(TERSIFY_NO_MEMORY, "something is larger than memory can be");
  } catch (const std::logic_error& e) {
    return failed(TERSIFY_BAD_ARGUMENT, e.what());
  } catch (const std::exception& e) {
    return failed(TERSIFY_INTERNAL, e.what());
  } catch (...) {
    return failed(TERSIFY_INTERNAL, "an unknown error");
  }
}

void require(bool fine, const char* sentence) {
  if (!fine) throw std::invalid_argument(sentence);
}

tersify_status opened(std::shared_ptr<const Source> source, uint64_t max_bytes, tersify_model** model) {
  return guarded([&] {
    auto made = std::make_unique<tersify_model>();
    made->real = std::make_shared<const Model>(std::move(source), max_bytes ? max_bytes : kUsualLimit);
    *model = made.release();
  });
}

void fill_port(const std::vector<Port>& ports, size_t number, tersify_port* out) {
  require(out, "a port is written to a place, which is null");
  require(number < ports.size(), "the model has fewer ports than that");
  const Port& port = ports[number];
  *out = {port.name.c_str(), port.ids ? TERSIFY_INT64 : TERSIFY_FLOAT32, port.shape.size(), port.shape.data()};
}

std::vector<Span> spans_of(const tersify_tensor* tensors, size_t count) {
  require(tensors || !count, "tensors are given by a pointer, which is null");
  std::vector<Span> spans;
  for (size_t i = 0; i < count; ++i) {
    require(tensors[i].count <= size_t(PTRDIFF_MAX), "a tensor has more numbers than memory can hold");
    spans.push_back({static_cast<char*>(tensors[i].data), int64_t(tensors[i].count)});
  }
  return spans;
}

}  // namespace
}  // namespace tersify::lib

using namespace tersify::lib;

extern "C" {

const char* tersify_version(void) { return TERSIFY_VERSION; }

const char* tersify_last_error(void) { return last_error().c_str(); }

tersify_status tersify_open(const char* path, uint64_t max_bytes, tersify_model** model) {
  if (!path || !model) return failed(TERSIFY_BAD_ARGUMENT, "a path and a place for the model are needed, one is null");
  *model = nullptr;
  std::shared_ptr<const Source> source;
  const tersify_status status = guarded([&] { source = source_of_path(path); });
  return status == TERSIFY_OK ? opened(std::move(source), max_bytes, model) : status;
}

tersify_status tersify_open_memory(const void* data, size_t size, uint64_t max_bytes, tersify_model** model) {
  if (!data || !model) return failed(TERSIFY_BAD_ARGUMENT, "data and a place for the model are needed, one is null");
  *model = nullptr;
  std::shared_ptr<const Source> source;
  const tersify_status status = guarded([&] { source = source_of_memory(data, size); });
  return status == TERSIFY_OK ? opened(std::move(source), max_bytes, model) : status;
}

void tersify_close(tersify_model* model) { delete model; }

tersify_status tersify_describe(const tersify_model* model, tersify_facts* facts) {
  return guarded([&] {
    require(model && facts, "a model and a place for its facts are needed, one is null");
    const Plan& plan = model->real->plan;
    *facts = {plan.precision.c_str(), plan.batch,       plan.inputs.size(), plan.outputs.size(), plan.labels.size(),
              plan.mean.size(),       plan.mean.data(), plan.std.data(),    model->real->file.sections().file_bytes()};
  });
}

tersify_status tersify_input(const tersify_model* model, size_t number, tersify_port* port) {
  return guarded([&] {
    require(model, "the model is null");
    fill_port(model->real->plan.inputs, number, port);
  });
}

tersify_status tersify_output(const tersify_model* model, size_t number, tersify_port* port) {
  return guarded([&] {
    require(model, "the model is null");
    fill_port(model->real->plan.outputs, number, port);
  });
}

tersify_status tersify_lengths(const tersify_model* model, int64_t lengths[3]) {
  return guarded([&] {
    require(model && lengths, "a model and a place for its lengths are needed, one is null");
    const Lengths& own = model->real->plan.lengths;
    lengths[0] = own.step ? own.least : 0;
    lengths[1] = own.step;
    lengths[2] = own.step ? own.most : 0;
  });
}

tersify_status tersify_sizes(const tersify_model* model, int output, size_t number, int64_t batch, int64_t length,
                             int64_t* shape) {
  return guarded([&] {
    require(model && shape, "a model and a place for the sizes are needed, one is null");
    const Plan& plan = model->real->plan;
    require(number < plan.ports(output != 0).size(), "the model has fewer ports than that");
    plan.check({batch, length});
    const std::vector<int64_t> made = plan.shape_of(output != 0, number, {batch, length});
    std::copy(made.begin(), made.end(), shape);
  });
}

const char* tersify_label(const tersify_model* model, size_t number) {
  if (!model || number >= model->real->plan.labels.size()) return nullptr;
  return model->real->plan.labels[number].c_str();
}

tersify_status tersify_session_new(const tersify_model* model, const tersify_options* options,
                                   tersify_session** session) {
  return guarded([&] {
    require(model && session, "a model and a place for the session are needed, one is null");
    *session = nullptr;
    const tersify_options wanted = options ? *options : tersify_options{};
    const tersify::Isa isa = wanted.isa ? tersify::isa_named(wanted.isa) : tersify::available_isas().back();
    const int threads = wanted.threads ? wanted.threads : 1;
    require(threads >= 1 && threads <= 1024, "a session has 1..1024 threads");
    const uint64_t limit = wanted.max_bytes ? wanted.max_bytes : kUsualLimit;
    *session = new tersify_session{{model->real, isa, threads, limit}};
  });
}

void tersify_session_free(tersify_session* session) { delete session; }

tersify_status tersify_run(tersify_session* session, int64_t batch, const tersify_tensor* inputs,
                           const tersify_tensor* outputs) {
  return guarded([&] {
    require(session, "the session is null");
    const Plan& plan = session->real.plan();
    session->real.run(batch, spans_of(inputs, plan.inputs.size()), spans_of(outputs, plan.outputs.size()));
  });
}

tersify_status tersify_profile(tersify_session* session, int64_t batch, const tersify_tensor* inputs,
                               const tersify_tensor* outputs,
                               void (*step)(void* user, const char* kernel, double microseconds), void* user) {
  return guarded([&] {
    require(session && step, "a session and a function for its steps are needed, one is null");
    const Plan& plan = session->real.plan();
    const auto times =
        session->real.profile(batch, spans_of(inputs, plan.inputs.size()), spans_of(outputs, plan.outputs.size()));
    for (const tersify::StepTime& time : times) step(user, time.kernel, time.microseconds);
  });
}

}  // extern "C"
