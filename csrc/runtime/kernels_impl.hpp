// The kernels, written once for vectors of TERSIFY_VECTOR_BYTES. Each instruction set includes this file
// into a namespace of its own. No inline function of a shared header may be called here: the linker could keep
// the copy compiled for the wrong CPU.

#include <math.h>
#include <string.h>

#include "kernels.hpp"

#define UNROLL _Pragma("GCC unroll 16")

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kBytes = TERSIFY_VECTOR_BYTES;
constexpr int kLanes = kBytes / 4;
typedef float Vec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
typedef int32_t IntVec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));

inline Vec load(const char* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(char* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

inline float curve(float x, Act act) {
  return act == Act::Gelu ? 0.5f * x * (1.0f + erff(x * 0.70710678f)) : x / (1.0f + expf(-x));
}

// Comparisons are written so that NaN stays NaN.
inline Vec clamp(Vec v, float low, float high) {
  const Vec lows = Vec{} + low, highs = Vec{} + high;
  v = v < lows ? lows : v;
  return v > highs ? highs : v;
}

inline Vec activate(Vec v, const Finish& f) {
  if (f.act == Act::Clamp) return clamp(v, f.low, f.high);
  for (int l = 0; l < kLanes; ++l) v[l] = curve(v[l], f.act);
  return v;
}

inline float activate(float v, const Finish& f) {
  if (f.act != Act::Clamp) return curve(v, f.act);
  v = v < f.low ? f.low : v;
  return v > f.high ? f.high : v;
}

template <class Number>
inline void permute_lanes(char* to, const char* from, const int16_t* lanes, Number fill) {
  Number in[kBytes / sizeof(Number)], out[kBytes / sizeof(Number)];
  memcpy(in, from, kBytes);
  for (int l = 0; l < int(kBytes / sizeof(Number)); ++l) out[l] = lanes[l] < 0 ? fill : in[lanes[l]];
  memcpy(to, out, kBytes);
}

inline void permute(char* to, const char* from, const int16_t* lanes, float fill) {
#if defined(__AVX512BW__) && !defined(__clang__)
  if (fill == 0.0f) {
    typedef int16_t Half __attribute__((vector_size(kBytes / 2)));
    Half narrow;
    memcpy(&narrow, lanes, sizeof narrow);
    const IntVec index = __builtin_convertvector(narrow, IntVec);
    store(to, (Vec)((IntVec)__builtin_shuffle(load(from), index) & (index >= 0)));
    return;
  }
#endif
  permute_lanes<float>(to, from, lanes, fill);
}

inline void permute(char* to, const char* from, const int16_t* lanes, int16_t fill) {
#if defined(__AVX512BW__) && !defined(__clang__)
  typedef int16_t Shorts __attribute__((vector_size(kBytes)));
  Shorts index, in;
  memcpy(&index, lanes, sizeof index);
  memcpy(&in, from, sizeof in);
  const Shorts out = __builtin_shuffle(in, index) & (index >= 0);
  memcpy(to, &out, sizeof out);
  (void)fill;
#else
  permute_lanes<int16_t>(to, from, lanes, fill);
#endif
}

// Number: float, or int16_t for narrow lanes, whose fill is always 0.
template <class Number>
void gather_footprint(const PatchView& patch, const char* channel, char* target, Number fill) {
  for (int r = 0; r < patch.run_count; ++r) {
    const CopyRun run = patch.runs[r];
    char* to = target + size_t(run.target) * kBytes;
    const char* from = channel + size_t(run.source) * kBytes;
    if (run.lanes == kStraight) {
      for (int i = 0; i < run.count; ++i) store(to + i * kBytes, load(from + i * kBytes));
    } else if (run.lanes == kFill) {
      for (int i = 0; i < run.count; ++i) store(to + i * kBytes, Vec{} + float(fill));
    } else {
      const int16_t* lanes = patch.lane_table + run.lanes;
      for (int i = 0; i < run.count; ++i) permute(to + i * kBytes, from + i * kBytes, lanes, fill);
    }
  }
}

// A channel's finish with everything before the activation folded into sum × a + b + residual × c.
struct Folded {
  float a, b, c;
};

inline Folded fold(const Finish& f, int channel) {
  const float scale = f.scale ? f.scale[channel] : 1.0f, shift = f.shift ? f.shift[channel] : 0.0f;
  if (!f.scale2) return {scale, shift, 1.0f};
  const float scale2 = f.scale2[channel];
  return {scale * scale2, shift * scale2 + f.shift2[channel], scale2};
}

void finish_patch(const ConvTask& t, const char* sums, int channel) {
  const Folded f = fold(t.finish, channel);
  for (int y = t.patch.skip_h; y < t.patch.h; ++y) {
    const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes;
    for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
      Vec v = load(sums + size_t(y * t.patch.w + x) * kBytes) * f.a + f.b;
      if (t.residual) v += load(t.residual + at + size_t(x) * kBytes) * f.c;
      store(t.output + at + size_t(x) * kBytes, activate(v, t.finish));
    }
  }
}

// Output-stationary: a patch of one output channel stays in registers while its weights of one block of
// input channels pass by; between blocks it waits in `sums`.
template <int H, int W, ValueKind kind>
void accumulate_rows(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  const float signs[2] = {1.0f, -1.0f};
  const size_t pitch = t.patch.pitch_bytes;
  const uint32_t* offsets = t.offsets;
  const uint16_t* entry = unit.entries;
  const uint8_t* code = unit.codes;
  const float* value = unit.values;
  for (uint32_t r = 0; r < unit.row_count; ++r) {
    const Row row = unit.rows[r];
    char* waiting = sums + size_t(row.row) * (H * W * kBytes);
    Vec acc[H * W];
    if (row.count & kFirst) {
      UNROLL for (int i = 0; i < H * W; ++i) acc[i] = Vec{};
    } else {
      UNROLL for (int i = 0; i < H * W; ++i) acc[i] = load(waiting + i * kBytes);
    }
    const int count = row.count & kCountMask;
    for (int k = 0; k < count; ++k) {
      const uint32_t e = entry[k];
      const char* at = footprint + offsets[kind == ValueKind::Sign ? e >> 1 : e];
      const float w = kind == ValueKind::Sign ? signs[e & 1] : kind == ValueKind::Table ? t.table[code[k]] : value[k];
      UNROLL for (int y = 0; y < H; ++y) {
        UNROLL for (int x = 0; x < W; ++x) acc[y * W + x] += w * load(at + x * kBytes);
        at += pitch;
        asm("" : "+r"(at));  // one pointer a row: left alone, the compiler keeps more addresses than registers
      }
    }
    entry += count;
    if (kind == ValueKind::Table) code += count;
    if (kind == ValueKind::Float) value += count;
    UNROLL for (int i = 0; i < H * W; ++i) store(waiting + i * kBytes, acc[i]);
    if (row.count & kLast) finish_patch(t, waiting, first_channel + row.row);
  }
}

typedef void (*RowsFn)(const ConvTask&, const Unit&, int, const char*, char*);

template <int H, int W>
RowsFn rows_of_kind(ValueKind kind) {
  switch (kind) {
    case ValueKind::Sign: return accumulate_rows<H, W, ValueKind::Sign>;
    case ValueKind::Table: return accumulate_rows<H, W, ValueKind::Table>;
    default: return accumulate_rows<H, W, ValueKind::Float>;
  }
}

RowsFn rows_function(int h, int w, ValueKind kind) {
  switch (h * 32 + w) {
    case 4 * 32 + 4: return rows_of_kind<4, 4>(kind);
    case 4 * 32 + 2: return rows_of_kind<4, 2>(kind);
    case 4 * 32 + 1: return rows_of_kind<4, 1>(kind);
    case 2 * 32 + 4: return rows_of_kind<2, 4>(kind);
    case 2 * 32 + 2: return rows_of_kind<2, 2>(kind);
    case 2 * 32 + 1: return rows_of_kind<2, 1>(kind);
    case 1 * 32 + 16: return rows_of_kind<1, 16>(kind);
    case 1 * 32 + 8: return rows_of_kind<1, 8>(kind);
    case 1 * 32 + 4: return rows_of_kind<1, 4>(kind);
    case 1 * 32 + 2: return rows_of_kind<1, 2>(kind);
    default: return rows_of_kind<1, 1>(kind);
  }
}

// The loop around the rows: block by block of input channels, all the task's output channels each.
template <class Number>
void conv_blocks(const ConvTask& t, RowsFn rows, size_t waiting_bytes) {
  char* footprint = t.scratch;
  char* sums = t.scratch + t.patch.footprint_bytes * t.block_channels;
  for (int b = 0; b < t.blocks; ++b) {
    bool used = false;
    for (int c = t.chunk_begin; c < t.chunk_end; ++c) used = used || t.units[c * t.blocks + b].row_count;
    if (!used) continue;
    const int begin = b * t.block_channels;
    const int end = begin + t.block_channels < t.channels ? begin + t.block_channels : t.channels;
    for (int c = begin; c < end; ++c)
      gather_footprint<Number>(t.patch, t.input + c * t.input_channel_bytes,
                               footprint + (c - begin) * t.patch.footprint_bytes, Number(0));
    char* waiting = sums;
    for (int c = t.chunk_begin; c < t.chunk_end; ++c) {
      rows(t, t.units[c * t.blocks + b], t.chunks[c].first_row, footprint, waiting);
      waiting += t.chunks[c].rows * waiting_bytes;
    }
  }
}

size_t scratch_bytes(const ConvTask& t, size_t waiting_bytes) {
  size_t rows = 0;
  for (int c = t.chunk_begin; c < t.chunk_end; ++c) rows += t.chunks[c].rows;
  return t.patch.footprint_bytes * t.block_channels + rows * waiting_bytes;
}

size_t conv_waiting_bytes(const ConvTask& t) { return size_t(t.patch.h) * t.patch.w * kBytes; }
size_t conv_scratch_bytes(const ConvTask& t) { return scratch_bytes(t, conv_waiting_bytes(t)); }
void conv(const ConvTask& t) {
  conv_blocks<float>(t, rows_function(t.patch.h, t.patch.w, t.kind), conv_waiting_bytes(t));
}

void pool(const PoolTask& t) {
  const float start = t.is_max ? -INFINITY : 0.0f;
  for (int c = 0; c < t.channels; ++c) {
    gather_footprint(t.patch, t.input + c * t.input_channel_bytes, t.scratch, start);
    for (int y = t.patch.skip_h; y < t.patch.h; ++y)
      for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
        const char* at = t.scratch + y * t.patch.pitch_bytes + size_t(x) * kBytes;
        Vec v = Vec{} + start;
        for (int k = 0; k < t.taps; ++k) {
          const Vec next = load(at + t.offsets[k]);
          if (t.is_max)
            v = (next > v) | (next != next) ? next : v;
          else
            v += next;
        }
        const size_t place = y * t.output_row_bytes + size_t(x) * kBytes;
        if (!t.is_max) v *= load(t.reciprocal + place);
        store(t.output + c * t.output_channel_bytes + place, v);
      }
  }
}

struct LaneStart {
  int image, y, x;
};

inline LaneStart lane_start(const LaneView& v, int lane) {
  const int tile = lane % (v.rows * v.cols);
  return {lane / (v.rows * v.cols), tile / v.cols * v.tile_h, tile % v.cols * v.tile_w};
}

template <bool into_lanes>
void exchange(const LaneView& v, float* flat, char* lanes, int group, int c_begin, int c_end) {
  const size_t channel_bytes = size_t(v.channel_vectors) * kBytes;
  for (int l = 0; l < kLanes; ++l) {
    const LaneStart at = lane_start(v, l);
    const int image = group * v.images + at.image;
    const int rows = image < v.n ? v.h - at.y : 0, cols = v.w - at.x;
    for (int c = c_begin; c < c_end; ++c)
      for (int y = 0; y < v.tile_h; ++y) {
        float* lane = reinterpret_cast<float*>(lanes + (size_t(group) * v.c + c) * channel_bytes) +
                      size_t(y) * v.tile_w * kLanes + l;
        float* row = flat + image * v.stride_n + c * v.stride_c + (at.y + y) * v.stride_y + at.x * v.stride_x;
        for (int x = 0; x < v.tile_w; ++x) {
          const bool inside = y < rows && x < cols;
          if (into_lanes)
            lane[x * kLanes] = inside ? row[x * v.stride_x] : 0.0f;
          else if (inside)
            row[x * v.stride_x] = lane[x * kLanes];
        }
      }
  }
}

void to_lanes(const LaneView& v, const float* flat, char* lanes, int group, int c_begin, int c_end) {
  exchange<true>(v, const_cast<float*>(flat), lanes, group, c_begin, c_end);
}

void from_lanes(const LaneView& v, const char* lanes, float* flat, int group, int c_begin, int c_end) {
  exchange<false>(v, flat, const_cast<char*>(lanes), group, c_begin, c_end);
}

void elementwise(float* out, const float* a, const float* b, bool multiply, size_t count, const Finish& f,
                 int channel) {
  const float scale = f.scale ? f.scale[channel] : 1.0f, shift = f.shift ? f.shift[channel] : 0.0f;
  const float scale2 = f.scale2 ? f.scale2[channel] : 1.0f, shift2 = f.scale2 ? f.shift2[channel] : 0.0f;
  for (size_t i = 0; i < count; ++i) {
    float v = a[i] * scale + shift;
    if (b) v = multiply ? v * b[i] : v + b[i];
    out[i] = v * scale2 + shift2;
  }
  if (f.act == Act::Clamp) {
    for (size_t i = 0; i < count; ++i) {
      const float v = out[i] < f.low ? f.low : out[i];
      out[i] = v > f.high ? f.high : v;
    }
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = curve(out[i], f.act);
  }
}

void elementwise_rows(float* out, const float* a, const float* b, bool multiply, int channels, const Finish& f) {
  for (int c = 0; c < channels; ++c) {
    float v = a[c];
    if (f.scale) v = v * f.scale[c] + f.shift[c];
    if (b) v = multiply ? v * b[c] : v + b[c];
    if (f.scale2) v = v * f.scale2[c] + f.shift2[c];
    out[c] = activate(v, f);
  }
}

void global_mean(const LaneView& v, const char* lanes, float* flat, int group, const Finish& f) {
  const int grid = v.rows * v.cols;
  const bool whole = v.rows * v.tile_h == v.h && v.cols * v.tile_w == v.w;
  const float share = 1.0f / (float(v.h) * v.w);
  for (int c = 0; c < v.c; ++c) {
    const char* channel = lanes + (size_t(group) * v.c + c) * v.channel_vectors * kBytes;
    Vec sum{};
    for (int y = 0; y < v.tile_h; ++y)
      for (int x = 0; x < v.tile_w; ++x) {
        Vec next = load(channel + (size_t(y) * v.tile_w + x) * kBytes);
        if (!whole)
          for (int l = 0; l < kLanes; ++l) {
            const LaneStart at = lane_start(v, l);
            if (at.y + y >= v.h || at.x + x >= v.w) next[l] = 0;
          }
        sum += next;
      }
    for (int i = 0; i < v.images && group * v.images + i < v.n; ++i) {
      float total = 0;
      for (int l = 0; l < grid; ++l) total += sum[i * grid + l];
      float mean = total * share;
      if (f.scale) mean = mean * f.scale[c] + f.shift[c];
      flat[size_t(group * v.images + i) * v.c + c] = activate(mean, f);
    }
  }
}

void softmax(float* out, const float* in, int count) {
  float top = -INFINITY, sum = 0;
  for (int i = 0; i < count; ++i) top = in[i] > top ? in[i] : top;
  for (int i = 0; i < count; ++i) sum += out[i] = expf(in[i] - top);
  for (int i = 0; i < count; ++i) out[i] /= sum;
}

void layer_norm(float* out, const float* in, int count, const float* weight, const float* bias, float eps) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; ++i) sum += in[i];
  const float mean = float(sum / count);
  for (int i = 0; i < count; ++i) squares += double(in[i] - mean) * (in[i] - mean);
  const float spread = 1.0f / sqrtf(float(squares / count) + eps);
  for (int i = 0; i < count; ++i) {
    const float v = (in[i] - mean) * spread;
    out[i] = v * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify

#include "narrow_impl.hpp"
#include "gemv_impl.hpp"

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

const Kernels kKernels{
    kBytes,
    TERSIFY_PATCH_LIMIT,
    conv_scratch_bytes,
    conv,
    narrow_conv_scratch_bytes,
    narrow_conv,
    pool,
    to_lanes,
    from_lanes,
    to_narrow_lanes,
    from_narrow_lanes,
    elementwise,
    elementwise_rows,
    global_mean,
    TERSIFY_GEMV(trit_tables),
    TERSIFY_GEMV(trit_gemv),
    TERSIFY_GEMV(narrow_trit_tables),
    TERSIFY_GEMV(narrow_trit_gemv),
    TERSIFY_GEMV(nibble_gemv),
    softmax,
    layer_norm,
};

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
