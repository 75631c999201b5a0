#include "engine/checksum.hpp"

#include <algorithm>
#include <cstring>
#include <vector>

#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr size_t kPiece = size_t(1) << 20;  // bytes
constexpr int kLanes = 8;                   // a product takes three cycles, and one may begin in each
constexpr uint64_t kFactor = 0x9e3779b97f4a7c15;

// The rotation brings the highest bits, signs among them, to where a product carries them on.
uint64_t mixed(uint64_t sum, uint64_t word) { return ((sum << 23 | sum >> 41) ^ word) * kFactor; }

uint64_t sum_of(const unsigned char* from, size_t bytes) {
  uint64_t lanes[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = lane;
  uint64_t words[kLanes];
  size_t at = 0;
  for (; at + sizeof words <= bytes; at += sizeof words) {
    std::memcpy(words, from + at, sizeof words);
    for (int lane = 0; lane < kLanes; ++lane) lanes[lane] = mixed(lanes[lane], words[lane]);
  }
  std::memset(words, 0, sizeof words);
  std::memcpy(words, from + at, bytes - at);
  uint64_t sum = bytes;
  for (int lane = 0; lane < kLanes; ++lane) sum = mixed(mixed(sum, lanes[lane]), words[lane]);
  return sum;
}

}  // namespace

uint64_t checksum(const void* memory, size_t bytes, int threads) {
  const auto* from = static_cast<const unsigned char*>(memory);
  std::vector<uint64_t> pieces((bytes + kPiece - 1) / kPiece);
  in_parts(pieces.size(), threads_for(bytes / sizeof(float), threads), [&](int, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) pieces[i] = sum_of(from + i * kPiece, std::min(kPiece, bytes - i * kPiece));
  });
  uint64_t sum = bytes;
  for (uint64_t piece : pieces) sum = mixed(sum, piece);
  return sum;
}

}  // namespace tersify
