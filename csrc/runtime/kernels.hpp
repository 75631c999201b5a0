// What the engine asks of an instruction set. Every structure here is plain data: the translation units
// behind it are compiled for CPUs that may differ from the one that runs the rest.
#pragma once

#include <cstddef>
#include <cstdint>

namespace tersify {

enum class Act : uint8_t { Clamp, Gelu, Silu };  // Clamp with infinite ends is no activation at all
enum class ValueKind : uint8_t { Sign, Table, Float };
enum class Lane : uint8_t { Byte = 1, Half = 2, Float = 4 };  // what one holds: its bytes

// What happens to a finished sum: ×scale +shift, + residual, ×scale2 +shift2, activation.
struct EpilogueView {
  const float* scale;   // per channel; null: 1
  const float* shift;   // per channel; null: 0
  const float* scale2;  // null: no second affine
  const float* shift2;
  Act act;
  float low, high;
};

// One output channel within one block of input channels.
struct Row {
  uint16_t row;    // counted from the chunk's first
  uint16_t count;  // its entries here, with the two flags below
};
constexpr uint16_t kFirst = 0x8000, kLast = 0x4000;
constexpr uint16_t kFlush = 0x2000;  // narrow sums would overflow in the next block: move them to the wide ones
constexpr uint16_t kCountMask = 0x1fff;

// Whole numbers that stand for numbers × scale; scale 0: not quantized. In byte lanes they lie shifted by kByteZero
// where they may be negative.
struct Quant {
  float scale = 0, low = 0, high = 0;
};
constexpr int kByteZero = 128;

struct Unit {
  const Row* rows;
  uint32_t row_count;
  const uint16_t* entries;  // vectors from the footprint's start; Sign: that × 2 + sign
  const uint8_t* codes;     // Table
  const float* values;      // Float
  const uint16_t* plus;     // narrow: how many of a row's entries are +1; they come first. Both parts are even
};

struct Chunk {  // a range of output channels
  int first_row, rows;
};

// Copies `count` vectors of one channel into the footprint.
struct CopyRun {
  int32_t source, target, count;
  int32_t move;  // number of the lane move, kStraight or kFill
};
constexpr int32_t kStraight = -1, kFill = -2;

// Every lane takes what lies `shift_bytes` further on; those that this would lead out of the image are filled.
struct LaneMove {
  int32_t shift_bytes;
  alignas(64) uint8_t keep[64];  // 0xff or 0 a byte
};

struct PatchView {  // one patch of outputs and what of the input it looks at
  const CopyRun* runs;
  int run_count;
  const LaneMove* moves;
  size_t footprint_bytes;  // per channel
  size_t pitch_bytes;      // between footprint rows
  int h, w;
  int skip_h, skip_w;  // leading rows and columns that the patch before has written
};

// Where the means of a convolution's outputs go, one row of channels an image.
struct MeanView {
  float* sums;  // null: no means
  size_t image_stride;
  int images, grid;          // in the vector, and the lanes of each
  int cols, tile_h, tile_w;  // of the lanes' tiles
  int h, w;                  // of the image
  int top, left;             // of the patch in its tile
  float share;               // of one place
  EpilogueView finish;             // of the mean
};

struct ConvTask {
  PatchView patch;
  const char* input;  // of the image group
  size_t input_channel_bytes;
  ValueKind kind;
  const float* table;
  const Unit* units;  // [chunk][block]
  const Chunk* chunks;
  int chunk_begin, chunk_end;
  int blocks, block_channels, channels;
  EpilogueView finish;
  char* output;          // the patch's first vector in channel 0; unused with means
  MeanView mean;
  const char* residual;  // the same place of the other summand; may be null
  size_t output_channel_bytes, output_row_bytes;  // of the residual, too
  int pool_h, pool_w;                             // windows side by side whose maxima are written; 1: all is
  size_t pooled_channel_bytes, pooled_row_bytes;  // of the output then
  bool flushes;  // lanes narrower than float: some row has wide sums
  uint8_t fill;  // narrow: what lies outside the image
  Quant residual_quant, output_quant;
  char* scratch;
};

struct PoolTask {
  PatchView patch;
  const char* input;
  size_t input_channel_bytes;
  const uint32_t* places;  // tap → vectors from the footprint's start
  int taps, channels;
  bool is_max;
  const char* reciprocal;  // 1 / number of averaged places, laid out like one channel of the output
  char* output;
  size_t output_channel_bytes, output_row_bytes;
  char* scratch;
};

// What one vector meets is read once, in order, and often from far away: 16 KiB ahead it is asked for into the
// second-level cache. The CPU's own prefetching ends at every page.
constexpr int kAheadBytes = 1 << 14;
constexpr int kGemvRows = 128;  // rows that share the reading of an activation
constexpr int kTritsPerWord = 18, kNibblesPerWord = 8;

struct GemvTask {
  const uint32_t* words;
  const float* tables;  // trits: 32 sums for each three activations; nibbles: the activations
  const float* levels;  // nibbles: 16 of them, the first 0
  int rows, features;
  int block_begin, block_end;  // of kGemvRows rows
  float* out;
  EpilogueView finish;
};

constexpr int kDenseRows = 64;     // rows of a block of two-bit codes: four a byte; of four-bit ones half as many
constexpr int kStepBytes = 64;     // of a block's codes for four features
constexpr int kDenseVectors = 16;  // of activations, at most, that meet a block in one call
constexpr int kLeastTileVectors = 6;  // fewer leave the tiles of AMX mostly empty

// Codes of one block of rows times 8-bit activations. Codes lie as [step of 4 features][16 lanes][4 features]; the fields of a
// byte are the rows lane, 16 + lane, 32 + lane and 48 + lane. All steps of a run, then the next run.
struct DenseTask {
  const uint8_t* codes;
  const uint8_t* levels;   // null: a code is a trit + 1; else 16 levels + 128
  int rows;                // of the block; fields without rows are left out
  const int8_t* x;         // the first vector; 64 bytes behind the last run may be read
  ptrdiff_t vector_bytes;  // from one vector to the next
  int vectors;             // at most kDenseVectors
  const int32_t* runs;     // where each run of features begins, in bytes from the vector's start
  int run_count, run_steps;
  int32_t* sums;  // [vector][kDenseRows]
};

constexpr int kPickRows = 16, kPickEntries = 4;       // of each row, in one step
constexpr int kPickStepBytes = 64, kPickWindow = 64;  // activations that one permutation reaches
constexpr int kPickMostSteps = 2;                     // that share a window
constexpr int kPickUnroll = 4;                        // windows

// Sums of chosen activations for one block of rows. Every step picks up to four activations of its window for each row. An
// entry has the activation's place in the window in the low six bits and its sign in the high two: 01 is +, 11 −, 00 none.
struct PickTask {
  int windows, steps;      // a multiple of kPickUnroll; of each window
  const uint16_t* places;  // where each window begins
  const uint8_t* entries;  // [window][step][row][kPickEntries]
  const int32_t* zeros;    // what kByteZero, which every activation has too much, adds to each row
  const uint8_t* x;        // a window may begin at the last one
  int32_t* sums;           // [kPickRows]
};

// Signs of four features of 64 rows, as places in a table of sums.
constexpr int kLookupRows = 64;         // of a block
constexpr int kLookupBandBlocks = 4;    // that meet a table together
constexpr int kLookupRound = 8;         // groups of four features whose sums always fit bytes
constexpr int kLookupChunk = 32;        // groups whose tables exist at the same time
constexpr int kLookupPairBytes = 384;   // of the tables of two groups
constexpr int kLookupPage = 4096;
constexpr int kLookupTablesBytes = kLookupChunk / 2 * kLookupPairBytes + kLookupPage;  // of a chunk, wherever in a page they begin

struct LookupPart {  // rows that one thread may take
  const uint8_t* codes;  // [chunk][band][group][block][row], the last chunk and band may be smaller
  int blocks;
};

struct LookupTask {
  const LookupPart *first, *last;
  int groups;        // a multiple of kLookupRound
  const uint8_t* x;  // activations + kByteZero
  uint8_t* tables;   // room for kLookupTablesBytes
  uint16_t* words;   // room for a number a row, whole blocks
  int32_t* sums;     // of the blocks of all parts
};

// One row of an image → pixels of 8-bit steps, all channels of one together.
struct PixelTask {
  const float* row;  // of channel 0
  size_t channel_stride;
  int channels, width;
  Quant quant;
  int zero;         // the byte of step 0
  int pixel_bytes;  // channels, rounded up to whole steps of four: what is left over is 0
  int8_t* bytes;
  int32_t* sums;  // of each pixel's bytes
};

// Sums of some places and a block of rows → the flat output.
struct PlacesTask {
  const int32_t* sums;     // [place][kDenseRows]
  const int32_t* totals;   // of each place's activations
  const int32_t* offsets;  // of each row of the layer
  int first_row, rows, places;
  float* out;             // of the first row and place; places are neighbours
  const float* residual;  // the same place of the other summand; may be null
  size_t row_stride;
  EpilogueView finish;
};

// A flat tensor seen as an image, and its lanes.
struct LaneView {
  int images, rows, cols, tile_h, tile_w, channel_vectors;
  int n, c, h, w;
  ptrdiff_t stride_n, stride_c, stride_y, stride_x;  // of the flat side, in elements
};

struct Kernels {
  int vector_bytes;
  int patch_limit;  // accumulators a patch may take
  size_t (*conv_scratch_bytes)(const ConvTask&);
  void (*conv)(const ConvTask&);
  size_t (*half_conv_scratch_bytes)(const ConvTask&);
  void (*half_conv)(const ConvTask&);  // activations and short runs of sums in 16-bit floats
  size_t (*narrow_conv_scratch_bytes)(const ConvTask&);
  void (*narrow_conv)(const ConvTask&);  // signs only; activations of 8 bits, sums of 16
  void (*pool)(const PoolTask&);
  void (*to_lanes)(const LaneView&, const float* flat, char* lanes, int group, int c_begin, int c_end);
  void (*from_lanes)(const LaneView&, const char* lanes, float* flat, int group, int c_begin, int c_end);
  void (*to_half_lanes)(const LaneView&, const float* flat, char* lanes, int group, int c_begin, int c_end);
  void (*from_half_lanes)(const LaneView&, const char* lanes, float* flat, int group, int c_begin, int c_end);
  void (*to_narrow_lanes)(const LaneView&, const float* flat, char* lanes, int group, int c_begin, int c_end,
                          const Quant&);
  void (*from_narrow_lanes)(const LaneView&, const char* lanes, float* flat, int group, int c_begin, int c_end,
                            const Quant&);
  // out[i] = finish(a[i] (×|+) b[i]) with one channel's constants over the whole run; b may be null.
  void (*elementwise)(float* out, const float* a, const float* b, bool multiply, size_t count, const EpilogueView&,
                      int channel);
  // The same where neighbours are neighbouring channels.
  void (*elementwise_rows)(float* out, const float* a, const float* b, bool multiply, int channels, const EpilogueView&);
  // Means of `channels` channels of one image group, as rows [image][channel].
  void (*global_mean)(const LaneView&, const char* lanes, float* flat, int group, const EpilogueView&);
  // Null where the instruction set has no permutation wide enough.
  void (*trit_tables)(const float* x, int features, float* tables);
  void (*trit_gemv)(const GemvTask&);
  void (*nibble_gemv)(const GemvTask&);
  void (*dense_sums)(const DenseTask&);
  // One vector of activations as 8-bit steps, each plus `zero`: returns their scale, and in `total` their sum without it.
  float (*quantize_vector)(const float* x, int count, int zero, uint8_t* steps, int32_t* total);
  // Rows first .. first + count of a layer from the dense sums of one vector.
  void (*finish_dense)(const int32_t* sums, int32_t total, float scale, int first, int count, float* out,
                       const EpilogueView&);
  void (*quantize_pixels)(const PixelTask&);
  void (*finish_places)(const PlacesTask&);
  bool (*all_finite)(const float* x, size_t count);
  void (*softmax)(float* out, const float* in, int count);
  void (*layer_norm)(float* out, const float* in, int count, const float* weight, const float* bias, float eps);
};

const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& vnni_kernels();
const Kernels& fp16_kernels();
const Kernels& amx_kernels(const Kernels& rest);  // tiles, and all else from `rest`, the same at every call
using PickSums = void (*)(const PickTask&);
extern const PickSums vbmi_pick_sums;
using LookupSums = void (*)(const LookupTask&);
extern const LookupSums vbmi_lookup_sums;
bool amx_keeps_its_promise();  // tries it: only where CPUID and the operating system have agreed

}  // namespace tersify
