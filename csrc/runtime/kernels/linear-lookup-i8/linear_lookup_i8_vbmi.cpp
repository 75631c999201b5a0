// Ternary products with 8-bit activations, looked up: for every four or five features a table of all sums of their signs, and
// one permutation of bytes finds those of 64 rows. A sum takes two bytes, which add up for a round of tables before
// they overflow; then they become words, and where words could overflow next, 32-bit sums. The tables of a chunk of
// features stay in the first cache while all rows meet them, and the codes are read once, in order.
#include <immintrin.h>
#include <string.h>

#include "isa/kernel_table.hpp"
#include "kernels/linear-lookup-i8/five_signs.hpp"
#include "kernels/linear-lookup-i8/four_signs.hpp"

namespace tersify {
namespace {

constexpr int kWords = 32;  // of a vector

// What B blocks have added up so far. Members and not arrays, and the order of instructions given, because every vector
// operation here is time and compilers would spill.
template <int B>
struct Blocks : Blocks<B - 1> {
  INLINE void load(const uint16_t* words) {
    Blocks<B - 1>::load(words);
    first = _mm512_load_si512(words + (2 * B - 2) * kWords);
    second = _mm512_load_si512(words + (2 * B - 1) * kWords);
  }

  INLINE void store(uint16_t* words) const {
    Blocks<B - 1>::store(words);
    _mm512_store_si512(words + (2 * B - 2) * kWords, first);
    _mm512_store_si512(words + (2 * B - 1) * kWords, second);
  }

  template <class Tables>
  INLINE void begin(const uint8_t* codes, const Tables& t) {
    Blocks<B - 1>::begin(codes, t);
    t.find(codes_of(codes), lower, upper);
  }

  template <class Tables>
  INLINE void add(const uint8_t* codes, const Tables& t) {
    Blocks<B - 1>::add(codes, t);
    __m512i more_lower, more_upper;
    t.find(codes_of(codes), more_lower, more_upper);
    asm volatile("vpaddb %2, %0, %0\n\tvpaddb %3, %1, %1" : "+v"(lower), "+v"(upper) : "v"(more_lower), "v"(more_upper));
  }

  INLINE void widen(__m512i weights) {
    Blocks<B - 1>::widen(weights);
    first = _mm512_add_epi16(first, _mm512_maddubs_epi16(_mm512_unpacklo_epi8(lower, upper), weights));
    second = _mm512_add_epi16(second, _mm512_maddubs_epi16(_mm512_unpackhi_epi8(lower, upper), weights));
  }

 private:
  static const __m512i& codes_of(const uint8_t* codes) { return reinterpret_cast<const __m512i*>(codes)[B - 1]; }
  __m512i lower, upper;   // bytes of this round's sums
  __m512i first, second;  // words of all sums
};

template <>
struct Blocks<0> {
  INLINE void load(const uint16_t*) {}
  INLINE void store(uint16_t*) const {}
  template <class Tables>
  INLINE void begin(const uint8_t*, const Tables&) {}
  template <class Tables>
  INLINE void add(const uint8_t*, const Tables&) {}
  INLINE void widen(__m512i) {}
};

template <class Form, class R, int B>
INLINE void add_round(Blocks<B>& blocks, const uint8_t* codes, const uint8_t* tables) {
  using Tables = typename Form::Tables;
  asm("" : "+r"(tables));  // or compilers load what both kinds of round begin with too early, and spill
  blocks.begin(codes, Tables(tables, 0));
  UNROLL
  for (int g = 1; g < R::groups; ++g) blocks.add(codes + g * B * kLookupRows, Tables(tables, g));
  blocks.widen(_mm512_set1_epi16(1 | 1 << (8 + R::low_bits)));
}

// Adds one chunk's sums to the words of B blocks.
template <class Form, int B>
void add_chunk(const uint8_t* codes, const TableChunk& chunk, uint16_t* words) {
  using Short = typename Form::Short;
  using Long = typename Form::Long;
  Blocks<B> blocks;
  blocks.load(words);
  for (int group = 0; group < chunk.groups;) {
    const uint8_t *codes_here = codes + group * B * kLookupRows, *tables = chunk.tables + group * Form::form.group_bytes;
    if (chunk.is_long[group / Long::groups]) {
      add_round<Form, Long>(blocks, codes_here, tables);
      group += Long::groups;
    } else {
      add_round<Form, Short>(blocks, codes_here, tables);
      group += Short::groups;
    }
  }
  blocks.store(words);
}

// The same for blocks one behind the other.
template <class Form>
void add_part(const uint8_t* codes, int blocks, const TableChunk& chunk, uint16_t* words) {
  static_assert(kLookupBandBlocks == 4);
  for (; blocks > 0; blocks -= kLookupBandBlocks) {
    switch (blocks) {
      case 1:
        add_chunk<Form, 1>(codes, chunk, words);
        break;
      case 2:
        add_chunk<Form, 2>(codes, chunk, words);
        break;
      case 3:
        add_chunk<Form, 3>(codes, chunk, words);
        break;
      default:
        add_chunk<Form, 4>(codes, chunk, words);
    }
    codes += size_t(chunk.groups) * kLookupBandBlocks * kLookupRows;
    words += kLookupBandBlocks * kLookupRows;
  }
}

// Adds the words, each of which has `zero` too much, to the sums of their rows, and empties them.
void move_words(uint16_t* words, size_t rows, int zero, int32_t* sums) {
  for (size_t row = 0; row < rows; row += kWords) {
    const __m512i both = _mm512_sub_epi16(_mm512_load_si512(words + row), _mm512_set1_epi16(short(zero)));
    const __m512i even = _mm512_srai_epi32(_mm512_slli_epi32(both, 16), 16), odd = _mm512_srai_epi32(both, 16);
    int32_t *of_even = sums + row, *of_odd = of_even + kSumLanes;
    _mm512_store_si512(of_even, _mm512_add_epi32(_mm512_load_si512(of_even), even));
    _mm512_store_si512(of_odd, _mm512_add_epi32(_mm512_load_si512(of_odd), odd));
    _mm512_store_si512(words + row, _mm512_setzero_si512());
  }
}

// Tables and codes are read in step: half a page apart they do not fight for the same positions of the first cache.
uint8_t* half_a_page_from(const uint8_t* codes, uint8_t* room) {
  const uintptr_t apart = reinterpret_cast<uintptr_t>(codes) + kLookupPage / 2 - reinterpret_cast<uintptr_t>(room);
  return room + apart % kLookupPage;
}

template <class Form>
void sums_by(const LookupTask& t) {
  constexpr int kRoom = (1 << 15) - 1, kChunk = Form::form.chunk, kSigns = Form::form.signs;
  static_assert(kChunk * kSigns * 127 <= kRoom);
  size_t rows = 0;
  for (const LookupPart* part = t.first; part != t.last; ++part) rows += size_t(part->blocks) * kLookupRows;
  memset(t.words, 0, rows * sizeof *t.words);
  memset(t.sums, 0, rows * sizeof *t.sums);
  TableChunk chunk;
  chunk.tables = half_a_page_from(t.first->codes, t.tables);
  int room = kRoom, zeros = 0;  // what the words have too much
  for (int first = 0; first < t.groups; first += kChunk) {
    chunk.groups = t.groups - first < kChunk ? t.groups - first : kChunk;
    make_chunk<Form>(t.x + kSigns * first, chunk);
    if (chunk.largest > room) {
      move_words(t.words, rows, zeros, t.sums);
      room = kRoom, zeros = 0;
    }
    room -= chunk.largest, zeros += chunk.zeros;
    uint16_t* words = t.words;
    for (const LookupPart* part = t.first; part != t.last; ++part) {
      add_part<Form>(part->codes + size_t(first) * part->blocks * kLookupRows, part->blocks, chunk, words);
      words += size_t(part->blocks) * kLookupRows;
    }
  }
  move_words(t.words, rows, zeros, t.sums);
}

void lookup_sums(const LookupTask& t) { t.form->signs == 4 ? sums_by<FourSigns>(t) : sums_by<FiveSigns>(t); }

}  // namespace

const LookupSums vbmi_lookup_sums = lookup_sums;

}  // namespace tersify
