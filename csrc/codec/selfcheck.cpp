// Codes and decodes made-up groups on every path of this machine and prints a sum of all coded bytes, which must be the
// same on every platform. Needs nothing but a compiler, so that it also runs under an emulator:
//   aarch64-linux-gnu-g++ -std=c++17 -O2 -static
//     csrc/codec/{selfcheck,classes,cluster,decode,decode_128,encode,flat,model,refine,tables}.cpp
//   qemu-aarch64 ./a.out
#include <cstdio>

#include "decode.h"
#include "encode.h"

using namespace tersify;

namespace {

struct Random {
  uint64_t state = 88172645463325252ull;
  uint32_t below(uint32_t limit) {
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return static_cast<uint32_t>((state >> 32) % limit);
  }
};

// Codes whose density depends on filter and channel, and that repeat the code before them now and then.
std::vector<uint8_t> make_codes(const Box& box, uint32_t levels, Random& random) {
  std::vector<uint8_t> codes;
  for (int64_t f = 0; f < box.filters; ++f)
    for (int64_t c = 0; c < box.channels; ++c)
      for (int64_t t = 0; t < box.taps; ++t) {
        const bool repeat = t > 0 && random.below(3) == 0, zero = random.below(100) > 10 + (f * 7 + c * 3) % 50;
        codes.push_back(repeat ? codes.back() : zero ? 0 : static_cast<uint8_t>(random.below(levels)));
      }
  return codes;
}

}  // namespace

int main() {
  Random random;
  uint64_t sum = 14695981039346656037ull;
  size_t total = 0;
  const std::vector<Box> kinds = {{40, 33, 9, 3}, {70, 64, 1, 1}, {12, 9, 25, 5}, {3, 5, 7, 7}, {1, 1000, 1, 1}};
  for (int round = 0; round < 60; ++round) {
    const int levels = (const int[]){2, 3, 3, 5, 16, 256}[round % 6];
    std::vector<Box> boxes;
    std::vector<uint8_t> codes;
    Hints hints;
    for (uint32_t i = 0; i < 1 + random.below(3); ++i) {
      boxes.push_back(kinds[random.below(static_cast<uint32_t>(kinds.size()))]);
      const std::vector<uint8_t> more = make_codes(boxes.back(), static_cast<uint32_t>(levels), random);
      codes.insert(codes.end(), more.begin(), more.end());
      hints.activity.emplace_back();
      for (int l = 0; l < levels; ++l) hints.activity.back().push_back(static_cast<uint8_t>(l * 255 / (levels - 1)));
    }
    for (int l = 0; l < levels; ++l) hints.order.push_back(static_cast<uint8_t>(l));
    const std::vector<uint8_t> coded = encode_codes(codes.data(), boxes, levels, hints, round % 2 ? 5 : -1);
    for (const uint8_t byte : coded) sum = (sum ^ byte) * 1099511628211ull;
    total += coded.size();
    for (const std::string& path : paths()) {
      std::vector<uint8_t> out(codes.size());
      decode_codes(coded.data(), coded.size(), boxes, levels, out.data(), path_named(path));
      if (out != codes) {
        std::printf("round %d: path %s gives other codes\n", round, path.c_str());
        return 1;
      }
    }
  }
  std::printf("%zu bytes, sum %016llx, paths:", total, static_cast<unsigned long long>(sum));
  for (const std::string& path : paths()) std::printf(" %s", path.c_str());
  std::printf("\n");
}
