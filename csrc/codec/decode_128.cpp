// The row decoder with 4 lanes in one 128-bit register, for SSE4.1 and NEON: tables are looked up lane by lane, the
// states move on together. It needs all 32 lanes.
#if defined(__x86_64__) || defined(__aarch64__)

#include "decode.h"

#include <cstring>

#if defined(__x86_64__)
#include <smmintrin.h>
#define TERSIFY_128 __attribute__((target("sse4.1")))
#else
#include <arm_neon.h>
#define TERSIFY_128
#endif

namespace tersify {

namespace {

using Four = uint32_t __attribute__((vector_size(16)));
using Bytes = uint8_t __attribute__((vector_size(16)));

TERSIFY_128 inline Four load4(const uint32_t* at) {
  Four made;
  std::memcpy(&made, at, 16);
  return made;
}

// Bit i is set where lane i of a comparison holds.
TERSIFY_128 inline unsigned lanes_of(Four mask) {
#if defined(__x86_64__)
  return static_cast<unsigned>(_mm_movemask_ps(reinterpret_cast<__m128>(mask)));
#else
  return vaddvq_u32(vandq_u32(reinterpret_cast<uint32x4_t>(mask), reinterpret_cast<uint32x4_t>(Four{1, 2, 4, 8})));
#endif
}

TERSIFY_128 inline Four pick(Bytes from, Bytes which) {
#if defined(__x86_64__)
  return reinterpret_cast<Four>(_mm_shuffle_epi8(reinterpret_cast<__m128i>(from), reinterpret_cast<__m128i>(which)));
#else
  return reinterpret_cast<Four>(vqtbl1q_u8(reinterpret_cast<uint8x16_t>(from), reinterpret_cast<uint8x16_t>(which)));
#endif
}

// For each set of lanes that need a word: the bytes of the next words that each lane takes, 255 for none.
struct Spread {
  uint8_t source[16][16];
  Spread() {
    for (int lanes = 0; lanes < 16; ++lanes)
      for (int lane = 0, next = 0; lane < 4; ++lane)
        for (int byte = 0; byte < 4; ++byte) {
          const bool takes = (lanes >> lane & 1) && byte < 2;
          source[lanes][4 * lane + byte] = static_cast<uint8_t>(takes ? next++ : 255);
        }
  }
};

}  // namespace

TERSIFY_128 void decode_rows_128(const Decoder& d, const uint8_t* densities, int active, Rows rows, uint32_t* states,
                                 Words& words_out) {
  static const Spread spread;
  const uint32_t* const slots = d.slots.data();
  const uint32_t* const slot_base = d.slot_base.data();
  const uint32_t* const facts = d.symbol_facts.data();
  const uint32_t per_density = static_cast<uint32_t>(d.contexts_per_density);
  const uint32_t above_states = static_cast<uint32_t>(d.above_states), none = static_cast<uint32_t>(d.classes);
  for (int64_t row = 0; row < rows.count; ++row) {
    if (words_out.left() < kMaxLanes + 8) {      // a load takes four words beyond the last one that is used
      decode_row_portable(d, densities, active, rows, row, states, words_out);
      continue;
    }
    const bool has_left = d.left && row % rows.up != 0, has_above = d.above && row >= rows.up;
    const uint32_t absent = (d.left && !has_left ? none * above_states : 0) + (d.above && !has_above ? none : 0);
    const bool mirror = d.mirror && has_above;
    const uint8_t* const left = rows.classes + (has_left ? row - 1 : row) * kMaxLanes;
    const uint8_t* const above = rows.classes + (has_above ? row - rows.up : row) * kMaxLanes;
    const uint8_t* const symbols_above = rows.symbols + (has_above ? row - rows.up : row) * kMaxLanes;
    uint8_t* const out = rows.symbols + row * kMaxLanes;
    uint8_t* const out_classes = rows.classes + row * kMaxLanes;
    Words words = words_out;
    for (int first = 0; first < kMaxLanes; first += 4) {
      uint32_t found[4];
      const Four before = load4(states + first);
      for (int i = 0; i < 4; ++i) {
        const int lane = first + i;
        uint32_t context = densities[lane] * per_density + absent;
        if (has_left) context += left[lane] * above_states;
        if (has_above) context += above[lane];
        found[i] = slots[slot_base[context] + (before[i] & (kScale - 1))];
        uint32_t symbol = found[i] & 0xFF;
        if (mirror) symbol = (facts[symbols_above[lane]] >> 16) != 0 ? facts[symbol] & 0xFF : symbol;
        out[lane] = static_cast<uint8_t>(symbol);
        out_classes[lane] = static_cast<uint8_t>(facts[symbol] >> 8);
      }
      const Four slot = load4(found);
      Four state = ((slot >> 20) + 1) * (before >> kScaleBits) + ((slot >> 8) & (kScale - 1));
      const Four hungry = reinterpret_cast<Four>(state < kStateLow);
      const unsigned lanes = lanes_of(hungry);
      Bytes next, source;
      std::memcpy(&next, words.at(), 16);
      std::memcpy(&source, spread.source[lanes], 16);
      state = (((state << 16) | pick(next, source)) & hungry) | (state & ~hungry);
      std::memcpy(states + first, &state, 16);
      words.skip(static_cast<size_t>(__builtin_popcount(lanes)));
    }
    words_out = words;
  }
}

}  // namespace tersify

#endif
