#pragma once

#include "model.h"

namespace tersify {

// One slot of a decoding table: symbol in bits 0..7, slot − begin in 8..19, width − 1 in 20..31.
using Slots = std::vector<uint32_t>;

// Everything the inner loops read, laid out for them.
struct Decoder {
  Slots slots;                            // 4096 per table
  std::vector<uint32_t> slot_base;        // per context: where its table begins in `slots`
  std::vector<uint32_t> symbol_facts;     // per symbol: mirrored | class << 8 | leads with two << 16
  int lanes, symbols, above_states, contexts_per_density, classes;
  bool mirror, left, above;
  explicit Decoder(const Model& model);
};

// Rows of symbols for up to 32 units at a time; row −up … −1 do not exist.
struct Rows {
  uint8_t* symbols;          // [row][lane]
  uint8_t* classes;          // [row][lane]: class of the symbol, for the rows below and to the right
  int64_t count, up;
};

using RowDecoder = void (*)(const Decoder&, const uint8_t* densities, int active, Rows rows, uint32_t* states,
                            Words& words);

void decode_rows_portable(const Decoder&, const uint8_t*, int, Rows, uint32_t*, Words&);
void decode_row_portable(const Decoder&, const uint8_t*, int active, Rows, int64_t row, uint32_t*, Words&);
#if defined(__x86_64__) || defined(__aarch64__)
void decode_rows_128(const Decoder&, const uint8_t*, int, Rows, uint32_t*, Words&);
#endif
#if defined(__x86_64__)
void decode_rows_avx512(const Decoder&, const uint8_t*, int, Rows, uint32_t*, Words&);
void decode_rows_avx2(const Decoder&, const uint8_t*, int, Rows, uint32_t*, Words&);
#endif

// The paths this machine has, the fastest first: of "avx512", "avx2", "sse4", "neon", always "portable".
std::vector<std::string> paths();
RowDecoder path_named(const std::string& name);

void decode_codes(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, uint8_t* out,
                  RowDecoder decode_rows);

}  // namespace tersify
