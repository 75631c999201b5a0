// Ternary convolution on byte lanes: activations of 8 bits, sums of 16, four times the lanes of float.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

void flush_sums(const ConvTask& t, char* sums) {
  const size_t count = size_t(t.patch.h) * t.patch.w;
  IntVec* wide = reinterpret_cast<IntVec*>(sums + count * kSums * kBytes);
  for (size_t position = 0; position < count; ++position, wide += kWides) {
    const ByteSums bytes = byte_sums(sums + position * kSums * kBytes);
    UNROLL
    for (int k = 0; k < kWides; ++k) wide[k] += bytes.of[k];
  }
  memset(sums, 0, count * kSums * kBytes);
}

// Two entries of one sign at a time: their loads overlap and the loop turns half as often.
template <int H, int W, bool plus>
inline void add_entries(const uint16_t*& entry, const uint16_t* end, const char* footprint, size_t pitch,
                        WordVec* pairs, WordVec* odds) {
  for (; entry != end; entry += 2) {
    UNROLL
    for (int e = 0; e < 2; ++e) {
      const char* at = footprint + size_t(entry[e]) * kBytes;
      UNROLL
      for (int y = 0; y < H; ++y) {
        UNROLL
        for (int x = 0; x < W; ++x) {
          const WordVec v = load_words_i8(at + x * kBytes);
          const int i = y * W + x;
          pairs[i] = plus ? pairs[i] + v : pairs[i] - v;
          odds[i] = plus ? odds[i] + (v >> 8) : odds[i] - (v >> 8);
        }
        at += pitch;
        asm("" : "+r"(at));
      }
    }
  }
}

template <int H, int W>
void accumulate_rows_i8(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  const size_t pitch = t.patch.pitch_bytes, waiting_bytes = waiting_bytes_i8(t);
  const auto write = write_function_i8(t);
  const uint16_t* entry = unit.entries;
  for (uint32_t r = 0; r < unit.row_count; ++r) {
    const Row row = unit.rows[r];
    char* waiting = sums + row.row * waiting_bytes;
    WordVec pairs[H * W], odds[H * W];
    if (row.count & kFirst) {
      UNROLL
      for (int i = 0; i < H * W; ++i) pairs[i] = odds[i] = WordVec{};
      if (t.flushes) memset(waiting + H * W * kSums * kBytes, 0, H * W * kWides * kBytes);
    } else {
      UNROLL
      for (int i = 0; i < H * W; ++i) {
        pairs[i] = load_words_i8(waiting + i * kSums * kBytes);
        odds[i] = load_words_i8(waiting + (i * kSums + 1) * kBytes);
      }
    }
    const uint16_t *minus = entry + unit.plus[r], *end = entry + (row.count & kCountMask);
    add_entries<H, W, true>(entry, minus, footprint, pitch, pairs, odds);
    add_entries<H, W, false>(entry, end, footprint, pitch, pairs, odds);
    UNROLL
    for (int i = 0; i < H * W; ++i) {
      store_words_i8(waiting + i * kSums * kBytes, pairs[i]);
      store_words_i8(waiting + (i * kSums + 1) * kBytes, odds[i]);
    }
    if (row.count & kFlush) flush_sums(t, waiting);
    if (row.count & kLast) write(t, waiting, first_channel + row.row);
  }
}

template <int H, int W>
RowsFn rows_if_asked_i8() {
  if constexpr (2 * H * W > TERSIFY_PATCH_LIMIT)  // each position takes two registers
    return nullptr;
  else
    return accumulate_rows_i8<H, W>;
}

RowsFn rows_function_i8(int h, int w) {
  switch (h * 32 + w) {
    case 4 * 32 + 2:
      return rows_if_asked_i8<4, 2>();
    case 4 * 32 + 1:
      return rows_if_asked_i8<4, 1>();
    case 2 * 32 + 4:
      return rows_if_asked_i8<2, 4>();
    case 2 * 32 + 2:
      return rows_if_asked_i8<2, 2>();
    case 2 * 32 + 1:
      return rows_if_asked_i8<2, 1>();
    case 1 * 32 + 8:
      return rows_if_asked_i8<1, 8>();
    case 1 * 32 + 4:
      return rows_if_asked_i8<1, 4>();
    case 1 * 32 + 2:
      return rows_if_asked_i8<1, 2>();
    default:
      return rows_if_asked_i8<1, 1>();
  }
}

size_t lists_i8_scratch_bytes(const ConvTask& t) { return scratch_bytes(t, waiting_bytes_i8(t)); }

void lists_conv_i8(const ConvTask& t) {
  const IntVec fill = IntVec{} + int32_t(0x01010101u * t.fill);
  conv_blocks(t, rows_function_i8(t.patch.h, t.patch.w), waiting_bytes_i8(t), fill);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
