// Every kernel of every instruction set of this CPU against plain loops (reference.hpp) on random shapes, and, where
// the bits must be the same everywhere, against the portable one. Then how long some take (not with --quick).
// `kernel_check --quick [CASES] ISA ...` checks these alone, `kernel_check --isas` names those of this CPU,
// `kernel_check --layer KIND ISA VECTORS` runs one layer once and checks nothing.
// One static program, for machines that have nothing but the CPU: cmake --build BUILD --target kernel_check
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <functional>
#include <vector>

#include "kernel_cases.hpp"
#include "kernel_times.hpp"
#include "one_layer.hpp"

namespace {

using namespace tersify;
using namespace tersify::checks;

constexpr int kCases = 40;

bool agree(const Case& c, Isa isa, int threads) {
  const Numbers wanted = c.reference(), given = run(c, isa, threads);
  if (c.same_bits && given != run(c, Isa::Portable, 1)) return false;
  float top = 1;
  for (float v : wanted) top = std::max(top, std::abs(v));
  for (size_t i = 0; i < wanted.size(); ++i)
    if (!(std::abs(wanted[i] - given[i]) <= 1.01 * c.tolerance * top)) return false;
  return true;
}

struct Checked {
  const char* name;
  std::function<Case(Random&)> make;
};

std::vector<Checked> all_kernels() {
  auto conv = [](ValueKind kind, ConvKernel kernel) { return [=](Random& r) { return conv_case(r, kind, kernel); }; };
  auto linear = [](ValueKind kind) { return [=](Random& r) { return linear_case(r, kind); }; };
  auto codes = [](ValueKind kind, int rows) { return [=](Random& r) { return codes_case(r, kind, rows); }; };
  std::vector<Checked> all{
      {"conv of signs", conv(ValueKind::Sign, ConvKernel::Lists)},
      {"conv of signs, rows alike", conv(ValueKind::Sign, ConvKernel::Pairs)},
      {"conv of tables", conv(ValueKind::Table, ConvKernel::Lists)},
      {"conv of floats", conv(ValueKind::Float, ConvKernel::Lists)},
      {"dense conv", conv(ValueKind::Float, ConvKernel::Dense)},
      {"int8 conv", conv(ValueKind::Sign, ConvKernel::Int8)},
      {"two-bit conv", conv(ValueKind::Sign, ConvKernel::Codes)},
      {"linear of signs", linear(ValueKind::Sign)},
      {"linear of tables", linear(ValueKind::Table)},
      {"linear of floats", linear(ValueKind::Float)},
      {"two-bit linear", codes(ValueKind::Sign, 1)},
      {"two-bit linear of many rows", codes(ValueKind::Sign, 1000)},
      {"streamed linear of signs", [](Random& r) { return codes_case(r, ValueKind::Sign, 100, true); }},
      {"four-bit linear", codes(ValueKind::Table, 1)},
      {"pool", pool_case},
  };
  if (portable_kernels().conv_lists_f16) {  // a library for plans has none
    all.push_back({"linear of bits", bits_case});
    all.push_back({"conv of bits", conv_bits_case});
    all.push_back({"fp16 conv of signs", conv(ValueKind::Sign, ConvKernel::Fp16)});
    all.push_back({"fp16 conv of tables", conv(ValueKind::Table, ConvKernel::Fp16)});
    all.push_back({"fp16 conv of floats", conv(ValueKind::Float, ConvKernel::Fp16)});
  }
  return all;
}

bool all_agree(Isa isa, int cases) {
  bool good = true;
  for (const Checked& kernel : all_kernels()) {
    int passed = 0;
    for (int i = 0; i < cases; ++i) {
      Random r(i);
      passed += agree(kernel.make(r), isa, 1 + i % 3);
    }
    std::printf("%s %s %d of %d cases passed\n", isa_name(isa).c_str(), kernel.name, passed, cases);
    good = good && passed == cases;
  }
  std::fflush(stdout);
  return good;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 5 && std::strcmp(arguments[1], "--layer") == 0) {
    run(one_layer(arguments[2], std::atoi(arguments[4])), isa_named(arguments[3]), 1);
    return 0;
  }
  if (count == 2 && std::strcmp(arguments[1], "--isas") == 0) {
    for (Isa isa : available_isas()) std::printf("%s\n", isa_name(isa).c_str());
    return 0;
  }
  const bool quick = count > 1 && std::strcmp(arguments[1], "--quick") == 0;
  std::vector<Isa> wanted;
  const int cases = quick && count > 2 ? std::atoi(arguments[2]) : 0;
  for (int i = cases > 0 ? 3 : 2; quick && i < count; ++i) wanted.push_back(isa_named(arguments[i]));
  bool good = true;
  for (Isa isa : wanted.empty() ? available_isas() : wanted) {
    good = all_agree(isa, cases > 0 ? cases : kCases) && good;
    if (!quick && isa != Isa::Portable) print_times(isa);
  }
  std::printf(good ? "all kernels agree\n" : "SOME KERNELS DISAGREE\n");
  return good ? 0 : 1;
}
