// Convolution over float lanes with lists of signs, two rows at a time: what both have is read once for them.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

#if TERSIFY_PATCH_LIMIT >= 16

// Takes the next of a word's entries.
template <int H, int W>
inline __attribute__((always_inline)) void add_entry(uint64_t& word, const char* footprint, size_t pitch, Vec* acc) {
  const uint32_t e = uint16_t(word);
  word >>= 16;
  const char* at = footprint + size_t(e >> 1) * kBytes;
  asm("" : "+r"(at));  // one pointer, as in the lists' kernel
  const Vec sign = Fp32Lanes::sign(e);
  UNROLL
  for (int y = 0; y < H; ++y) UNROLL
  for (int x = 0; x < W; ++x) acc[y * W + x] += sign * load(at + y * pitch + x * kBytes);
}

// Words are read one ahead: a load whose address waits for an entry leaves load ports idle.
class WordQueue {
 public:
  explicit WordQueue(const uint16_t* entries) : behind_(entries + kPerWord) { memcpy(&next_, entries, sizeof next_); }
  uint64_t take() {
    const uint64_t word = next_;
    memcpy(&next_, behind_, sizeof next_);
    behind_ += kPerWord;
    return word;
  }

 private:
  static constexpr int kPerWord = sizeof(uint64_t) / sizeof(uint16_t);
  static_assert(2 * kPerWord <= kReadAhead);
  uint64_t next_;
  const uint16_t* behind_;
};

// While the two share entries, one accumulator has what both add, the other what the second subtracts: their sum and
// difference then are the rows.
template <int H, int W>
void pair_rows(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  const size_t pitch = t.patch.pitch_bytes, waiting_bytes = size_t(H) * W * kBytes;
  const auto write = write_function<Fp32Lanes>(t);
  const bool straight = write == write_patch<Fp32Lanes> && t.epilogue.activation == Activation::Clamp &&
                        t.patch.skip_h + t.patch.skip_w == 0;
  const WriteFn leave = straight ? nullptr : write;
  WordQueue queue(unit.entries);
  for (uint32_t p = 0; p < unit.row_count; ++p) {
    const RowPair pair = unit.pairs[p];
    const bool alone = pair.second == kNoRow;
    char* const waiting = sums + pair.first * waiting_bytes;
    char* const beside = alone ? nullptr : sums + pair.second * waiting_bytes;
    Vec first[H * W], second[H * W];
    UNROLL
    for (int i = 0; i < H * W; ++i) first[i] = second[i] = Vec{};
    for (int k = 0; k < pair.common; ++k) {
      uint64_t word = queue.take();
      add_entry<H, W>(word, footprint, pitch, first);
      add_entry<H, W>(word, footprint, pitch, second);
      add_entry<H, W>(word, footprint, pitch, first);
      add_entry<H, W>(word, footprint, pitch, second);
    }
    UNROLL
    for (int i = 0; i < H * W; ++i) {
      const Vec both = first[i];
      first[i] = both + second[i];
      second[i] = both - second[i];
    }
    if (!unit.first) {
      UNROLL
      for (int i = 0; i < H * W; ++i) first[i] += load(waiting + i * kBytes);
      if (!alone) {
        UNROLL
        for (int i = 0; i < H * W; ++i) second[i] += load(beside + i * kBytes);
      }
    }
    for (int k = 0; k < pair.apart; ++k) {
      uint64_t word = queue.take();
      add_entry<H, W>(word, footprint, pitch, first);
      add_entry<H, W>(word, footprint, pitch, second);
      add_entry<H, W>(word, footprint, pitch, first);
      add_entry<H, W>(word, footprint, pitch, second);
    }
    if (!alone) leave_row<H, W>(t, second, beside, unit.last, leave, first_channel + pair.second);
    for (int k = 0; k < pair.rest; ++k) {
      uint64_t word = queue.take();
      UNROLL
      for (int i = 0; i < 4; ++i) add_entry<H, W>(word, footprint, pitch, first);
    }
    leave_row<H, W>(t, first, waiting, unit.last, leave, first_channel + pair.first);
  }
}

RowsFn pairs_function(int h, int w) {
  switch (h * 32 + w) {
    case 4 * 32 + 2:
      return pair_rows<4, 2>;
    case 4 * 32 + 1:
      return pair_rows<4, 1>;
    case 2 * 32 + 4:
      return pair_rows<2, 4>;
    case 2 * 32 + 2:
      return pair_rows<2, 2>;
    case 2 * 32 + 1:
      return pair_rows<2, 1>;
    case 1 * 32 + 8:
      return pair_rows<1, 8>;
    case 1 * 32 + 4:
      return pair_rows<1, 4>;
    case 1 * 32 + 2:
      return pair_rows<1, 2>;
    default:
      return pair_rows<1, 1>;
  }
}

void pairs_conv(const ConvTask& t) {
  conv_blocks(t, pairs_function(t.patch.h, t.patch.w), conv_waiting_bytes<Fp32Lanes>(t), IntVec{});
}

#define TERSIFY_PAIRS(function) function
#else
#define TERSIFY_PAIRS(function) nullptr
#endif

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
