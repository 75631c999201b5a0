// Ternary convolution on 16-bit lanes: activations of 8 bits, sums of 16, twice the lanes of float.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kNarrowLanes = kBytes / 2;
typedef uint16_t Narrow __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));  // unsigned: wrapping is defined
typedef int16_t HalfNarrow __attribute__((vector_size(TERSIFY_VECTOR_BYTES / 2)));

inline Narrow load_narrow(const char* p) { return *reinterpret_cast<const Narrow*>(p); }
inline void store_narrow(char* p, Narrow v) { *reinterpret_cast<Narrow*>(p) = v; }

// Half a vector of 16-bit numbers as one vector of 32-bit ones, and back.
inline IntVec widen(const char* p) {
  HalfNarrow half;
  memcpy(&half, p, sizeof half);
  return __builtin_convertvector(half, IntVec);
}
inline void narrow_to(char* p, IntVec v) {
  const HalfNarrow half = __builtin_convertvector(v, HalfNarrow);
  memcpy(p, &half, sizeof half);
}

// Round to nearest, ties to even: the sum with 1.5 × 2^23 has the integer in its lowest bits.
inline IntVec rounded(Vec v) { return (IntVec)(v + 12582912.0f) - 0x4b400000; }

// A row's place in the scratch: the narrow sums of the patch, then, where any row flushes, the wide ones.
inline size_t narrow_waiting_bytes(const ConvTask& t) {
  return size_t(t.patch.h) * t.patch.w * kBytes * (t.flushes ? 3 : 1);
}

void finish_narrow(const ConvTask& t, const char* sums, int channel) {
  const Quant& q = t.output_quant;
  const float inverse = 1.0f / q.scale;
  // A clamp and the rounding are one: everything is counted in steps of the output. A curve comes between them.
  const bool curved = t.finish.act != Act::Clamp;
  const float unit = curved ? 1.0f : inverse;
  Folded f = fold(t.finish, channel);
  f.a *= unit;
  f.b *= unit;
  f.c *= unit * t.residual_quant.scale;
  const float low = curved || t.finish.low * inverse < q.low ? q.low : t.finish.low * inverse;
  const float high = curved || t.finish.high * inverse > q.high ? q.high : t.finish.high * inverse;
  const char* wides = sums + size_t(t.patch.h) * t.patch.w * kBytes;
  for (int y = t.patch.skip_h; y < t.patch.h; ++y) {
    const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes;
    for (int x = t.patch.skip_w; x < t.patch.w; ++x)
      for (int half = 0; half < 2; ++half) {
        const size_t place = size_t(y * t.patch.w + x) * kBytes;
        const size_t target = at + size_t(x) * kBytes + half * (kBytes / 2);
        IntVec sum = widen(sums + place + half * (kBytes / 2));
        if (t.flushes) sum += *reinterpret_cast<const IntVec*>(wides + 2 * place + half * kBytes);
        Vec v = __builtin_convertvector(sum, Vec) * f.a + f.b;
        if (t.residual) v += __builtin_convertvector(widen(t.residual + target), Vec) * f.c;
        if (curved) v = activate(v, t.finish) * inverse;
        narrow_to(t.output + target, rounded(clamp(v, low, high)));
      }
  }
}

void flush_sums(const ConvTask& t, char* sums) {
  const size_t count = size_t(t.patch.h) * t.patch.w;
  char* wides = sums + count * kBytes;
  for (size_t i = 0; i < 2 * count; ++i) *reinterpret_cast<IntVec*>(wides + i * kBytes) += widen(sums + i * (kBytes / 2));
  memset(sums, 0, count * kBytes);
}

template <int H, int W>
void accumulate_narrow(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  const size_t pitch = t.patch.pitch_bytes, waiting_bytes = narrow_waiting_bytes(t);
  const uint16_t* entry = unit.entries;
  for (uint32_t r = 0; r < unit.row_count; ++r) {
    const Row row = unit.rows[r];
    char* waiting = sums + row.row * waiting_bytes;
    Narrow acc[H * W];
    if (row.count & kFirst) {
      UNROLL for (int i = 0; i < H * W; ++i) acc[i] = Narrow{};
      if (t.flushes) memset(waiting + H * W * kBytes, 0, 2 * H * W * kBytes);
    } else {
      UNROLL for (int i = 0; i < H * W; ++i) acc[i] = load_narrow(waiting + i * kBytes);
    }
    const uint16_t *minus = entry + unit.plus[r], *end = entry + (row.count & kCountMask);
    for (; entry != minus; ++entry) {
      const char* at = footprint + size_t(*entry) * kBytes;
      UNROLL for (int y = 0; y < H; ++y) {
        UNROLL for (int x = 0; x < W; ++x) acc[y * W + x] += load_narrow(at + x * kBytes);
        at += pitch;
        asm("" : "+r"(at));
      }
    }
    for (; entry != end; ++entry) {
      const char* at = footprint + size_t(*entry) * kBytes;
      UNROLL for (int y = 0; y < H; ++y) {
        UNROLL for (int x = 0; x < W; ++x) acc[y * W + x] -= load_narrow(at + x * kBytes);
        at += pitch;
        asm("" : "+r"(at));
      }
    }
    UNROLL for (int i = 0; i < H * W; ++i) store_narrow(waiting + i * kBytes, acc[i]);
    if (row.count & kFlush) flush_sums(t, waiting);
    if (row.count & kLast) finish_narrow(t, waiting, first_channel + row.row);
  }
}

RowsFn narrow_rows_function(int h, int w) {
  switch (h * 32 + w) {
    case 4 * 32 + 4: return accumulate_narrow<4, 4>;
    case 4 * 32 + 2: return accumulate_narrow<4, 2>;
    case 4 * 32 + 1: return accumulate_narrow<4, 1>;
    case 2 * 32 + 4: return accumulate_narrow<2, 4>;
    case 2 * 32 + 2: return accumulate_narrow<2, 2>;
    case 2 * 32 + 1: return accumulate_narrow<2, 1>;
    case 1 * 32 + 16: return accumulate_narrow<1, 16>;
    case 1 * 32 + 8: return accumulate_narrow<1, 8>;
    case 1 * 32 + 4: return accumulate_narrow<1, 4>;
    case 1 * 32 + 2: return accumulate_narrow<1, 2>;
    default: return accumulate_narrow<1, 1>;
  }
}

size_t narrow_conv_scratch_bytes(const ConvTask& t) { return scratch_bytes(t, narrow_waiting_bytes(t)); }

void narrow_conv(const ConvTask& t) {
  conv_blocks<int16_t>(t, narrow_rows_function(t.patch.h, t.patch.w), narrow_waiting_bytes(t));
}

template <bool into_lanes>
void exchange_narrow(const LaneView& v, float* flat, char* lanes, int group, int c_begin, int c_end, const Quant& q) {
  const size_t channel_bytes = size_t(v.channel_vectors) * kBytes;
  const float inverse = 1.0f / q.scale;
  for (int l = 0; l < kNarrowLanes; ++l) {
    const LaneStart at = lane_start(v, l);
    const int image = group * v.images + at.image;
    const int rows = image < v.n ? v.h - at.y : 0, cols = v.w - at.x;
    for (int c = c_begin; c < c_end; ++c)
      for (int y = 0; y < v.tile_h; ++y) {
        int16_t* lane = reinterpret_cast<int16_t*>(lanes + (size_t(group) * v.c + c) * channel_bytes) +
                        size_t(y) * v.tile_w * kNarrowLanes + l;
        float* row = flat + image * v.stride_n + c * v.stride_c + (at.y + y) * v.stride_y + at.x * v.stride_x;
        for (int x = 0; x < v.tile_w; ++x) {
          const bool inside = y < rows && x < cols;
          if (!into_lanes) {
            if (inside) row[x * v.stride_x] = lane[x * kNarrowLanes] * q.scale;
            continue;
          }
          float value = inside ? row[x * v.stride_x] * inverse : 0.0f;
          value = value < q.low ? q.low : value;
          value = value > q.high ? q.high : value;
          lane[x * kNarrowLanes] = static_cast<int16_t>(lrintf(value));
        }
      }
  }
}

void to_narrow_lanes(const LaneView& v, const float* flat, char* lanes, int group, int c_begin, int c_end,
                     const Quant& q) {
  exchange_narrow<true>(v, const_cast<float*>(flat), lanes, group, c_begin, c_end, q);
}

void from_narrow_lanes(const LaneView& v, const char* lanes, float* flat, int group, int c_begin, int c_end,
                       const Quant& q) {
  exchange_narrow<false>(v, flat, const_cast<char*>(lanes), group, c_begin, c_end, q);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
