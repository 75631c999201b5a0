// Attention over a cache: keys lie so that a vector holds the same feature of neighbours, values as rows.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kCachePart = 16;  // positions that lie side by side: kCacheBlock
constexpr int kPartVecs = kCachePart / kLanes;
typedef uint16_t CacheHalves __attribute__((vector_size(2 * kLanes)));

// 16-bit floats ↔ floats by arithmetic alone where the CPU may lack an instruction: 2^112 moves one exponent to the
// other, small numbers included.
inline Vec from_half(CacheHalves h) {
#if defined(__AVX512F__)
  return (Vec)_mm512_cvtph_ps((__m256i)h);
#else
  const IntVec bits = __builtin_convertvector(h, IntVec);
  const Vec size = (Vec)((bits & 0x7fff) << 13) * 0x1p112f;
  return (Vec)((IntVec)size | (bits & 0x8000) << 16);
#endif
}

inline uint16_t to_half(float v) {
  constexpr float kLargest = 65504.0f;
  float size = fabsf(v);
  size = size > kLargest ? kLargest : size;
  size *= 0x1p-112f;
  uint32_t bits, sign;
  memcpy(&bits, &size, sizeof bits);
  memcpy(&sign, &v, sizeof sign);
  return static_cast<uint16_t>((bits + 0xfff + (bits >> 13 & 1)) >> 13 | (sign >> 16 & 0x8000));
}

template <bool half>
inline Vec load_cached(const char* base, size_t number) {
  if constexpr (half) {
    CacheHalves h;
    memcpy(&h, base + number * sizeof(uint16_t), sizeof h);
    return from_half(h);
  } else {
    Vec v;
    memcpy(&v, base + number * sizeof(float), sizeof v);
    return v;
  }
}

// Heads of one token: normalised, then turned by its position.
void prepare_heads(const CacheHeads& t, float* out) {
  for (int head = 0; head < t.heads; ++head) {
    const float* from = t.from + size_t(head) * t.width;
    float* to = out + size_t(head) * t.width;
    if (t.norm)
      layer_norm(to, from, t.width, t.norm, nullptr, t.eps, false);
    else
      memcpy(to, from, size_t(t.width) * sizeof(float));
    for (int i = 0; i < t.pairs; ++i) {
      const float a = to[i], b = to[i + t.pairs];
      to[i] = a * t.cosines[i] - b * t.sines[i];
      to[i + t.pairs] = b * t.cosines[i] + a * t.sines[i];
    }
  }
}

void store_cached(const float* key, const float* value, int width, int position, bool half, char* keys, char* values) {
  const size_t block = size_t(position / kCachePart) * width * kCachePart + position % kCachePart;
  const size_t row = size_t(position) * width;
  if (half) {
    auto* k = reinterpret_cast<uint16_t*>(keys);
    auto* v = reinterpret_cast<uint16_t*>(values);
    for (int i = 0; i < width; ++i) k[block + size_t(i) * kCachePart] = to_half(key[i]);
    for (int i = 0; i < width; ++i) v[row + i] = to_half(value[i]);
  } else {
    auto* k = reinterpret_cast<float*>(keys);
    for (int i = 0; i < width; ++i) k[block + size_t(i) * kCachePart] = key[i];
    memcpy(reinterpret_cast<float*>(values) + row, value, size_t(width) * sizeof(float));
  }
}

// Scores of the positions from `begin` to `end`, both whole blocks, one row a query.
template <bool half, int queries>
void cache_scores(const CacheTask& t, int begin, int end, float* scores) {
  for (int position = begin; position < end; position += kCachePart) {
    const size_t block = size_t(position) * t.width;
    Vec even[queries][kPartVecs] = {}, odd[queries][kPartVecs] = {};
    auto add_feature = [&](int f, Vec(*sums)[kPartVecs]) {
      UNROLL
      for (int i = 0; i < kPartVecs; ++i) {
        const Vec k = load_cached<half>(t.keys, block + size_t(f) * kCachePart + i * kLanes);
        UNROLL
        for (int q = 0; q < queries; ++q) sums[q][i] += t.queries[q].q[f] * k;
      }
    };
    // The weights of a layer have pushed the cache far away: a later block of keys is asked for here, and the values of
    // this one, which are as many and come next.
    auto ask_ahead = [&](int f) {
      constexpr int kAheadBlocks = 2, kBytes = half ? 2 : 4;
      const size_t at = (block + size_t(f) * kCachePart) * kBytes;
      UNROLL
      for (int line = 0; line < 2 * kCachePart * kBytes; line += 64) {
        __builtin_prefetch(t.keys + at + line + size_t(kAheadBlocks) * t.width * kCachePart * kBytes);
        __builtin_prefetch(t.values + at + line);
      }
    };
    int f = 0;
    for (; f + 2 <= t.width; f += 2) {
      ask_ahead(f);
      add_feature(f, even);
      add_feature(f + 1, odd);
    }
    if (f < t.width) add_feature(f, even);
    UNROLL
    for (int q = 0; q < queries; ++q) UNROLL
    for (int i = 0; i < kPartVecs; ++i) {
      const Vec scaled = (even[q][i] + odd[q][i]) * t.scale;
      memcpy(scores + q * kCacheChunk + (position - begin) + i * kLanes, &scaled, sizeof scaled);
    }
  }
}

// What a query has seen so far: its largest score, the sum of the others' powers, and the values times them.
struct Attended {
  float top, sum;
};

// Scores of a chunk become weights, those of positions that the query does not see nothing; returns by how much what
// was seen before shrinks.
inline float cache_weights(float* scores, int count, int low, int high, Attended& seen) {
  low = low < 0 ? 0 : low;
  high = high > count ? count : high;
  for (int i = 0; i < count; ++i)
    if (i < low || i >= high) scores[i] = -INFINITY;
  Vec tops = Vec{} + seen.top;
  for (int i = 0; i < count; i += kLanes) {
    Vec x;
    memcpy(&x, scores + i, sizeof x);
    tops = x > tops ? x : tops;
  }
  float top = seen.top;
  for (int l = 0; l < kLanes; ++l) top = tops[l] > top ? tops[l] : top;
  if (top == -INFINITY) {
    memset(scores, 0, size_t(count) * sizeof(float));
    return 1.0f;
  }
  Vec sums = {};
  for (int i = 0; i < count; i += kLanes) {
    Vec x;
    memcpy(&x, scores + i, sizeof x);
    x -= top;
    // exp_of ends at −87: what lies further below the largest is nothing.
    const Vec e = x < Vec{} - 87.0f ? Vec{} : exp_of(x);
    sums += e;
    memcpy(scores + i, &e, sizeof e);
  }
  const float factor = seen.top < top - 87.0f ? 0.0f : exp_of(Vec{} + (seen.top - top))[0];
  seen.sum = seen.sum * factor + sum_of(sums);
  seen.top = top;
  return factor;
}

template <bool half, int queries>
void cache_values(const CacheTask& t, int begin, int first, int last, const float* weights, const float* factors,
                  float* sums_of) {
  constexpr int kVecs = 2;
  for (int at = 0; at < t.width; at += kVecs * kLanes) {
    const int vecs = t.width - at > kLanes ? kVecs : 1;
    Vec sums[queries][kVecs];
    UNROLL
    for (int q = 0; q < queries; ++q) UNROLL
    for (int i = 0; i < kVecs; ++i) {
      memcpy(&sums[q][i], sums_of + q * t.padded_width + at + i * kLanes, sizeof sums[q][i]);
      sums[q][i] *= factors[q];
    }
    for (int position = first; position <= last; ++position) {
      Vec v[kVecs];
      UNROLL
      for (int i = 0; i < kVecs; ++i)
        v[i] = load_cached<half>(t.values, size_t(position) * t.width + at + (i < vecs ? i : 0) * kLanes);
      UNROLL
      for (int q = 0; q < queries; ++q) UNROLL
      for (int i = 0; i < kVecs; ++i) sums[q][i] += weights[q * kCacheChunk + (position - begin)] * v[i];
    }
    UNROLL
    for (int q = 0; q < queries; ++q) UNROLL
    for (int i = 0; i < kVecs; ++i)
      memcpy(sums_of + q * t.padded_width + at + i * kLanes, &sums[q][i], sizeof sums[q][i]);
  }
}

// Chunk by chunk, so that any number of positions needs the same scratch.
template <bool half, int queries>
void cache_attend(const CacheTask& t) {
  int first = t.queries[0].first, last = t.queries[0].last;
  for (int q = 1; q < t.count; ++q) {
    first = t.queries[q].first < first ? t.queries[q].first : first;
    last = t.queries[q].last > last ? t.queries[q].last : last;
  }
  float* scores = reinterpret_cast<float*>(t.scratch);
  float* sums = scores + kCacheQueries * kCacheChunk;
  memset(sums, 0, size_t(queries) * t.padded_width * sizeof(float));
  Attended seen[queries];
  for (Attended& each : seen) each = {-INFINITY, 0.0f};
  const int whole = (last / kCachePart + 1) * kCachePart;
  for (int begin = first / kCachePart * kCachePart; begin < whole; begin += kCacheChunk) {
    const int end = whole - begin < kCacheChunk ? whole : begin + kCacheChunk;
    cache_scores<half, queries>(t, begin, end, scores);
    float factors[queries];
    for (int q = 0; q < queries; ++q)
      factors[q] = cache_weights(scores + q * kCacheChunk, end - begin, t.queries[q].first - begin,
                                 t.queries[q].last + 1 - begin, seen[q]);
    cache_values<half, queries>(t, begin, first > begin ? first : begin, last < end ? last : end - 1, scores, factors,
                                sums);
  }
  for (int q = 0; q < t.count; ++q) {
    const float inverse = 1.0f / seen[q].sum;
    for (int i = 0; i < t.width; ++i) t.queries[q].out[i] = sums[q * t.padded_width + i] * inverse;
  }
}

// Where queries are missing the first is computed again.
void attention_cache(const CacheTask& given) {
  CacheTask t = given;
  for (int q = t.count; q < kCacheQueries; ++q) t.queries[q] = t.queries[0];
  if (t.count == 1)
    t.half ? cache_attend<true, 1>(t) : cache_attend<false, 1>(t);
  else
    t.half ? cache_attend<true, kCacheQueries>(t) : cache_attend<false, kCacheQueries>(t);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
