// Blocks of 32 rows times up to eight vectors: every weight is read and decoded once for all of them.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kRowVecs = kBlockRows / kLanes;
typedef uint8_t RowBytes __attribute__((vector_size(kLanes)));
typedef int8_t RowWholes __attribute__((vector_size(kLanes)));
typedef uint16_t RowHalves __attribute__((vector_size(2 * kLanes)));

inline Vec levels_at(const float* levels, RowBytes codes) {
  Vec v;
  for (int l = 0; l < kLanes; ++l) v[l] = levels[codes[l]];
  return v;
}

// Sixteen levels lie in one or two registers, from which a permutation takes them.
inline Vec nibble_levels(const float* levels, RowBytes codes) {
#if TERSIFY_VECTOR_BYTES == 64
  Vec all;
  memcpy(&all, levels, sizeof all);
  const IntVec index = __builtin_convertvector(codes, IntVec);
  return (Vec)_mm512_permutexvar_ps((__m512i)index, (__m512)all);
#elif TERSIFY_VECTOR_BYTES == 32 && defined(__AVX2__)
  Vec low, high;
  memcpy(&low, levels, sizeof low);
  memcpy(&high, levels + kLanes, sizeof high);
  const IntVec index = __builtin_convertvector(codes, IntVec);
  // The permutation looks at the last three bits of an index alone.
  const Vec from_low = (Vec)_mm256_permutevar8x32_ps((__m256)low, (__m256i)index);
  const Vec from_high = (Vec)_mm256_permutevar8x32_ps((__m256)high, (__m256i)index);
  return index < 8 ? from_low : from_high;
#else
  return levels_at(levels, codes);
#endif
}

template <RowForm form>
constexpr int kFeatureBytes = form == RowForm::Float    ? kBlockRows * 4
                              : form == RowForm::Half   ? kBlockRows * 2
                              : form == RowForm::Nibble ? kBlockRows / 2
                                                        : kBlockRows;

template <RowForm form>
inline void load_rows(const char* at, const float* levels, Vec* weights) {
  if constexpr (form == RowForm::Float) {
    UNROLL
    for (int i = 0; i < kRowVecs; ++i) memcpy(&weights[i], at + i * kBytes, kBytes);
  } else if constexpr (form == RowForm::Half) {
    UNROLL
    for (int i = 0; i < kRowVecs; ++i) {
      RowHalves halves;
      memcpy(&halves, at + i * sizeof halves, sizeof halves);
      weights[i] = (Vec)(__builtin_convertvector(halves, IntVec) << 16);
    }
  } else if constexpr (form == RowForm::Nibble) {
    constexpr int kHalf = kRowVecs / 2;
    UNROLL
    for (int i = 0; i < kHalf; ++i) {
      RowBytes codes;
      memcpy(&codes, at + i * kLanes, sizeof codes);
      weights[i] = nibble_levels(levels, codes & 15);
      weights[kHalf + i] = nibble_levels(levels, codes >> 4);
    }
  } else if constexpr (form == RowForm::Whole) {
    UNROLL
    for (int i = 0; i < kRowVecs; ++i) {
      RowWholes wholes;
      memcpy(&wholes, at + i * kLanes, sizeof wholes);
      weights[i] = __builtin_convertvector(__builtin_convertvector(wholes, IntVec), Vec);
    }
  } else {
    UNROLL
    for (int i = 0; i < kRowVecs; ++i) {
      RowBytes codes;
      memcpy(&codes, at + i * kLanes, sizeof codes);
      weights[i] = levels_at(levels, codes);
    }
  }
}

// One block's sums of one vector leave through the epilogue.
inline void write_block(const RowsTask& t, int vector, const Vec* sums) {
  float* out = t.out + vector * t.out_stride;
  for (int i = 0; i < kRowVecs && i * kLanes < t.rows; ++i) {
    const int some = t.rows - i * kLanes < kLanes ? t.rows - i * kLanes : kLanes, row = t.first_row + i * kLanes;
    Vec v = sums[i];
    if (t.epilogue.scale) v = v * load_some(t.epilogue.scale + row, some);
    if (t.epilogue.shift) v = v + load_some(t.epilogue.shift + row, some);
    store_some(out + i * kLanes, activate(v, t.epilogue), some);
  }
}

// Few vectors have several sums each, so that no addition waits for the one before.
template <RowForm form, int vectors>
void rows_tile(const RowsTask& t, int first) {
  constexpr int kSplit = vectors == 1 ? 4 : vectors == 2 ? 2 : 1;
  Vec sums[kSplit][vectors][kRowVecs] = {};
  const float* x = t.x + size_t(first) * t.features;
  const char* at = t.block;
  int f = 0;
  for (; f + kSplit <= t.features; f += kSplit) {
    UNROLL
    for (int s = 0; s < kSplit; ++s) {
      Vec weights[kRowVecs];
      load_rows<form>(at, t.levels, weights);
      if constexpr (vectors <= 2) __builtin_prefetch(at + kAheadBytes, 0, 2);
      at += kFeatureBytes<form>;
      UNROLL
      for (int v = 0; v < vectors; ++v) {
        const float number = x[size_t(v) * t.features + f + s];
        UNROLL
        for (int i = 0; i < kRowVecs; ++i) sums[s][v][i] += weights[i] * number;
      }
    }
  }
  for (; f < t.features; ++f, at += kFeatureBytes<form>) {
    Vec weights[kRowVecs];
    load_rows<form>(at, t.levels, weights);
    UNROLL
    for (int v = 0; v < vectors; ++v) UNROLL
    for (int i = 0; i < kRowVecs; ++i) sums[0][v][i] += weights[i] * x[size_t(v) * t.features + f];
  }
  Vec made[vectors][kRowVecs];  // where a loop may count: clang would keep the sums in memory for it
  UNROLL
  for (int v = 0; v < vectors; ++v) UNROLL
  for (int i = 0; i < kRowVecs; ++i) {
    made[v][i] = sums[0][v][i];
    UNROLL
    for (int s = 1; s < kSplit; ++s) made[v][i] += sums[s][v][i];
  }
  for (int v = 0; v < vectors; ++v) write_block(t, first + v, made[v]);
}

template <RowForm form>
void rows_block(const RowsTask& t) {
  constexpr int kTile = kBytes == 64 ? 8 : 2;  // as many as the registers hold
  int v = 0;
  for (; v + kTile <= t.vectors; v += kTile) rows_tile<form, kTile>(t, v);
  if constexpr (kTile > 2)
    for (; v + 4 <= t.vectors; v += 4) rows_tile<form, 4>(t, v);
  for (; v + 2 <= t.vectors; v += 2) rows_tile<form, 2>(t, v);
  for (; v < t.vectors; ++v) rows_tile<form, 1>(t, v);
}

void linear_rows(const RowsTask& t) {
  switch (t.form) {
    case RowForm::Float:
      return rows_block<RowForm::Float>(t);
    case RowForm::Half:
      return rows_block<RowForm::Half>(t);
    case RowForm::Nibble:
      return rows_block<RowForm::Nibble>(t);
    case RowForm::Whole:
      return rows_block<RowForm::Whole>(t);
    default:
      return rows_block<RowForm::Byte>(t);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
