// Windows over lanes: sparse convolution with lists of weights, in lanes of any floating type, and pooling.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

inline IntVec load_anywhere(const char* p) {
  IntVec v;
  memcpy(&v, p, sizeof v);
  return v;
}

// `fill`: what lies outside the image.
void gather_footprint(const PatchView& patch, const char* channel, char* target, IntVec fill) {
  for (int r = 0; r < patch.run_count; ++r) {
    const CopyRun run = patch.runs[r];
    char* to = target + size_t(run.target) * kBytes;
    const char* from = channel + size_t(run.source) * kBytes;
    if (run.move == kStraight) {
      for (int i = 0; i < run.count; ++i) store(to + i * kBytes, load(from + i * kBytes));
    } else if (run.move == kFill) {
      for (int i = 0; i < run.count; ++i) store(to + i * kBytes, (Vec)fill);
    } else {
      const LaneMove& move = patch.moves[run.move];
      const IntVec keep = *reinterpret_cast<const IntVec*>(move.keep), rest = fill & ~keep;
      from += move.shift_bytes;
      for (int i = 0; i < run.count; ++i)
        store(to + i * kBytes, (Vec)((load_anywhere(from + i * kBytes) & keep) | rest));
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

// What lies in a lane decides how it is added up and read; all else is the same for every type. The numbers of one vector
// take kParts vectors of float; place() says where among them a lane's lies.
struct FloatLanes {
  typedef Vec Sum;
  static constexpr int kParts = 1;
  static int place(int lane) { return lane; }
  // A sign becomes ±1 by arithmetic: the load ports have no time to fetch one.
  static Sum sign(uint32_t entry) { return (Vec)(IntVec{} + int32_t(0x3f800000u | entry << 31)); }
  static Sum weight(float value) { return Vec{} + value; }
  static Sum plus_product(Sum sum, Sum weight, Sum x) { return sum + weight * x; }
  static Vec part(Sum v, int) { return v; }
  static Sum join(const Vec* parts) { return parts[0]; }
};

template <class Lanes>
inline typename Lanes::Sum load_lanes(const char* p) {
  return *reinterpret_cast<const typename Lanes::Sum*>(p);
}

template <class Lanes>
inline void store_lanes(char* p, typename Lanes::Sum v) {
  *reinterpret_cast<typename Lanes::Sum*>(p) = v;
}

template <class Lanes>
struct Numbers {
  Vec of[Lanes::kParts];
};

template <class Lanes>
inline void store_numbers(char* p, const Numbers<Lanes>& numbers) {
  store_lanes<Lanes>(p, Lanes::join(numbers.of));
}

// Lanes narrower than a float move their sums to wide ones now and then, which lie behind those of the whole patch.
template <class Lanes>
inline bool has_wide_sums(const ConvTask& t) {
  return Lanes::kParts > 1 && t.flushes;
}

template <class Lanes>
inline size_t wide_place(const ConvTask& t, size_t place) {
  return (size_t(t.patch.h) * t.patch.w + place * Lanes::kParts) * kBytes;
}

// One place of the patch before its activation; `at` is where its residual lies.
template <class Lanes>
inline Numbers<Lanes> with_affine(const ConvTask& t, const Folded& f, typename Lanes::Sum sum, const char* wide,
                                  size_t at) {
  Numbers<Lanes> out;
  UNROLL for (int k = 0; k < Lanes::kParts; ++k) {
    Vec v = Lanes::part(sum, k);
    if (wide) v += load(wide + size_t(k) * kBytes);
    v = v * f.a + f.b;
    if (t.residual) v += Lanes::part(load_lanes<Lanes>(t.residual + at), k) * f.c;
    out.of[k] = v;
  }
  return out;
}

template <class Lanes>
inline Numbers<Lanes> finished(const ConvTask& t, const Folded& f, const char* sums, int y, int x, int channel) {
  const size_t place = size_t(y * t.patch.w + x);
  const char* wide = has_wide_sums<Lanes>(t) ? sums + wide_place<Lanes>(t, place) : nullptr;
  const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes;
  Numbers<Lanes> out = with_affine<Lanes>(t, f, load_lanes<Lanes>(sums + place * kBytes), wide, at);
  UNROLL for (int k = 0; k < Lanes::kParts; ++k) out.of[k] = activate(out.of[k], t.finish);
  return out;
}

template <class Lanes>
void finish_patch(const ConvTask& t, const char* sums, int channel) {
  const Folded f = fold(t.finish, channel);
  for (int y = t.patch.skip_h; y < t.patch.h; ++y)
    for (int x = t.patch.skip_w; x < t.patch.w; ++x)
      store_numbers<Lanes>(t.output + channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes,
                           finished<Lanes>(t, f, sums, y, x, channel));
}

inline Vec larger(Vec a, Vec b) { return (a > b) | (a != a) ? a : b; }  // NaN stays NaN

template <class Lanes>
void finish_maxima(const ConvTask& t, const char* sums, int channel) {
  const Folded f = fold(t.finish, channel);
  for (int top = 0; top < t.patch.h; top += t.pool_h)
    for (int left = 0; left < t.patch.w; left += t.pool_w) {
      Numbers<Lanes> most;
      UNROLL for (int k = 0; k < Lanes::kParts; ++k) most.of[k] = Vec{} - INFINITY;
      for (int y = top; y < top + t.pool_h; ++y)
        for (int x = left; x < left + t.pool_w; ++x) {
          const Numbers<Lanes> next = finished<Lanes>(t, f, sums, y, x, channel);
          UNROLL for (int k = 0; k < Lanes::kParts; ++k) most.of[k] = larger(next.of[k], most.of[k]);
        }
      store_numbers<Lanes>(t.output + channel * t.pooled_channel_bytes + top / t.pool_h * t.pooled_row_bytes +
                               size_t(left / t.pool_w) * kBytes,
                           most);
    }
}

// Whether a lane of this vector of the patch lies in the image.
inline bool in_image(const MeanView& m, int lane, int y, int x) {
  const int tile = lane % m.grid;
  return tile / m.cols * m.tile_h + m.top + y < m.h && tile % m.cols * m.tile_w + m.left + x < m.w;
}

// Every place of every tile lies in the image.
inline bool tiles_fit(const MeanView& m) {
  return m.grid / m.cols * m.tile_h == m.h && m.cols * m.tile_w == m.w;
}

// The means of each image's neighbouring numbers, `count` of them, a power of two.
inline void store_means(const MeanView& m, float* numbers, int count, int channel) {
  for (int i = 0; i < m.images; ++i, numbers += count) {
    for (int step = count / 2; step > 0; step /= 2)
      for (int l = 0; l < step; ++l) numbers[l] += numbers[l + step];
    float mean = numbers[0] * m.share;
    if (m.finish.scale) mean = mean * m.finish.scale[channel] + m.finish.shift[channel];
    m.sums[i * m.image_stride + channel] = activate(mean, m.finish);
  }
}

template <class Lanes>
void finish_mean(const ConvTask& t, const char* sums, int channel) {
  constexpr int kCount = Lanes::kParts * kLanes;
  const Folded f = fold(t.finish, channel);
  const bool fit = tiles_fit(t.mean);
  Numbers<Lanes> total{};
  for (int y = t.patch.skip_h; y < t.patch.h; ++y)
    for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
      Numbers<Lanes> next = finished<Lanes>(t, f, sums, y, x, channel);
      for (int l = 0; l < kCount && !fit; ++l)
        if (!in_image(t.mean, l, y, x)) next.of[Lanes::place(l) / kLanes][Lanes::place(l) % kLanes] = 0;
      UNROLL for (int k = 0; k < Lanes::kParts; ++k) total.of[k] += next.of[k];
    }
  float parts[kCount], numbers[kCount];
  memcpy(parts, &total, sizeof parts);
  for (int l = 0; l < kCount; ++l) numbers[l] = parts[Lanes::place(l)];
  store_means(t.mean, numbers, t.mean.grid, channel);
}

typedef void (*FinishFn)(const ConvTask&, const char*, int);
template <class Lanes>
FinishFn finish_function(const ConvTask& t) {
  return t.mean.sums ? finish_mean<Lanes> : t.pool_h * t.pool_w > 1 ? finish_maxima<Lanes> : finish_patch<Lanes>;
}

// A patch straight from the registers, where no curve needs them and the whole patch is written.
template <class Lanes, int H, int W>
inline void finish_registers(const ConvTask& t, const typename Lanes::Sum* acc, int channel) {
  const Folded f = fold(t.finish, channel);
  const size_t at = channel * t.output_channel_bytes;
  UNROLL for (int y = 0; y < H; ++y) {
    UNROLL for (int x = 0; x < W; ++x) {
      const size_t place = at + y * t.output_row_bytes + size_t(x) * kBytes;
      Numbers<Lanes> v = with_affine<Lanes>(t, f, acc[y * W + x], nullptr, place);
      UNROLL for (int k = 0; k < Lanes::kParts; ++k) v.of[k] = clamp(v.of[k], t.finish.low, t.finish.high);
      store_numbers<Lanes>(t.output + place, v);
    }
  }
}

// The sums of a row so far become part of its wide ones.
template <class Lanes>
void widen_sums(const ConvTask& t, char* sums) {
  const size_t places = size_t(t.patch.h) * t.patch.w;
  for (size_t place = 0; place < places; ++place) {
    const auto sum = load_lanes<Lanes>(sums + place * kBytes);
    char* wide = sums + wide_place<Lanes>(t, place);
    UNROLL for (int k = 0; k < Lanes::kParts; ++k)
      store(wide + size_t(k) * kBytes, load(wide + size_t(k) * kBytes) + Lanes::part(sum, k));
  }
  memset(sums, 0, places * kBytes);
}

template <class Lanes>
inline size_t conv_waiting_bytes(const ConvTask& t) {
  return size_t(t.patch.h) * t.patch.w * kBytes * (has_wide_sums<Lanes>(t) ? 1 + Lanes::kParts : 1);
}

// Output-stationary: a patch of one output channel stays in registers while its weights of one block of
// input channels pass by; between blocks it waits in `sums`.
template <class Lanes, int H, int W, ValueKind kind>
void accumulate_rows(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  typedef typename Lanes::Sum Sum;
  const size_t pitch = t.patch.pitch_bytes, waiting_bytes = conv_waiting_bytes<Lanes>(t);
  const auto finish = finish_function<Lanes>(t);
  const bool wide = has_wide_sums<Lanes>(t);
  const bool straight = finish == finish_patch<Lanes> && t.finish.act == Act::Clamp && !wide &&
                        t.patch.skip_h + t.patch.skip_w == 0;
  const uint16_t* entry = unit.entries;
  const uint8_t* code = unit.codes;
  const float* value = unit.values;
  for (uint32_t r = 0; r < unit.row_count; ++r) {
    const Row row = unit.rows[r];
    char* waiting = sums + row.row * waiting_bytes;
    Sum acc[H * W];
    if (row.count & kFirst) {
      UNROLL for (int i = 0; i < H * W; ++i) acc[i] = Sum{};
      if (wide) memset(waiting + H * W * kBytes, 0, H * W * kBytes * Lanes::kParts);
    } else {
      UNROLL for (int i = 0; i < H * W; ++i) acc[i] = load_lanes<Lanes>(waiting + i * kBytes);
    }
    const int count = row.count & kCountMask;
    for (int k = 0; k < count; ++k) {
      const uint32_t e = entry[k];
      const char* at = footprint + size_t(kind == ValueKind::Sign ? e >> 1 : e) * kBytes;
      const Sum w = kind == ValueKind::Sign ? Lanes::sign(e)
                                            : Lanes::weight(kind == ValueKind::Table ? t.table[code[k]] : value[k]);
      UNROLL for (int y = 0; y < H; ++y) {
        UNROLL for (int x = 0; x < W; ++x)
          acc[y * W + x] = Lanes::plus_product(acc[y * W + x], w, load_lanes<Lanes>(at + x * kBytes));
        at += pitch;
        asm("" : "+r"(at));  // one pointer a row: left alone, the compiler keeps more addresses than registers
      }
    }
    entry += count;
    if (kind == ValueKind::Table) code += count;
    if (kind == ValueKind::Float) value += count;
    if (row.count & kLast && straight) {
      finish_registers<Lanes, H, W>(t, acc, first_channel + row.row);
      continue;
    }
    UNROLL for (int i = 0; i < H * W; ++i) store_lanes<Lanes>(waiting + i * kBytes, acc[i]);
    if (wide && row.count & kFlush) widen_sums<Lanes>(t, waiting);
    if (row.count & kLast) finish(t, waiting, first_channel + row.row);
  }
}

typedef void (*RowsFn)(const ConvTask&, const Unit&, int, const char*, char*);

template <class Lanes, int H, int W>
RowsFn rows_of_kind(ValueKind kind) {
  switch (kind) {
    case ValueKind::Sign: return accumulate_rows<Lanes, H, W, ValueKind::Sign>;
    case ValueKind::Table: return accumulate_rows<Lanes, H, W, ValueKind::Table>;
    default: return accumulate_rows<Lanes, H, W, ValueKind::Float>;
  }
}

template <class Lanes>
RowsFn rows_function(int h, int w, ValueKind kind) {
  switch (h * 32 + w) {
    case 4 * 32 + 4: return rows_of_kind<Lanes, 4, 4>(kind);
    case 4 * 32 + 2: return rows_of_kind<Lanes, 4, 2>(kind);
    case 4 * 32 + 1: return rows_of_kind<Lanes, 4, 1>(kind);
    case 2 * 32 + 4: return rows_of_kind<Lanes, 2, 4>(kind);
    case 2 * 32 + 2: return rows_of_kind<Lanes, 2, 2>(kind);
    case 2 * 32 + 1: return rows_of_kind<Lanes, 2, 1>(kind);
    case 1 * 32 + 16: return rows_of_kind<Lanes, 1, 16>(kind);
    case 1 * 32 + 8: return rows_of_kind<Lanes, 1, 8>(kind);
    case 1 * 32 + 4: return rows_of_kind<Lanes, 1, 4>(kind);
    case 1 * 32 + 2: return rows_of_kind<Lanes, 1, 2>(kind);
    default: return rows_of_kind<Lanes, 1, 1>(kind);
  }
}

// The loop around the rows: block by block of input channels, all the task's output channels each.
void conv_blocks(const ConvTask& t, RowsFn rows, size_t waiting_bytes, IntVec fill) {
  char* footprint = t.scratch;
  char* behind = t.scratch + t.patch.footprint_bytes * t.block_channels;
  char* sums = behind + t.patch.footprint_bytes;
  memset(behind, 0, t.patch.footprint_bytes);
  for (int b = 0; b < t.blocks; ++b) {
    bool used = false;
    for (int c = t.chunk_begin; c < t.chunk_end; ++c) used = used || t.units[c * t.blocks + b].row_count;
    if (!used) continue;
    const int begin = b * t.block_channels;
    const int end = begin + t.block_channels < t.channels ? begin + t.block_channels : t.channels;
    for (int c = begin; c < end; ++c)
      gather_footprint(t.patch, t.input + c * t.input_channel_bytes, footprint + (c - begin) * t.patch.footprint_bytes,
                       fill);
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
  return t.patch.footprint_bytes * (t.block_channels + 1) + rows * waiting_bytes;
}

template <class Lanes>
size_t lists_scratch_bytes(const ConvTask& t) {
  return scratch_bytes(t, conv_waiting_bytes<Lanes>(t));
}

template <class Lanes>
void lists_conv(const ConvTask& t) {
  conv_blocks(t, rows_function<Lanes>(t.patch.h, t.patch.w, t.kind), conv_waiting_bytes<Lanes>(t), IntVec{});
}

void pool(const PoolTask& t) {
  const float start = t.is_max ? -INFINITY : 0.0f;
  for (int c = 0; c < t.channels; ++c) {
    gather_footprint(t.patch, t.input + c * t.input_channel_bytes, t.scratch, (IntVec)(Vec{} + start));
    for (int y = t.patch.skip_h; y < t.patch.h; ++y)
      for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
        const char* at = t.scratch + y * t.patch.pitch_bytes + size_t(x) * kBytes;
        Vec v = Vec{} + start;
        for (int k = 0; k < t.taps; ++k) {
          const Vec next = load(at + size_t(t.places[k]) * kBytes);
          if (t.is_max)
            v = larger(next, v);
          else
            v += next;
        }
        const size_t place = y * t.output_row_bytes + size_t(x) * kBytes;
        if (!t.is_max) v *= load(t.reciprocal + place);
        store(t.output + c * t.output_channel_bytes + place, v);
      }
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
