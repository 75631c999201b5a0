// Vectors of 8-bit activations: what comes before dense products, and what comes after.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// 127 steps up and down from zero; NaN and infinity make the scale NaN, and with it every sum.
float quantize_vector(const float* x, int count, int zero, uint8_t* steps, int32_t* total) {
  // Sizes are compared as whole numbers: NaN and infinity are the largest.
  constexpr int32_t kSize = 0x7fffffff, kInfinity = 0x7f800000;
  IntVec tops = {};
  const int whole = count / kLanes * kLanes;
  for (int i = 0; i < whole; i += kLanes) {
    IntVec v;
    memcpy(&v, x + i, sizeof v);
    v &= kSize;
    tops = v > tops ? v : tops;
  }
  int32_t top_bits = 0;
  auto compare = [&](int32_t v) { top_bits = (v & kSize) > top_bits ? v & kSize : top_bits; };
  for (int l = 0; l < kLanes; ++l) compare(tops[l]);
  for (int i = whole; i < count; ++i) {
    int32_t v;
    memcpy(&v, x + i, sizeof v);
    compare(v);
  }
  float top;
  memcpy(&top, &top_bits, sizeof top);
  // Never so small that its inverse is infinite.
  const float scale = top / 127.0f > FLT_MIN ? top / 127.0f : FLT_MIN, inverse = 1.0f / scale;
  typedef uint8_t Steps __attribute__((vector_size(kLanes)));
  IntVec totals = {};
  for (int i = 0; i < whole; i += kLanes) {
    Vec v;
    memcpy(&v, x + i, sizeof v);
    const IntVec step = rounded(v * inverse);
    totals += step;
    const Steps bytes = __builtin_convertvector(step + zero, Steps);
    memcpy(steps + i, &bytes, sizeof bytes);
  }
  int32_t all = 0;
  for (int l = 0; l < kLanes; ++l) all += totals[l];
  for (int i = whole; i < count; ++i) {
    const int32_t step = static_cast<int8_t>(lrintf(x[i] * inverse));
    steps[i] = static_cast<uint8_t>(step + zero);
    all += step;
  }
  *total = all;
  return top_bits < kInfinity ? scale : NAN;
}

// `total`: what the activations would add if every weight were zero.
void finish_dense(const int32_t* sums, int32_t total, float scale, int first, int count, float* out, const EpilogueView& f) {
  int r = 0;
  for (; r + kLanes <= count; r += kLanes) {
    IntVec sum;
    memcpy(&sum, sums + r, sizeof sum);
    Vec v = __builtin_convertvector(sum - total, Vec) * scale;
    if (f.scale) {
      Vec scales, shifts;
      memcpy(&scales, f.scale + first + r, sizeof scales);
      memcpy(&shifts, f.shift + first + r, sizeof shifts);
      v = v * scales + shifts;
    }
    v = activate(v, f);
    memcpy(out + r, &v, sizeof v);
  }
  for (; r < count; ++r) {
    float v = static_cast<float>(sums[r] - total) * scale;
    if (f.scale) v = v * f.scale[first + r] + f.shift[first + r];
    out[r] = activate(v, f);
  }
}

// Rows become columns: interleaving the first half with the second, once for every bit of an index.
inline void transpose(IntVec* rows) {
#if defined(__clang__)
  IntVec columns[kLanes];
  for (int i = 0; i < kLanes; ++i)
    for (int l = 0; l < kLanes; ++l) columns[i][l] = rows[l][i];
  memcpy(rows, columns, sizeof columns);
#else
  IntVec low, high;
  for (int l = 0; l < kLanes; ++l) {
    low[l] = l / 2 + l % 2 * kLanes;
    high[l] = low[l] + kLanes / 2;
  }
  UNROLL for (int bit = 1; bit < kLanes; bit *= 2) {
    IntVec mixed[kLanes];
    UNROLL for (int i = 0; i < kLanes / 2; ++i) {
      mixed[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
      mixed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
    }
    UNROLL for (int i = 0; i < kLanes; ++i) rows[i] = mixed[i];
  }
#endif
}

// At most a whole vector; most are whole, and the compiler likes to know.
inline void copy_some(void* to, const void* from, int count) {
  if (count == kLanes)
    memcpy(to, from, kBytes);
  else
    memcpy(to, from, size_t(count) * 4);
}

inline int at_most_lanes(int count) { return count < kLanes ? count : kLanes; }

void quantize_pixels(const PixelTask& t) {
  const float inverse = 1.0f / t.quant.scale;
  const int words = t.pixel_bytes / 4;
  for (int x = 0; x < t.width; x += kLanes) {
    const int pixels = at_most_lanes(t.width - x);
    IntVec sums = {};
    for (int w = 0; w < words; w += kLanes) {
      const int some = at_most_lanes(words - w);
      IntVec word[kLanes];
      for (int k = 0; k < some; ++k) {
        word[k] = IntVec{};
        const int first = 4 * (w + k), left = t.channels - first;
        for (int i = 0; i < 4 && i < left; ++i) {
          Vec v = {};
          copy_some(&v, t.row + (first + i) * t.channel_stride + x, pixels);
          const IntVec step = rounded(clamp(v * inverse, t.quant.low, t.quant.high)) + t.zero;
          sums += step;
          word[k] |= (step & 255) << (8 * i);
        }
      }
      for (int k = some; k < kLanes; ++k) word[k] = IntVec{};
      transpose(word);
      int8_t* to = t.bytes + size_t(x) * t.pixel_bytes + 4 * w;
      for (int l = 0; l < pixels; ++l) copy_some(to + size_t(l) * t.pixel_bytes, &word[l], some);
    }
    copy_some(t.sums + x, &sums, pixels);
  }
}

void finish_places(const PlacesTask& t) {
  for (int row = 0; row < t.rows; row += kLanes)
    for (int place = 0; place < t.places; place += kLanes) {
      const int rows = at_most_lanes(t.rows - row), places = at_most_lanes(t.places - place);
      IntVec sums[kLanes];
      for (int l = 0; l < places; ++l) {
        memcpy(&sums[l], t.sums + (place + l) * kDenseRows + row, kBytes);
        sums[l] -= t.totals[place + l];
      }
      for (int l = places; l < kLanes; ++l) sums[l] = IntVec{};
      transpose(sums);
      for (int r = 0; r < rows; ++r) {
        const int channel = t.first_row + row + r;
        const Folded f = fold(t.finish, channel);
        const size_t at = (row + r) * t.row_stride + place;
        Vec v = __builtin_convertvector(sums[r] + t.offsets[channel], Vec) * f.a + f.b;
        if (t.residual) {
          Vec other = {};
          copy_some(&other, t.residual + at, places);
          v += other * f.c;
        }
        v = activate(v, t.finish);
        copy_some(t.out + at, &v, places);
      }
    }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
