// Matrix times one vector, for weights of a few levels, 16 rows a vector.
//
// Ternary: three trits are one code of 27, the sums of three activations under all 27 codes are a table, and
// one permutation looks 16 rows up in it. Tables of up to 16 levels: one permutation decodes 16 weights.

#if defined(__AVX512BW__)
#include <immintrin.h>

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kStreams = kGemvRows / 16;

struct Patterns {
  float sign[3][32];
};

inline Patterns trit_patterns() {
  Patterns p;
  for (int code = 0; code < 32; ++code) {
    const int used = code < 27 ? code : 13;  // 13 is three zeros
    p.sign[0][code] = float(used % 3 - 1);
    p.sign[1][code] = float(used / 3 % 3 - 1);
    p.sign[2][code] = float(used / 9 - 1);
  }
  return p;
}

void trit_tables(const float* x, int features, float* tables) {
  const Patterns p = trit_patterns();
  const int count = (features + kTritsPerWord - 1) / kTritsPerWord * (kTritsPerWord / 3);
  for (int t = 0; t < count; ++t) {
    float v[3];
    for (int i = 0; i < 3; ++i) v[i] = 3 * t + i < features ? x[3 * t + i] : 0.0f;
    for (int code = 0; code < 32; ++code)
      tables[t * 32 + code] = v[0] * p.sign[0][code] + v[1] * p.sign[1][code] + v[2] * p.sign[2][code];
  }
}

void write_rows(const __m512* sums, float* out, int first, int rows, const EpilogueView& f) {
  if (f.activation == Activation::Clamp && first + kGemvRows <= rows) {
    for (int j = 0; j < kStreams; ++j) {
      const int at = first + 16 * j;
      Vec v = (Vec)sums[j];
      if (f.scale) v = v * (Vec)_mm512_loadu_ps(f.scale + at) + (Vec)_mm512_loadu_ps(f.shift + at);
      _mm512_storeu_ps(out + at, (__m512)clamp(v, f.low, f.high));
    }
    return;
  }
  alignas(64) float values[kGemvRows];
  for (int j = 0; j < kStreams; ++j) _mm512_store_ps(values + 16 * j, sums[j]);
  for (int r = 0; r < kGemvRows && first + r < rows; ++r) {
    float v = values[r];
    if (f.scale) v = v * f.scale[first + r] + f.shift[first + r];
    out[first + r] = activate(v, f);
  }
}

inline void load_words(const uint32_t* word, __m512i* codes) {
  UNROLL
  for (int j = 0; j < kStreams; ++j) {
    codes[j] = _mm512_load_si512(word + 16 * j);
    _mm_prefetch(reinterpret_cast<const char*>(word + 16 * j) + kAheadBytes, _MM_HINT_T1);
  }
}

// words: [block of rows][word][stream][16]
void trit_gemv(const GemvTask& t) {
  const int words = (t.features + kTritsPerWord - 1) / kTritsPerWord;
  const __m512i by_five = _mm512_set1_epi16(1 << 11), by_ten = _mm512_set1_epi16(1 << 6);
  for (int block = t.block_begin; block < t.block_end; ++block) {
    const uint32_t* word = t.words + size_t(block) * words * kGemvRows;
    __m512 sums[kStreams] = {};
    for (int w = 0; w < words; ++w, word += kGemvRows) {
      __m512i codes[kStreams];
      load_words(word, codes);
      const float* table = t.tables + size_t(w) * (kTritsPerWord / 3) * 32;
      UNROLL
      for (int k = 0; k < kTritsPerWord / 3; ++k) {
        const __m512 low = _mm512_load_ps(table + k * 32), high = _mm512_load_ps(table + k * 32 + 16);
        UNROLL
        for (int j = 0; j < kStreams; ++j) {
          // Only the lowest five bits of an index count. High halves of products shift on ports that permutations
          // leave free.
          const __m512i index = k % 3 == 0 ? codes[j] : _mm512_mulhi_epu16(codes[j], k % 3 == 1 ? by_five : by_ten);
          sums[j] = _mm512_add_ps(sums[j], _mm512_permutex2var_ps(low, index, high));
          if (k == 2) codes[j] = _mm512_srli_epi32(codes[j], 16);
        }
      }
    }
    write_rows(sums, t.out, block * kGemvRows, t.rows, t.epilogue);
  }
}

// words: [block of rows][word][stream][16], eight codes of four bits a word
void nibble_gemv(const GemvTask& t) {
  const int words = (t.features + kNibblesPerWord - 1) / kNibblesPerWord;
  const __m512 levels = _mm512_loadu_ps(t.levels);
  for (int block = t.block_begin; block < t.block_end; ++block) {
    const uint32_t* word = t.words + size_t(block) * words * kGemvRows;
    __m512 sums[kStreams] = {};
    for (int w = 0; w < words; ++w, word += kGemvRows) {
      __m512i codes[kStreams];
      load_words(word, codes);
      UNROLL
      for (int k = 0; k < kNibblesPerWord; ++k) {
        const __m512 x = _mm512_set1_ps(t.tables[w * kNibblesPerWord + k]);
        UNROLL
        for (int j = 0; j < kStreams; ++j) {
          sums[j] = _mm512_fmadd_ps(_mm512_permutexvar_ps(codes[j], levels), x, sums[j]);
          codes[j] = _mm512_srli_epi32(codes[j], 4);
        }
      }
    }
    write_rows(sums, t.out, block * kGemvRows, t.rows, t.epilogue);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
#define TERSIFY_GEMV(function) function
#else
#define TERSIFY_GEMV(function) nullptr
#endif
