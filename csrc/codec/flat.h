// The stream of boxes without rows and neighbours: one table a box, so that the loops are short.
#pragma once

#include <string>

#include "decode.h"
#include "encode.h"

namespace tersify {

inline bool is_flat(const std::vector<Box>& boxes) {
  for (const Box& box : boxes)
    if (box.filters != 1 || box.taps != 1) return false;
  return true;
}

// Whole runs of 32 symbols, as long as 32 words are left before each; returns how many runs it has read.
using FlatDecoder = int64_t (*)(const uint32_t* slots, uint32_t* states, Words& words, uint8_t* out, int64_t runs);
FlatDecoder flat_decoder(const std::string& path);

// One symbol of a table as the encoder needs it.
struct FlatSymbol {
  uint64_t inverse;      // 2^44 / width, rounded up
  uint32_t width, begin;
};

struct FlatTable {
  explicit FlatTable(const Table& table);
  FlatSymbol symbols[kMaxSymbols];
  double quotients[kMaxSymbols];         // 1 / width, rounded up
  uint32_t spans[kMaxSymbols];           // width | begin << 16
};

// Whole runs of 32 symbols, the last one first. Words go in front of `at`, which moves down.
using FlatEncoder = void (*)(const FlatTable& table, const uint8_t* symbols, int64_t runs, uint32_t* states,
                             uint16_t*& at);
FlatEncoder flat_encoder();

#if defined(__x86_64__)
int64_t decode_flat_avx512(const uint32_t*, uint32_t*, Words&, uint8_t*, int64_t);
int64_t decode_flat_avx2(const uint32_t*, uint32_t*, Words&, uint8_t*, int64_t);
void encode_flat_avx512(const FlatTable&, const uint8_t*, int64_t, uint32_t*, uint16_t*&);
#endif

// Reads a stream piece by piece where one table serves a box. `simple` is false where the stream has neighbours, classes
// or several codes a symbol; then nothing can be read, and decode_codes reads it whole.
class FlatReader {
 public:
  FlatReader(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, FlatDecoder runs);
  bool simple() const { return simple_; }
  void begin_box(size_t box);
  // The next symbols of the box; all but its last piece are whole runs.
  void read(uint8_t* out, int64_t count);
  void finish() const;

 private:
  size_t used_ = 0;
  Model model_;
  Decoder decoder_;
  Words words_;
  uint32_t states_[kMaxLanes];
  const uint32_t* slots_ = nullptr;
  FlatDecoder runs_;
  bool simple_;
};

// Reads a whole stream if it is simple; returns whether it was.
bool decode_flat(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, uint8_t* out,
                 const std::string& path);

// How often each byte occurs; `totals` has 256 entries. Fewer than 2^32 codes.
void count_codes(const uint8_t* codes, size_t count, uint64_t* totals);

// The smaller coding of flat boxes: with one table, or with boxes that are alike together.
std::vector<uint8_t> encode_flat(const uint8_t* codes, const std::vector<Box>& boxes, int levels, int lanes_log2);

}  // namespace tersify
