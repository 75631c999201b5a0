#include "isa.hpp"

#include <stdexcept>

namespace tersify {

std::vector<Isa> available_isas() {
  std::vector<Isa> isas{Isa::Portable};
#if defined(__x86_64__)
  // These builtins also ask whether the operating system saves the wide registers.
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) {
    isas.push_back(Isa::Avx2);
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl")) {
      isas.push_back(Isa::Avx512);
      if (__builtin_cpu_supports("avx512vnni")) isas.push_back(Isa::Avx512Vnni);
    }
  }
#endif
  return isas;
}

std::string isa_name(Isa isa) {
  switch (isa) {
    case Isa::Avx2: return "avx2";
    case Isa::Avx512: return "avx512";
    case Isa::Avx512Vnni: return "avx512vnni";
    default: return "portable";
  }
}

Isa isa_named(const std::string& name) {
  std::string known;
  for (Isa isa : available_isas()) {
    if (isa_name(isa) == name) return isa;
    known += (known.empty() ? "" : ", ") + isa_name(isa);
  }
  throw std::invalid_argument("this CPU has no instruction set '" + name + "'; it has: " + known);
}

}  // namespace tersify
