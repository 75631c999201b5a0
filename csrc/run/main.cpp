// tersify-run FILE.terse IN.npy|IN.png [OUT.npy]: one static program that runs a network without Python.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>

#include "lib/include/tersify.h"
#include "run/arrays.hpp"

namespace tersify::run {
namespace {

using Clock = std::chrono::steady_clock;
constexpr const char* kUsage =
    "tersify-run FILE.terse IN.npy|IN.png [more inputs] [OUT.npy] [--threads N] [--isa NAME] [--bench N] [--profile]\n"
    "Runs the plan of FILE. Without OUT.npy it prints the five largest outputs of every item.\n";

struct Failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

void check(tersify_status status) {
  if (status != TERSIFY_OK) throw Failed(tersify_last_error());
}

struct ModelCloser {
  void operator()(tersify_model* model) const { tersify_close(model); }
};
struct SessionCloser {
  void operator()(tersify_session* session) const { tersify_session_free(session); }
};

struct Wanted {
  std::string file, out, isa;
  std::vector<std::string> inputs;
  int threads = 1, bench = 0;
  bool profile = false;
};

int number(const char* text, const char* flag, int high) {
  char* end = nullptr;
  const long found = std::strtol(text, &end, 10);
  if (*end || end == text || found < 1 || found > high)
    throw BadInput(std::string(flag) + " takes a whole number of 1.." + std::to_string(high) + ", got " + text);
  return int(found);
}

Wanted wanted_by(int count, char** given) {
  Wanted w;
  for (int i = 1; i < count; ++i) {
    const std::string flag = given[i];
    const bool takes = flag == "--threads" || flag == "--isa" || flag == "--bench";
    if (takes && i + 1 == count) throw BadInput(flag + " needs a value");
    if (flag == "--isa")
      w.isa = given[++i];
    else if (flag == "--threads")
      w.threads = number(given[++i], "--threads", 1024);
    else if (flag == "--bench")
      w.bench = number(given[++i], "--bench", 1000000);
    else if (flag == "--profile")
      w.profile = true;
    else if (flag.rfind("--", 0) == 0)
      throw BadInput("there is no option " + flag);
    else if (w.file.empty())
      w.file = flag;
    else
      w.inputs.push_back(flag);
  }
  if (w.inputs.empty()) throw BadInput("a file and an input are needed");
  return w;
}

std::string text_of(const std::vector<int64_t>& shape) {
  std::string text;
  for (const int64_t size : shape)
    text += (text.empty() ? "" : "×") + (size == -1 ? "batch" : size < 0 ? "length" : std::to_string(size));
  return text;
}

bool ends_in(const std::string& text, const std::string& end) {
  return text.size() > end.size() && text.compare(text.size() - end.size(), end.size(), end) == 0;
}

std::string name_of(const std::string& out, size_t number) { return number ? out + "." + std::to_string(number) : out; }

// What stands behind the inputs is where to write, and it must not be anything that somebody wants to keep.
void take_output(Wanted& w, const tersify_facts& facts) {
  const size_t given = w.inputs.size(), taken = facts.inputs;
  const std::string takes = "the network takes " + std::to_string(taken) + (taken == 1 ? " input" : " inputs");
  if (given != taken && given != taken + 1) throw BadInput(takes + ", got " + std::to_string(given));
  if (given == taken) return;
  w.out = w.inputs.back();
  w.inputs.pop_back();
  if (!ends_in(w.out, ".npy")) throw BadInput(takes + ", and a file to write ends in .npy, got '" + w.out + "'");
  std::vector<std::string> read = w.inputs;
  read.push_back(w.file);
  for (size_t i = 0; i < facts.outputs; ++i) check_replaceable(name_of(w.out, i), read);
}

// The array as the port takes it: bytes of images become floats of about zero mean.
Array fitted(Array array, const tersify_port& port, const tersify_facts& facts, int64_t& batch, int64_t& length) {
  const std::vector<int64_t> wanted(port.shape, port.shape + port.rank);
  bool fits = array.shape.size() == wanted.size();
  for (size_t i = 0; fits && i < wanted.size(); ++i) {
    int64_t& free = wanted[i] == -1 ? batch : length;
    if (wanted[i] < 0 && free == 0) free = array.shape[i];
    fits = array.shape[i] == (wanted[i] < 0 ? free : wanted[i]);
  }
  if (!fits || !array.count())
    throw BadInput(std::string("'") + port.name + "' takes " + text_of(wanted) + ", got " + text_of(array.shape));
  if (array.kind == (port.dtype == TERSIFY_INT64 ? 'i' : 'f')) return array;
  if (array.kind != 'u' || port.dtype == TERSIFY_INT64)
    throw BadInput(std::string("'") + port.name + "' takes " + (port.dtype == TERSIFY_INT64 ? "int64" : "float32"));
  const size_t channels = array.shape.size() > 1 ? size_t(array.shape[1]) : 1;
  const size_t plane = array.count() / size_t(array.shape[0]) / channels;
  const size_t known_channels = facts.image_channels;
  if (known_channels > 1 && known_channels != channels)
    throw BadInput("the plan has the mean of " + std::to_string(known_channels) + " channels for images, and '" +
                   port.name + "' has " + std::to_string(channels) + "; give float32");
  if (!known_channels)
    std::fprintf(stderr, "tersify-run: the plan does not say how images become numbers; bytes were divided by 255\n");
  std::vector<float> numbers(array.count());
  for (size_t i = 0; i < numbers.size(); ++i) {
    const size_t c = known_channels == 1 ? 0 : i / plane % channels;
    const float mean = known_channels ? facts.image_mean[c] : 0.0f, std = known_channels ? facts.image_std[c] : 1.0f;
    numbers[i] = (float(array.bytes[i]) / 255.0f - mean) / std;
  }
  array.kind = 'f';
  array.bytes.resize(numbers.size() * sizeof(float));
  std::memcpy(array.bytes.data(), numbers.data(), array.bytes.size());
  return array;
}

void print_largest(const tersify_model* model, const std::vector<float>& numbers, int64_t batch) {
  const size_t each = numbers.size() / size_t(batch);
  for (int64_t item = 0; item < batch; ++item) {
    const float* own = numbers.data() + size_t(item) * each;
    std::vector<size_t> order(each);
    std::iota(order.begin(), order.end(), size_t(0));
    const size_t shown = std::min<size_t>(5, each);
    std::partial_sort(order.begin(), order.begin() + ptrdiff_t(shown), order.end(),
                      [&](size_t a, size_t b) { return own[a] != own[b] ? own[a] > own[b] : a < b; });
    std::printf("%lld:", static_cast<long long>(item));
    for (size_t i = 0; i < shown; ++i) {
      const char* label = tersify_label(model, order[i]);
      std::printf(" %s %.6g", label ? label : std::to_string(order[i]).c_str(), double(own[order[i]]));
    }
    std::printf("\n");
  }
}

void add_step(void* user, const char* kernel, double microseconds) {
  (*static_cast<std::map<std::string, double>*>(user))[kernel] += microseconds;
}

void run(Wanted w) {
  const auto start = Clock::now();
  tersify_model* opened = nullptr;
  check(tersify_open(w.file.c_str(), 0, &opened));
  const std::unique_ptr<tersify_model, ModelCloser> model(opened);
  tersify_facts facts;
  check(tersify_describe(opened, &facts));
  take_output(w, facts);
  int64_t batch = facts.batch, length = 0;
  std::vector<Array> arrays;
  std::vector<tersify_tensor> inputs, outputs;
  for (size_t i = 0; i < facts.inputs; ++i) {
    tersify_port port;
    check(tersify_input(opened, i, &port));
    const std::string& path = w.inputs[i];
    arrays.push_back(fitted(ends_in(path, ".png") ? read_png(path) : read_npy(path), port, facts, batch, length));
  }
  batch = batch ? batch : 1;
  for (Array& array : arrays) inputs.push_back({array.bytes.data(), array.count()});
  std::vector<std::vector<float>> made;
  std::vector<std::vector<int64_t>> shapes;
  for (size_t i = 0; i < facts.outputs; ++i) {
    tersify_port port;
    check(tersify_output(opened, i, &port));
    shapes.emplace_back(port.rank);
    check(tersify_sizes(opened, 1, i, batch, length, shapes.back().data()));
    size_t count = 1;
    for (const int64_t size : shapes.back()) count *= size_t(size);
    made.emplace_back(count);
    outputs.push_back({made.back().data(), count});
  }
  tersify_options options{};
  options.threads = w.threads;
  options.isa = w.isa.empty() ? nullptr : w.isa.c_str();
  tersify_session* begun = nullptr;
  check(tersify_session_new(opened, &options, &begun));
  const std::unique_ptr<tersify_session, SessionCloser> session(begun);
  check(tersify_run(begun, batch, inputs.data(), outputs.data()));
  const double first = std::chrono::duration<double, std::milli>(Clock::now() - start).count();
  for (size_t i = 0; i < facts.outputs; ++i) {
    if (w.out.empty())
      print_largest(opened, made[i], batch);
    else
      write_npy(name_of(w.out, i), made[i].data(), shapes[i]);
  }
  if (w.bench) {
    std::vector<double> times;
    for (int i = 0; i < w.bench; ++i) {
      const auto begin = Clock::now();
      check(tersify_run(begun, batch, inputs.data(), outputs.data()));
      times.push_back(std::chrono::duration<double, std::milli>(Clock::now() - begin).count());
    }
    std::sort(times.begin(), times.end());
    std::printf("first result after %.1f ms; then %.3f ms a call of %lld (median of %d, least %.3f)\n", first,
                times[times.size() / 2], static_cast<long long>(batch), w.bench, times[0]);
  }
  if (w.profile) {
    std::map<std::string, double> kernels;
    check(tersify_profile(begun, batch, inputs.data(), outputs.data(), add_step, &kernels));
    for (const auto& [kernel, microseconds] : kernels) std::printf("%12.1f µs  %s\n", microseconds, kernel.c_str());
  }
}

}  // namespace
}  // namespace tersify::run

int main(int count, char** given) {
  try {
    if (count == 2 && (!std::strcmp(given[1], "--help") || !std::strcmp(given[1], "-h"))) {
      std::fputs(tersify::run::kUsage, stdout);
      return 0;
    }
    tersify::run::run(tersify::run::wanted_by(count, given));
    return 0;
  } catch (const tersify::run::BadInput& problem) {
    std::fprintf(stderr, "tersify-run: %s\n%s", problem.what(), tersify::run::kUsage);
  } catch (const std::exception& problem) {
    std::fprintf(stderr, "tersify-run: %s\n", problem.what());
  }
  return 1;
}
