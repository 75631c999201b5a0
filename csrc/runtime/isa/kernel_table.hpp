// The kernels of one instruction set, as the engine calls them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "isa/kernel_types.hpp"
#include "kernels/attention-cache-f32/cache_task.hpp"
#include "kernels/attention-f32/attention_task.hpp"
#include "kernels/conv-codes-i8/pixels_task.hpp"
#include "kernels/conv-lists-f32/conv_lists_task.hpp"
#include "kernels/conv-pixels-f32/pixel_conv_task.hpp"
#include "kernels/gemv-trits-f32/gemv_task.hpp"
#include "kernels/linear-2bit-i8/codes_task.hpp"
#include "kernels/linear-bits/bits_task.hpp"
#include "kernels/linear-lookup-i8/lookup_task.hpp"
#include "kernels/linear-lookup-i8/pairs_task.hpp"
#include "kernels/linear-picks-i8/picks_task.hpp"
#include "kernels/linear-rows-f32/rows_task.hpp"
#include "kernels/pixels-f32/pixel_pool_task.hpp"
#include "kernels/pool-f32/pool_f32_task.hpp"
#include "kernels/recurrent-f32/recurrent_task.hpp"
#include "layout/lane_view.hpp"

namespace tersify {

// What begins as null may be left out: TERSIFY_PLANS_ONLY.
struct Kernels {
  int vector_bytes;
  int patch_limit;  // accumulators a patch may take
  size_t (*conv_lists_f32_scratch_bytes)(const ConvTask&);
  void (*conv_lists_f32)(const ConvTask&);
  void (*conv_dense_f32)(const ConvTask&);  // with the same scratch
  void (*conv_pairs_f32)(const ConvTask&) = nullptr;  // the same for signs; null: too few registers for two patches
  void (*conv_pixels_f32)(const PixelConvTask&);
  size_t (*conv_lists_f16_scratch_bytes)(const ConvTask&) = nullptr;
  void (*conv_lists_f16)(const ConvTask&) = nullptr;  // activations and short runs of sums in 16-bit floats
  size_t (*conv_lists_i8_scratch_bytes)(const ConvTask&);
  void (*conv_lists_i8)(const ConvTask&);  // signs only; activations of 8 bits, sums of 16
  void (*pool)(const PoolTask&);
  void (*to_lanes)(const LaneView&, const float* flat, char* lanes, int group, int c_begin, int c_end);
  void (*from_lanes)(const LaneView&, const char* lanes, float* flat, int group, int c_begin, int c_end);
  void (*to_lanes_f16)(const LaneView&, const float* flat, char* lanes, int group, int c_begin, int c_end) = nullptr;
  void (*from_lanes_f16)(const LaneView&, const char* lanes, float* flat, int group, int c_begin, int c_end) = nullptr;
  void (*to_lanes_i8)(const LaneView&, const float* flat, char* lanes, int group, int c_begin, int c_end, const Quant&);
  void (*from_lanes_i8)(const LaneView&, const char* lanes, float* flat, int group, int c_begin, int c_end,
                        const Quant&);
  // [rows][columns] becomes [columns][rows].
  void (*swap_axes)(const float* in, int rows, int columns, float* out);
  void (*pool_pixels)(const PixelPoolTask&);
  // Means of the channels of one image, whose sums have the same order whatever the vectors.
  void (*mean_planes)(const float* in, int positions, int channels, float* out, const EpilogueView&);
  void (*mean_pixels)(const float* in, int positions, int channels, float* out, const EpilogueView&);
  // out[i] = epilogue(a[i] (×|+) b[i]) with one channel's constants over the whole run; b may be null.
  void (*elementwise)(float* out, const float* a, const float* b, bool multiply, size_t count, const EpilogueView&,
                      int channel);
  // The same where neighbours are neighbouring channels.
  void (*elementwise_rows)(float* out, const float* a, const float* b, bool multiply, int channels,
                           const EpilogueView&);
  void (*curve)(float* out, const float* in, size_t count, Curve);
  // Means of `channels` channels of one image group, as rows [image][channel].
  void (*global_mean)(const LaneView&, const char* lanes, float* flat, int group, const EpilogueView&);
  // Null where the instruction set has no permutation wide enough.
  void (*trit_tables)(const float* x, int features, float* tables);
  void (*trit_gemv)(const GemvTask&);
  void (*nibble_gemv)(const GemvTask&);
  void (*code_sums)(const CodesTask&);
  // The same with weights that lie as [step][4][16 rows][4 features], each a level + 128.
  void (*byte_sums)(const CodesTask&);
  // Four-bit codes of 32 rows become half of such a step: 128 bytes of 256.
  void (*unpack_nibbles)(const uint8_t* codes, const uint8_t* levels, int steps, uint8_t* bytes);
  // One vector of activations as 8-bit steps, each plus `zero`: returns their scale, and in `total` their sum without
  // it.
  float (*quantize_vector)(const float* x, int count, int zero, uint8_t* steps, int32_t* total);
  // Rows first .. first + count of a layer from the sums of one vector with codes.
  void (*write_vector)(const int32_t* sums, int32_t total, float scale, int first, int count, float* out,
                       const EpilogueView&);
  void (*quantize_pixels)(const PixelTask&);
  void (*write_positions)(const PositionsTask&);
  void (*bit_sums)(const BitsTask&) = nullptr;
  // One vector as bits of signs and, unless null, of what is not zero; returns how many are not.
  int32_t (*bit_vector)(const float* x, int count, const Quant& levels, uint64_t* signs, uint64_t* used) = nullptr;
  void (*bit_pixels)(const BitPixelsTask&) = nullptr;
  void (*levels)(float* out, const float* in, size_t count, const Quant&) = nullptr;  // the nearest; scale 0: signs
  bool (*all_finite)(const float* x, size_t count);
  // Weights as bytes, which packing starts from; false where some cannot be.
  bool (*sign_bytes)(const float* weights, int count, int8_t* bytes);
  bool (*whole_bytes)(const float* weights, int count, int8_t* bytes);
  bool (*level_bytes)(const float* weights, int count, const float* levels, int level_count, uint8_t* bytes);
  void (*state_rows)(const StateTask&);
  void (*state_picks)(const StateTask&);  // null where the instruction set has no permutation wide enough
  void (*lstm_cell)(const float* gates, int size, float* cell, float* state);
  void (*gru_cell)(const float* given, const float* own, int size, float* state);
  size_t (*attention_scratch_bytes)(int keys, int width, int value_width);
  void (*attention)(const AttentionTask&);
  void (*linear_rows)(const RowsTask&) = nullptr;
  void (*prepare_heads)(const CacheHeads&, float* out) = nullptr;
  void (*store_cached)(const float* key, const float* value, int width, int position, bool half, char* keys,
                       char* values) = nullptr;
  void (*attention_cache)(const CacheTask&) = nullptr;
  // out[i] = activation(gate[i]), squared or not, × up[i].
  void (*gate)(float* out, const float* gate, const float* up, int count, const EpilogueView&, bool square) = nullptr;
  void (*softmax)(float* out, const float* in, int count);
  void (*softmax_columns)(float* out, const float* in, int count, size_t apart, int columns);
  // What a norm of `count` numbers takes off each, and what it multiplies with then. Not centred: nothing is taken off.
  void (*moments)(const float* in, int count, float eps, bool centred, float* mean, float* factor);
  void (*layer_norm)(float* out, const float* in, int count, const float* weight, const float* bias, float eps,
                     bool centred);
};

const Kernels& portable_kernels();
const Kernels& avx2_kernels();
const Kernels& avx512_kernels();
const Kernels& vnni_kernels();
const Kernels& fp16_kernels();
const Kernels& dotprod_kernels();
const Kernels& i8mm_kernels();
void add_neon_fp16(Kernels& kernels);
const Kernels& rvv_kernels();
const Kernels& amx_kernels(const Kernels& rest);  // tiles, and all else from `rest`, the same at every call
using PickSums = void (*)(const PickTask&);
extern const PickSums vbmi_pick_sums, neon_pick_sums, dotprod_pick_sums;
using LookupSums = void (*)(const LookupTask&);
extern const LookupSums vbmi_lookup_sums;
extern const PairKernels neon_pair_kernels;
using BitSums = void (*)(const BitsTask&);
extern const BitSums vpopcnt_bit_sums;
bool amx_keeps_its_promise();  // tries it: only where CPUID and the operating system have agreed

}  // namespace tersify
