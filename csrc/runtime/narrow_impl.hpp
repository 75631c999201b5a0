// Ternary convolution on byte lanes: activations of 8 bits, sums of 16, four times the lanes of float.
//
// A vector is added as 16-bit numbers, each two neighbouring bytes, and once more shifted down to its odd bytes. The
// second sum says what the odd bytes brought into the first, so both bytes' sums come out of three operations.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

typedef uint16_t Narrow __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));  // unsigned: wrapping is defined
typedef uint8_t ByteVec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));

inline Narrow load_narrow(const char* p) { return *reinterpret_cast<const Narrow*>(p); }
inline void store_narrow(char* p, Narrow v) { *reinterpret_cast<Narrow*>(p) = v; }

// Round to nearest, ties to even: the sum with 1.5 × 2^23 has the integer in its lowest bits.
inline IntVec rounded(Vec v) { return (IntVec)(v + 12582912.0f) - 0x4b400000; }

inline float byte_zero(const Quant& q) { return q.low < 0 ? kByteZero : 0; }

// A place of a row waits as its two sums (of pairs of bytes, and of the odd bytes alone) and, where any row flushes,
// the wide sums of the first, second, third and fourth byte of every 32 bits.
constexpr int kSums = 2, kWides = 4;
inline size_t narrow_waiting_bytes(const ConvTask& t) {
  return size_t(t.patch.h) * t.patch.w * kBytes * (t.flushes ? kSums + kWides : kSums);
}

struct ByteSums {
  IntVec of[kWides];
};

inline ByteSums byte_sums(const char* waiting) {
  const Narrow odds = load_narrow(waiting + kBytes);
  const Narrow evens = load_narrow(waiting) - (odds << 8);  // without what the odd bytes carried into it
  return {{(IntVec)evens << 16 >> 16, (IntVec)odds << 16 >> 16, (IntVec)evens >> 16, (IntVec)odds >> 16}};
}

struct NarrowFinish {
  Folded f;
  float low, high, inverse, zero;
  bool curved;
};

// A clamp and the rounding are one: everything is counted in steps of the output. A curve comes between them.
inline NarrowFinish narrow_finish(const ConvTask& t, int channel) {
  const Quant& q = t.output_quant;
  NarrowFinish n{fold(t.finish, channel), q.low + byte_zero(q), q.high + byte_zero(q), 1.0f / q.scale, byte_zero(q),
                 t.finish.act != Act::Clamp};
  const float unit = n.curved ? 1.0f : n.inverse;
  n.f.a *= unit;
  n.f.c *= unit * t.residual_quant.scale;
  n.f.b = n.f.b * unit - n.f.c * byte_zero(t.residual_quant);
  if (n.curved) return n;
  n.f.b += n.zero;
  const float low = t.finish.low * n.inverse + n.zero, high = t.finish.high * n.inverse + n.zero;
  if (low > n.low) n.low = low;
  if (high < n.high) n.high = high;
  return n;
}

// Plain: no curve and no wide sums.
template <bool plain, bool adds>
inline IntVec finish_place(const ConvTask& t, const NarrowFinish& n, const char* sums, const char* wides, size_t at) {
  const ByteSums bytes = byte_sums(sums);
  const IntVec other = adds ? (IntVec)load_narrow(t.residual + at) : IntVec{};
  IntVec out{};
  UNROLL for (int k = 0; k < kWides; ++k) {
    const IntVec sum = plain || !t.flushes ? bytes.of[k] : bytes.of[k] + (IntVec)load(wides + k * kBytes);
    Vec v = __builtin_convertvector(sum, Vec) * n.f.a + n.f.b;
    if (adds) v += __builtin_convertvector((other >> 8 * k) & 0xff, Vec) * n.f.c;
    if (!plain && n.curved) v = activate(v, t.finish) * n.inverse + n.zero;
    out |= rounded(clamp(v, n.low, n.high)) << 8 * k;
  }
  return out;
}

template <bool plain, bool adds>
void finish_narrow(const ConvTask& t, const char* sums, int channel) {
  const NarrowFinish n = narrow_finish(t, channel);
  const char* wides = sums + size_t(t.patch.h) * t.patch.w * kSums * kBytes;
  for (int y = t.patch.skip_h; y < t.patch.h; ++y) {
    const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes;
    for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
      const size_t place = size_t(y * t.patch.w + x);
      const size_t target = at + size_t(x) * kBytes;
      const IntVec out =
          finish_place<plain, adds>(t, n, sums + place * kSums * kBytes, wides + place * kWides * kBytes, target);
      store_narrow(t.output + target, (Narrow)out);
    }
  }
}

template <bool adds>
void finish_narrow_maxima(const ConvTask& t, const char* sums, int channel) {
  const NarrowFinish n = narrow_finish(t, channel);
  const char* wides = sums + size_t(t.patch.h) * t.patch.w * kSums * kBytes;
  for (int top = 0; top < t.patch.h; top += t.pool_h)
    for (int left = 0; left < t.patch.w; left += t.pool_w) {
      ByteVec most{};
      for (int y = top; y < top + t.pool_h; ++y)
        for (int x = left; x < left + t.pool_w; ++x) {
          const size_t place = size_t(y * t.patch.w + x);
          const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes;
          const ByteVec next = (ByteVec)finish_place<false, adds>(t, n, sums + place * kSums * kBytes,
                                                              wides + place * kWides * kBytes, at);
          most = next > most ? next : most;
        }
      store_narrow(t.output + channel * t.pooled_channel_bytes + top / t.pool_h * t.pooled_row_bytes +
                       size_t(left / t.pool_w) * kBytes,
                   (Narrow)most);
    }
}

// The numbers themselves, not steps of an output.
void finish_narrow_mean(const ConvTask& t, const char* sums, int channel) {
  Folded f = fold(t.finish, channel);
  f.c *= t.residual_quant.scale;
  f.b -= f.c * byte_zero(t.residual_quant);
  const bool fit = tiles_fit(t.mean);
  const size_t places = size_t(t.patch.h) * t.patch.w;
  Vec totals[kWides] = {};
  for (int y = t.patch.skip_h; y < t.patch.h; ++y)
    for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
      const size_t place = size_t(y * t.patch.w + x);
      const ByteSums bytes = byte_sums(sums + place * kSums * kBytes);
      const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes;
      const IntVec other = t.residual ? (IntVec)load_narrow(t.residual + at) : IntVec{};
      for (int k = 0; k < kWides; ++k) {
        IntVec sum = bytes.of[k];
        if (t.flushes) sum += (IntVec)load(sums + (places * kSums + place * kWides + k) * kBytes);
        Vec v = __builtin_convertvector(sum, Vec) * f.a + f.b;
        if (t.residual) v += __builtin_convertvector((other >> 8 * k) & 0xff, Vec) * f.c;
        v = activate(v, t.finish);
        for (int l = 0; l < kLanes && !fit; ++l)
          if (!in_image(t.mean, l * kWides + k, y, x)) v[l] = 0;
        totals[k] += v;
      }
    }
  float numbers[kBytes];
  if (t.mean.grid >= kWides) {  // then the four bytes of 32 bits belong to one image
    const Vec total = totals[0] + totals[1] + (totals[2] + totals[3]);
    memcpy(numbers, &total, sizeof total);
    store_means(t.mean, numbers, t.mean.grid / kWides, channel);
    return;
  }
  for (int b = 0; b < kBytes; ++b) numbers[b] = totals[b % kWides][b / kWides];
  store_means(t.mean, numbers, t.mean.grid, channel);
}

FinishFn finish_narrow_function(const ConvTask& t) {
  if (t.mean.sums) return finish_narrow_mean;
  if (t.pool_h * t.pool_w > 1) return t.residual ? finish_narrow_maxima<true> : finish_narrow_maxima<false>;
  const bool plain = t.finish.act == Act::Clamp && !t.flushes;
  if (plain) return t.residual ? finish_narrow<true, true> : finish_narrow<true, false>;
  return t.residual ? finish_narrow<false, true> : finish_narrow<false, false>;
}

void flush_sums(const ConvTask& t, char* sums) {
  const size_t count = size_t(t.patch.h) * t.patch.w;
  IntVec* wide = reinterpret_cast<IntVec*>(sums + count * kSums * kBytes);
  for (size_t place = 0; place < count; ++place, wide += kWides) {
    const ByteSums bytes = byte_sums(sums + place * kSums * kBytes);
    UNROLL for (int k = 0; k < kWides; ++k) wide[k] += bytes.of[k];
  }
  memset(sums, 0, count * kSums * kBytes);
}

// Two entries of one sign at a time: their loads overlap and the loop turns half as often.
template <int H, int W, bool plus>
inline void add_entries(const uint16_t*& entry, const uint16_t* end, const char* footprint, size_t pitch, Narrow* pairs,
                        Narrow* odds) {
  for (; entry != end; entry += 2) {
    UNROLL for (int e = 0; e < 2; ++e) {
      const char* at = footprint + size_t(entry[e]) * kBytes;
      UNROLL for (int y = 0; y < H; ++y) {
        UNROLL for (int x = 0; x < W; ++x) {
          const Narrow v = load_narrow(at + x * kBytes);
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
void accumulate_narrow(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  const size_t pitch = t.patch.pitch_bytes, waiting_bytes = narrow_waiting_bytes(t);
  const auto finish = finish_narrow_function(t);
  const uint16_t* entry = unit.entries;
  for (uint32_t r = 0; r < unit.row_count; ++r) {
    const Row row = unit.rows[r];
    char* waiting = sums + row.row * waiting_bytes;
    Narrow pairs[H * W], odds[H * W];
    if (row.count & kFirst) {
      UNROLL for (int i = 0; i < H * W; ++i) pairs[i] = odds[i] = Narrow{};
      if (t.flushes) memset(waiting + H * W * kSums * kBytes, 0, H * W * kWides * kBytes);
    } else {
      UNROLL for (int i = 0; i < H * W; ++i) {
        pairs[i] = load_narrow(waiting + i * kSums * kBytes);
        odds[i] = load_narrow(waiting + (i * kSums + 1) * kBytes);
      }
    }
    const uint16_t *minus = entry + unit.plus[r], *end = entry + (row.count & kCountMask);
    add_entries<H, W, true>(entry, minus, footprint, pitch, pairs, odds);
    add_entries<H, W, false>(entry, end, footprint, pitch, pairs, odds);
    UNROLL for (int i = 0; i < H * W; ++i) {
      store_narrow(waiting + i * kSums * kBytes, pairs[i]);
      store_narrow(waiting + (i * kSums + 1) * kBytes, odds[i]);
    }
    if (row.count & kFlush) flush_sums(t, waiting);
    if (row.count & kLast) finish(t, waiting, first_channel + row.row);
  }
}

RowsFn narrow_rows_function(int h, int w) {
  switch (h * 32 + w) {
    case 4 * 32 + 2: return accumulate_narrow<4, 2>;
    case 4 * 32 + 1: return accumulate_narrow<4, 1>;
    case 2 * 32 + 4: return accumulate_narrow<2, 4>;
    case 2 * 32 + 2: return accumulate_narrow<2, 2>;
    case 2 * 32 + 1: return accumulate_narrow<2, 1>;
    case 1 * 32 + 8: return accumulate_narrow<1, 8>;
    case 1 * 32 + 4: return accumulate_narrow<1, 4>;
    case 1 * 32 + 2: return accumulate_narrow<1, 2>;
    default: return accumulate_narrow<1, 1>;
  }
}

size_t narrow_conv_scratch_bytes(const ConvTask& t) { return scratch_bytes(t, narrow_waiting_bytes(t)); }

void narrow_conv(const ConvTask& t) {
  const IntVec fill = IntVec{} + int32_t(0x01010101u * t.fill);
  conv_blocks(t, narrow_rows_function(t.patch.h, t.patch.w), narrow_waiting_bytes(t), fill);
}

void to_narrow_lanes(const LaneView& v, const float* flat, char* lanes, int group, int c_begin, int c_end,
                     const Quant& q) {
  const float inverse = 1.0f / q.scale, zero = byte_zero(q);
  exchange(v, const_cast<float*>(flat), lanes, group, c_begin, c_end,
           [&](const InsideLanes& inside, const float* channel, char* vector) {
             float numbers[kWides][kLanes] = {};
             for (int i = 0; i < inside.count; ++i)
               numbers[inside.lane[i] % kWides][inside.lane[i] / kWides] = channel[inside.at[i]];
             IntVec out{};
             UNROLL for (int k = 0; k < kWides; ++k) {
               Vec number;
               memcpy(&number, numbers[k], sizeof number);
               out |= rounded(clamp(number * inverse, q.low, q.high) + zero) << 8 * k;
             }
             store_narrow(vector, (Narrow)out);
           });
}

void from_narrow_lanes(const LaneView& v, const char* lanes, float* flat, int group, int c_begin, int c_end,
                       const Quant& q) {
  const float zero = byte_zero(q);
  exchange(v, flat, const_cast<char*>(lanes), group, c_begin, c_end,
           [&](const InsideLanes& inside, float* channel, const char* vector) {
             uint8_t bytes[kBytes];
             memcpy(bytes, vector, sizeof bytes);
             for (int i = 0; i < inside.count; ++i) channel[inside.at[i]] = (bytes[inside.lane[i]] - zero) * q.scale;
           });
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
