// What a convolution with lists of weights is asked for: one patch of outputs, a range of output channels.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"

namespace tersify {

// One output channel within one block of input channels.
struct Row {
  uint16_t row;    // counted from the chunk's first
  uint16_t count;  // its entries here, with the two flags below
};
constexpr uint16_t kFirst = 0x8000, kLast = 0x4000;
constexpr uint16_t kFlush = 0x2000;  // sums of 8 or 16 bits could overflow in the next block: add them to the wide ones
constexpr uint16_t kCountMask = 0x1fff;

// Two output channels within one block of input channels. Their entries come by the word, four of them: of what both add
// and of what one adds and the other subtracts, by turns; then of each alone, by turns; then of the first.
struct RowPair {
  uint16_t first, second;  // counted from the chunk's first; kNoRow: the first is alone
  uint16_t common, apart, rest;  // words
};
constexpr uint16_t kNoRow = 0xffff;

constexpr int kReadAhead = 8;  // entries behind the last one that a kernel may read without using them

struct Unit {
  const Row* rows;
  uint32_t row_count;
  const uint16_t* entries;  // vectors from the footprint's start; Sign: that × 2 + sign
  const uint8_t* codes;     // Table
  const float* values;      // Float
  const RowPair* pairs;     // instead of rows; row_count is how many
  const uint16_t* plus;     // int8: how many of a row's entries are +1; they come first. Both parts are even
  uint16_t entry_count;     // dense: of every row; `values` are [group of kDenseRows rows][entry][kDenseRows]
  bool first, last;         // dense, pairs: of the blocks
};
constexpr int kDenseRows = 4, kDensePatch = 8;  // rows that share a reading of the input; vectors of their patch

struct Chunk {  // a range of output channels
  int first_row, rows;
};

// Copies `count` vectors of one channel into the footprint.
struct CopyRun {
  int32_t source, target, count;
  int32_t shift;  // number of the lane shift, kStraight or kFill
};
constexpr int32_t kStraight = -1, kFill = -2;

// Every lane takes what lies `bytes` further on; those that this would lead out of the image are filled.
struct LaneShift {
  int32_t bytes;
  alignas(64) uint8_t keep[64];  // 0xff or 0 a byte
};

struct PatchView {  // one patch of outputs and what of the input it looks at
  const CopyRun* runs;
  int run_count;
  const LaneShift* shifts;
  size_t footprint_bytes;  // per channel
  size_t pitch_bytes;      // between footprint rows
  int h, w;
  int skip_h, skip_w;  // leading rows and columns that the patch before has written
};

// Where the means of a convolution's outputs go, one row of channels an image.
struct MeanView {
  float* sums;  // null: no means, or byte lanes
  // Byte lanes: sums in whole steps, of which a channel has steps[channel] in 1.
  int64_t* totals;
  const float* steps;
  size_t image_stride;
  int images, grid;          // in the vector, and the lanes of each
  int cols, tile_h, tile_w;  // of the lanes' tiles
  int h, w;                  // of the image
  int top, left;             // of the patch in its tile
  float fraction;            // that one position is of all
  EpilogueView epilogue;     // of the mean
};

// int8: the byte of one output channel is a·sum + b + c·byte of the residual, rounded and kept between two bytes. A curve
// comes before the steps of the output: a, b and c then make its argument.
struct ByteEpilogue {
  float a, b, c, low, high;
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
  EpilogueView epilogue;
  char* output;  // the patch's first vector in channel 0; unused with means
  MeanView mean;
  const char* residual;                           // the same position of the other summand; may be null
  size_t output_channel_bytes, output_row_bytes;  // of the residual, too
  int pool_h, pool_w;                             // windows side by side whose maxima are written; 1: all is
  size_t pooled_channel_bytes, pooled_row_bytes;  // of the output then
  bool flushes;                                   // lanes narrower than float: some row has wide sums
  uint8_t fill;                                   // int8: what lies outside the image
  Quant residual_quant, output_quant;
  const ByteEpilogue* byte_epilogues;  // int8, but for means: of each channel
  char* scratch;
};

}  // namespace tersify
