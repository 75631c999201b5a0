// A batch of items through the network, in C++: handles close themselves, and a code becomes an exception.
#include <tersify.h>

#include <cstdio>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

void check(tersify_status status) {
  if (status != TERSIFY_OK) throw std::runtime_error(tersify_last_error());
}

using Model = std::unique_ptr<tersify_model, decltype(&tersify_close)>;
using Session = std::unique_ptr<tersify_session, decltype(&tersify_session_free)>;

Model open(const char* path) {
  tersify_model* model = nullptr;
  check(tersify_open(path, 0, &model));
  return Model(model, tersify_close);
}

Session session(const Model& model, int threads) {
  tersify_options options{};
  options.threads = threads;
  tersify_session* made = nullptr;
  check(tersify_session_new(model.get(), &options, &made));
  return Session(made, tersify_session_free);
}

size_t count_of(const tersify_port& port, int64_t batch) {
  size_t count = 1;
  for (size_t i = 0; i < port.rank; ++i) count *= size_t(port.shape[i] < 0 ? batch : port.shape[i]);
  return count;
}

}  // namespace

int main(int argc, char** argv) try {
  if (argc != 2) throw std::runtime_error("usage: batch FILE.terse");
  const Model model = open(argv[1]);
  tersify_facts facts;
  check(tersify_describe(model.get(), &facts));
  if (facts.inputs != 1 || facts.outputs != 1)  // tersify_run takes a tensor for every port
    throw std::runtime_error("this example is for networks of one input and one output; tersify-run runs the others");
  const int64_t batch = facts.batch ? facts.batch : 4;
  const Session running = session(model, 2);
  tersify_port in, out;
  check(tersify_input(model.get(), 0, &in));
  check(tersify_output(model.get(), 0, &out));
  if (in.dtype != TERSIFY_FLOAT32)
    throw std::runtime_error(std::string("this example gives float32, and '") + in.name + "' takes int64");
  std::vector<float> given(count_of(in, batch)), made(count_of(out, batch));
  const tersify_tensor from{given.data(), given.size()}, to{made.data(), made.size()};
  check(tersify_run(running.get(), batch, &from, &to));
  std::printf("%zu numbers, the first is %g\n", made.size(), made[0]);
} catch (const std::exception& problem) {
  std::fprintf(stderr, "%s\n", problem.what());
  return 1;
}
