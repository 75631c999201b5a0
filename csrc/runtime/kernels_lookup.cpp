// Ternary products with 8-bit activations, looked up: for every four features a table of all sums of their signs, and one
// permutation of bytes finds those of 64 rows. A sum takes two bytes, 0..31 each, which add up eight times before they
// overflow; then they become words, and where words could overflow next, 32-bit sums. The tables of a chunk of features stay
// in the first cache while all rows meet them, and the codes are read once, in order.
#include <immintrin.h>
#include <string.h>

#include "kernels.hpp"
#include "lookup_places.hpp"

#define UNROLL _Pragma("GCC unroll 16")
#define INLINE inline __attribute__((always_inline))

namespace tersify {
namespace {

constexpr int kHalf = 5;          // bits of a sum in its lower byte
constexpr int kWords = 32;        // of a vector
constexpr int kSumZero = 1 << 9;  // what every sum has too much, so that none is negative

struct TableConstants {
  alignas(64) int8_t signs[kSumVectors][4 * kSumLanes];
  alignas(64) int32_t start[kSumVectors][kSumLanes];
};

constexpr TableConstants table_constants() {
  constexpr LookupPlaces places = lookup_places();
  TableConstants c{};
  for (int vector = 0; vector < kSumVectors; ++vector)
    for (int lane = 0; lane < kSumLanes; ++lane) {
      int sum = 0;
      for (int i = 4 * lane; i < 4 * lane + 4; ++i) sum += c.signs[vector][i] = places.signs[vector][i];
      c.start[vector][lane] = kSumZero - kByteZero * sum;
      // The byte between two sums of the last vector: upper 16, lower 0, as four zeros have it.
      if (vector == kSumVectors - 1) c.start[vector][lane] += kSumZero << 8;
    }
  return c;
}
constexpr TableConstants kConstants = table_constants();

// For each of `groups` four features the lower bytes of all sums, two vectors, and the upper ones.
void make_tables(const uint8_t* x, int groups, uint8_t* tables) {
  const __m512i low = _mm512_set1_epi8((1 << kHalf) - 1), low_sums = _mm512_set1_epi32((1 << kHalf) - 1);
  const __m512i both_bytes = _mm512_set1_epi64(0x3525150530201000);  // of four words: all lower bytes, then all upper
  const __m512i two_zeros = _mm512_set1_epi16(2 * kSumZero);  // less a sum: its negative
  for (int group = 0; group < groups; ++group, x += 4, tables += kLookupTableBytes) {
    int32_t activations;
    memcpy(&activations, x, sizeof activations);
    const __m512i four = _mm512_set1_epi32(activations);
    __m512i sums[kSumVectors];
    UNROLL for (int v = 0; v < kSumVectors; ++v)
      sums[v] = _mm512_dpbusd_epi32(_mm512_load_si512(kConstants.start[v]), four, _mm512_load_si512(kConstants.signs[v]));
    const __m512i packed = _mm512_packus_epi32(sums[0], sums[1]);
    const __m512 a = _mm512_castsi512_ps(_mm512_multishift_epi64_epi8(both_bytes, packed));
    const __m512 b = _mm512_castsi512_ps(_mm512_multishift_epi64_epi8(both_bytes, _mm512_sub_epi16(two_zeros, packed)));
    _mm512_store_si512(tables, _mm512_and_si512(low, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0x88))));
    _mm512_store_si512(tables + 64, _mm512_and_si512(low_sums, sums[2]));
    _mm512_store_si512(tables + 128, _mm512_castps_si512(_mm512_shuffle_ps(a, b, 0xdd)));
    _mm512_store_si512(tables + 192, _mm512_srli_epi32(sums[2], kHalf));
  }
}

struct Tables {  // of one group
  explicit Tables(const uint8_t* t)
      : lower0(_mm512_load_si512(t)), lower1(_mm512_load_si512(t + 64)), upper0(_mm512_load_si512(t + 128)),
        upper1(_mm512_load_si512(t + 192)) {}
  __m512i lower0, lower1, upper0, upper1;
};

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

  INLINE void begin(const uint8_t* codes, const Tables& t) {
    Blocks<B - 1>::begin(codes, t);
    asm volatile(
        "vmovdqa64 %2, %0\n\tvmovdqa64 %0, %1\n\t"
        "vpermi2b %4, %3, %0\n\tvpermi2b %6, %5, %1"
        : "=&v"(lower), "=&v"(upper)
        : "m"(codes_of(codes)), "v"(t.lower0), "v"(t.lower1), "v"(t.upper0), "v"(t.upper1));
  }

  INLINE void add(const uint8_t* codes, const Tables& t) {
    Blocks<B - 1>::add(codes, t);
    __m512i more_lower, more_upper;
    asm volatile(
        "vmovdqa64 %4, %2\n\tvmovdqa64 %2, %3\n\t"
        "vpermi2b %6, %5, %2\n\tvpermi2b %8, %7, %3\n\t"
        "vpaddb %2, %0, %0\n\tvpaddb %3, %1, %1"
        : "+v"(lower), "+v"(upper), "=&v"(more_lower), "=&v"(more_upper)
        : "m"(codes_of(codes)), "v"(t.lower0), "v"(t.lower1), "v"(t.upper0), "v"(t.upper1));
  }

  INLINE void widen(__m512i weights) {
    Blocks<B - 1>::widen(weights);
    first = _mm512_add_epi16(first, _mm512_maddubs_epi16(_mm512_unpacklo_epi8(lower, upper), weights));
    second = _mm512_add_epi16(second, _mm512_maddubs_epi16(_mm512_unpackhi_epi8(lower, upper), weights));
  }

 private:
  static const __m512i& codes_of(const uint8_t* codes) {
    return reinterpret_cast<const __m512i*>(codes)[B - 1];
  }
  __m512i lower, upper;   // bytes of this round's sums
  __m512i first, second;  // words of all sums
};

template <>
struct Blocks<0> {
  INLINE void load(const uint16_t*) {}
  INLINE void store(uint16_t*) const {}
  INLINE void begin(const uint8_t*, const Tables&) {}
  INLINE void add(const uint8_t*, const Tables&) {}
  INLINE void widen(__m512i) {}
};

// Adds one chunk's sums to the words of B blocks.
template <int B>
void add_chunk(const uint8_t* codes, const uint8_t* tables, int groups, uint16_t* words) {
  const __m512i weights = _mm512_set1_epi16(1 | 1 << (8 + kHalf));
  Blocks<B> blocks;
  blocks.load(words);
  for (int round = 0; round < groups; round += kLookupRound) {
    blocks.begin(codes, Tables(tables));
    UNROLL for (int g = 1; g < kLookupRound; ++g)
      blocks.add(codes + g * B * kLookupRows, Tables(tables + g * kLookupTableBytes));
    blocks.widen(weights);
    codes += kLookupRound * B * kLookupRows;
    tables += kLookupRound * kLookupTableBytes;
  }
  blocks.store(words);
}

// The same for blocks one behind the other.
void add_part(const uint8_t* codes, int blocks, const uint8_t* tables, int groups, uint16_t* words) {
  static_assert(kLookupBandBlocks == 4);
  for (; blocks > 0; blocks -= kLookupBandBlocks) {
    switch (blocks) {
      case 1: add_chunk<1>(codes, tables, groups, words); break;
      case 2: add_chunk<2>(codes, tables, groups, words); break;
      case 3: add_chunk<3>(codes, tables, groups, words); break;
      default: add_chunk<4>(codes, tables, groups, words);
    }
    codes += size_t(groups) * kLookupBandBlocks * kLookupRows;
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

// No sum of these activations, whatever their signs, is larger.
int largest_sum(const uint8_t* x, int count) {
  __m512i total = _mm512_setzero_si512();
  for (int i = 0; i < count; i += 32) {
    const __m256i steps = _mm256_xor_si256(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(x + i)), _mm256_set1_epi8(char(kByteZero)));
    total = _mm512_add_epi64(total, _mm512_zextsi256_si512(_mm256_sad_epu8(_mm256_abs_epi8(steps), _mm256_setzero_si256())));
  }
  return int(_mm512_reduce_add_epi64(total));
}

// Tables and codes are read in step: half a page apart they do not fight for the same places of the first cache.
uint8_t* half_a_page_from(const uint8_t* codes, uint8_t* room) {
  const uintptr_t apart = reinterpret_cast<uintptr_t>(codes) + kLookupPage / 2 - reinterpret_cast<uintptr_t>(room);
  return room + apart % kLookupPage;
}

void lookup_sums(const LookupTask& t) {
  constexpr int kRoom = (1 << 15) - 1;
  static_assert(kLookupChunk * 4 * 127 <= kRoom);
  size_t rows = 0;
  for (const LookupPart* part = t.first; part != t.last; ++part) rows += size_t(part->blocks) * kLookupRows;
  memset(t.words, 0, rows * sizeof *t.words);
  memset(t.sums, 0, rows * sizeof *t.sums);
  uint8_t* tables = half_a_page_from(t.first->codes, t.tables);
  int room = kRoom, held = 0;  // groups in the words
  for (int chunk = 0; chunk < t.groups; chunk += kLookupChunk) {
    const int groups = t.groups - chunk < kLookupChunk ? t.groups - chunk : kLookupChunk;
    const int largest = largest_sum(t.x + 4 * chunk, 4 * groups);
    if (largest > room) {
      move_words(t.words, rows, kSumZero * held, t.sums);
      room = kRoom, held = 0;
    }
    room -= largest, held += groups;
    make_tables(t.x + 4 * chunk, groups, tables);
    uint16_t* words = t.words;
    for (const LookupPart* part = t.first; part != t.last; ++part) {
      add_part(part->codes + size_t(chunk) * part->blocks * kLookupRows, part->blocks, tables, groups, words);
      words += size_t(part->blocks) * kLookupRows;
    }
  }
  move_words(t.words, rows, kSumZero * held, t.sums);
}

}  // namespace

const LookupSums vbmi_lookup_sums = lookup_sums;

}  // namespace tersify
