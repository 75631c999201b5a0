// AMX: sixteen vectors of activations meet a block of codes in tiles. A step of codes is one row of a tile as it is,
// so unpacking is masking; fewer vectors stay with VNNI.
#define TERSIFY_NAMESPACE amx
#define TERSIFY_VECTOR_BYTES 64
#include "kernels/linear-2bit-i8/linear_2bit_i8.hpp"

namespace tersify {
namespace amx {
namespace {

constexpr int kTileRows = 16, kTileBytes = 64;

// The layout of the operand of LDTILECFG. Its numbers are those of palette 1, not asked of CPUID leaf 0x1D: some
// virtual machines hide it.
struct alignas(64) TileShapes {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The compiler does not know that tiles read and write memory.
inline void memory_is_used() { asm volatile("" ::: "memory"); }

void configure(int vectors) {
  TileShapes shapes;
  for (int tile = 0; tile < 7; ++tile) {
    shapes.row_bytes[tile] = kTileBytes;
    shapes.rows[tile] = static_cast<uint8_t>(tile < 5 ? vectors : kTileRows);
  }
  memory_is_used();
  _tile_loadconfig(&shapes);
}

struct alignas(64) Unpacked {
  uint8_t fields[3][kTileRows][kTileBytes];
  uint8_t whole[kTileRows][kTileBytes];
};

// `count` steps of codes; what is missing up to a whole tile is zero, whatever activations lie there.
const uint8_t* unpack(const TritCodes& kind, const uint8_t* codes, int count, Unpacked& to) {
  for (int i = 0; i < count; ++i) {
    Bytes field[3];
    kind.unpack<3>(load_codes(codes + i * kTileBytes), field);
    UNROLL
    for (int f = 0; f < 3; ++f) _mm512_store_si512(to.fields[f][i], field[f]);
  }
  if (count == kTileRows) return codes;
  for (int f = 0; f < 3; ++f) memset(to.fields[f][count], 0, size_t(kTileRows - count) * kTileBytes);
  memcpy(to.whole, codes, size_t(count) * kTileBytes);
  memset(to.whole[count], 0, size_t(kTileRows - count) * kTileBytes);
  return to.whole[0];
}

// Tiles 0..3: sums of the fields, 4: activations, 5 and 6: codes.
void tile_sums(const CodesTask& t) {
  if (t.levels || t.vectors < kLeastTileVectors || t.rows <= kFieldRows) return code_sums(t);
  configure(t.vectors);
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  const TritCodes kind(t);
  Unpacked unpacked;
  const uint8_t* codes = t.codes;
  for (int r = 0; r < t.run_count; ++r)
    for (int step = 0; step < t.run_steps; step += kTileRows) {
      const int count = t.run_steps - step < kTileRows ? t.run_steps - step : kTileRows;
      const uint8_t* whole = unpack(kind, codes, count, unpacked);
      codes += count * kTileBytes;
      memory_is_used();
      _tile_loadd(4, t.x + t.runs[r] + 4 * step, t.vector_bytes);
      _tile_loadd(5, unpacked.fields[0], kTileBytes);
      _tile_dpbsud(0, 4, 5);
      _tile_loadd(6, unpacked.fields[1], kTileBytes);
      _tile_dpbsud(1, 4, 6);
      _tile_loadd(5, unpacked.fields[2], kTileBytes);
      _tile_dpbsud(2, 4, 5);
      _tile_loadd(6, whole, kTileBytes);
      _tile_dpbsud(3, 4, 6);
    }
  constexpr size_t kRowBytes = kCodeRows * sizeof(int32_t);
  _tile_stored(0, t.sums, kRowBytes);
  _tile_stored(1, t.sums + kFieldRows, kRowBytes);
  _tile_stored(2, t.sums + 2 * kFieldRows, kRowBytes);
  _tile_stored(3, t.sums + 3 * kFieldRows, kRowBytes);
  _tile_release();
  memory_is_used();
  for (int v = 0; v < t.vectors; ++v) {
    Bytes field[kFields];
    UNROLL
    for (int f = 0; f < kFields; ++f) field[f] = _mm512_loadu_si512(t.sums + v * kCodeRows + f * kFieldRows);
    TritCodes::store<kFields>(field, t.sums + v * kCodeRows);
  }
}

}  // namespace
}  // namespace amx

// A product in tiles against the same in vectors: a machine may promise AMX and not keep it.
bool amx_keeps_its_promise() {
  constexpr int kSteps = 21, kRuns = 2, kVectors = 16, kStride = 256;
  alignas(64) static uint8_t codes[kRuns * kSteps * kStepBytes];
  alignas(64) static int8_t x[kVectors * kStride + 64];
  alignas(64) static int32_t sums[2][kVectors * kCodeRows];
  uint32_t state = 1;
  auto random = [&] { return (state = state * 1664525u + 1013904223u) >> 16; };
  for (uint8_t& c : codes)
    c = static_cast<uint8_t>(random() % 3 | random() % 3 << 2 | random() % 3 << 4 | random() % 3 << 6);
  for (int8_t& a : x) a = static_cast<int8_t>(random());
  const int32_t runs[kRuns] = {0, 100};
  for (int which = 0; which < 2; ++which) {
    const CodesTask t{.codes = codes,
                      .levels = nullptr,
                      .rows = kCodeRows,
                      .x = x,
                      .vector_bytes = kStride,
                      .vectors = kVectors,
                      .runs = runs,
                      .run_count = kRuns,
                      .run_steps = kSteps,
                      .sums = sums[which]};
    which ? amx::tile_sums(t) : amx::code_sums(t);
  }
  return memcmp(sums[0], sums[1], sizeof sums[0]) == 0;
}

const Kernels& amx_kernels(const Kernels& rest) {
  static const Kernels kernels = [&] {
    Kernels k = rest;
    k.code_sums = amx::tile_sums;
    k.byte_sums = vnni_kernels().byte_sums;
    return k;
  }();
  return kernels;
}

}  // namespace tersify
