// Tokens of one sequence and the keys and values of one head of its cache, as kernels are told.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersify {

constexpr int kCacheQueries = 4;   // that are attended for together
constexpr int kCacheChunk = 256;   // positions whose scores exist at a time
constexpr int kCacheVectors = 32;  // numbers: widths are padded to whole such

// Heads of one token, as a linear layer left them.
struct CacheHeads {
  const float* from;  // [heads][width]
  int heads, width;
  const float* norm;  // [width], or null: heads are not normalised
  float eps;
  const float* cosines;  // [pairs], or null: heads are not turned
  const float* sines;
  int pairs;
};

struct CacheQuery {
  const float* q;   // [width]
  int first, last;  // positions that it sees, the last one too
  float* out;       // [width]
};

struct CacheTask {
  const char *keys, *values;  // of the head, as KeyCache lays them
  bool half;
  int width, padded_width;
  float scale;
  CacheQuery queries[kCacheQueries];
  int count;
  char* scratch;
};

}  // namespace tersify
