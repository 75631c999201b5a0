// Convolution with lists of weights, in lanes of any floating type.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Lanes outside the image are dropped afterwards. They may belong to a buffer that another thread writes meanwhile, which
// ThreadSanitizer need not know.
typedef IntVec UnalignedIntVec __attribute__((aligned(1), may_alias));
__attribute__((no_sanitize_thread)) inline IntVec load_anywhere(const char* p) {
  return *reinterpret_cast<const UnalignedIntVec*>(p);
}

// `fill`: what lies outside the image.
void gather_footprint(const PatchView& patch, const char* channel, char* target, IntVec fill) {
  for (int r = 0; r < patch.run_count; ++r) {
    const CopyRun run = patch.runs[r];
    char* to = target + size_t(run.target) * kBytes;
    const char* from = channel + size_t(run.source) * kBytes;
    if (run.shift == kStraight) {
      for (int i = 0; i < run.count; ++i) store(to + i * kBytes, load(from + i * kBytes));
    } else if (run.shift == kFill) {
      for (int i = 0; i < run.count; ++i) store(to + i * kBytes, (Vec)fill);
    } else {
      const LaneShift& shift = patch.shifts[run.shift];
      const IntVec keep = *reinterpret_cast<const IntVec*>(shift.keep), rest = fill & ~keep;
      from += shift.bytes;
      for (int i = 0; i < run.count; ++i)
        store(to + i * kBytes, (Vec)((load_anywhere(from + i * kBytes) & keep) | rest));
    }
  }
}

// The sums of a row so far become part of its wide ones.
template <class Lanes>
void widen_sums(const ConvTask& t, char* sums) {
  const size_t positions = size_t(t.patch.h) * t.patch.w;
  for (size_t position = 0; position < positions; ++position) {
    const auto sum = load_lanes<Lanes>(sums + position * kBytes);
    char* wide = sums + wide_position<Lanes>(t, position);
    UNROLL
    for (int k = 0; k < Lanes::kParts; ++k)
      store(wide + size_t(k) * kBytes, load(wide + size_t(k) * kBytes) + Lanes::part(sum, k));
  }
  memset(sums, 0, positions * kBytes);
}

template <class Lanes>
inline size_t conv_waiting_bytes(const ConvTask& t) {
  return size_t(t.patch.h) * t.patch.w * kBytes * (has_wide_sums<Lanes>(t) ? 1 + Lanes::kParts : 1);
}

// Entries come by the word, and the next word is read before this one is used: a vector load whose address waits for an
// entry, which waits behind other vector loads, leaves load ports idle. Each word is written out, since counting its
// entries takes as long as an eighth of the sums. Narrow vectors and floats of 16 bits have too few registers for that.
constexpr int kPerWord = sizeof(size_t) / sizeof(uint16_t);
template <class Lanes>
constexpr bool kByTheWord = kBytes == 64 && Lanes::kParts == 1;
static_assert(kPerWord <= kReadAhead);

// Output-stationary: a patch of one output channel stays in registers while its weights of one block of
// input channels pass by; between blocks it waits in `sums`.
template <class Lanes, int H, int W, ValueKind kind>
void accumulate_rows(const ConvTask& t, const Unit& unit, int first_channel, const char* footprint, char* sums) {
  typedef typename Lanes::Sum Sum;
  const size_t pitch = t.patch.pitch_bytes, waiting_bytes = conv_waiting_bytes<Lanes>(t);
  const auto write = write_function<Lanes>(t);
  const bool wide = has_wide_sums<Lanes>(t);
  const bool straight = write == write_patch<Lanes> && t.epilogue.activation == Activation::Clamp && !wide &&
                        t.patch.skip_h + t.patch.skip_w == 0;
  const uint16_t* entry = unit.entries;
  const uint8_t* code = unit.codes;
  const float* value = unit.values;
  for (uint32_t r = 0; r < unit.row_count; ++r) {
    const Row row = unit.rows[r];
    char* waiting = sums + row.row * waiting_bytes;
    Sum acc[H * W];
    if (row.count & kFirst) {
      UNROLL
      for (int i = 0; i < H * W; ++i) acc[i] = Sum{};
      if (wide) memset(waiting + H * W * kBytes, 0, H * W * kBytes * Lanes::kParts);
    } else {
      UNROLL
      for (int i = 0; i < H * W; ++i) acc[i] = load_lanes<Lanes>(waiting + i * kBytes);
    }
    const int count = row.count & kCountMask;
    const auto add = [&](uint32_t e, int k) __attribute__((always_inline)) {
      const char* at = footprint + size_t(kind == ValueKind::Sign ? e >> 1 : e) * kBytes;
      const Sum w = kind == ValueKind::Sign ? Lanes::sign(e)
                                            : Lanes::weight(kind == ValueKind::Table ? t.table[code[k]] : value[k]);
      UNROLL
      for (int y = 0; y < H; ++y) {
        UNROLL
        for (int x = 0; x < W; ++x)
          acc[y * W + x] = Lanes::plus_product(acc[y * W + x], w, load_lanes<Lanes>(at + x * kBytes));
        at += pitch;
        asm("" : "+r"(at));  // one pointer: left alone, the compiler keeps more addresses than registers
      }
    };
    int k = 0;
    if constexpr (kByTheWord<Lanes>) {
      size_t word, next;
      memcpy(&word, entry, sizeof word);
      for (; k + kPerWord <= count; k += kPerWord, word = next) {
        memcpy(&next, entry + k + kPerWord, sizeof next);
        asm volatile("" : "+r"(next));  // here, and not where it is needed
        UNROLL
        for (int i = 0; i < kPerWord; ++i) add(uint16_t(word >> 16 * i), k + i);
      }
      for (; k < count; ++k, word >>= 16) add(uint16_t(word), k);
    } else {
      for (; k < count; ++k) add(entry[k], k);
    }
    entry += count;
    if (kind == ValueKind::Table) code += count;
    if (kind == ValueKind::Float) value += count;
    if (row.count & kLast && straight) {
      write_registers<Lanes, H, W>(t, acc, first_channel + row.row);
      continue;
    }
    UNROLL
    for (int i = 0; i < H * W; ++i) store_lanes<Lanes>(waiting + i * kBytes, acc[i]);
    if (wide && row.count & kFlush) widen_sums<Lanes>(t, waiting);
    if (row.count & kLast) write(t, waiting, first_channel + row.row);
  }
}

// What becomes of a row behind a block: it waits for the next one or, behind the last, is written, without `write`
// straight from the registers.
template <int H, int W>
inline __attribute__((always_inline)) void leave_row(const ConvTask& t, const Vec* acc, char* waiting, bool last,
                                                     WriteFn write, int channel) {
  if (last && !write) {
    write_registers<Fp32Lanes, H, W>(t, acc, channel);
    return;
  }
  UNROLL
  for (int i = 0; i < H * W; ++i) store(waiting + i * kBytes, acc[i]);
  if (last) write(t, waiting, channel);
}

typedef void (*RowsFn)(const ConvTask&, const Unit&, int, const char*, char*);

template <class Lanes, int H, int W>
RowsFn rows_of_kind([[maybe_unused]] ValueKind kind) {
  if constexpr (H * W > TERSIFY_PATCH_LIMIT) {
    return nullptr;  // no engine asks for it
  } else {
    switch (kind) {
      case ValueKind::Sign:
        return accumulate_rows<Lanes, H, W, ValueKind::Sign>;
      case ValueKind::Table:
        return accumulate_rows<Lanes, H, W, ValueKind::Table>;
      default:
        return accumulate_rows<Lanes, H, W, ValueKind::Float>;
    }
  }
}

template <class Lanes>
RowsFn rows_function(int h, int w, ValueKind kind) {
  switch (h * 32 + w) {
    case 4 * 32 + 4:
      return rows_of_kind<Lanes, 4, 4>(kind);
    case 4 * 32 + 2:
      return rows_of_kind<Lanes, 4, 2>(kind);
    case 4 * 32 + 1:
      return rows_of_kind<Lanes, 4, 1>(kind);
    case 2 * 32 + 4:
      return rows_of_kind<Lanes, 2, 4>(kind);
    case 2 * 32 + 2:
      return rows_of_kind<Lanes, 2, 2>(kind);
    case 2 * 32 + 1:
      return rows_of_kind<Lanes, 2, 1>(kind);
    case 1 * 32 + 16:
      return rows_of_kind<Lanes, 1, 16>(kind);
    case 1 * 32 + 8:
      return rows_of_kind<Lanes, 1, 8>(kind);
    case 1 * 32 + 4:
      return rows_of_kind<Lanes, 1, 4>(kind);
    case 1 * 32 + 2:
      return rows_of_kind<Lanes, 1, 2>(kind);
    default:
      return rows_of_kind<Lanes, 1, 1>(kind);
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

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
