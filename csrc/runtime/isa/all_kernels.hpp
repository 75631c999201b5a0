// The kernels, written once for vectors of TERSIFY_VECTOR_BYTES. Each instruction set includes this file
// into a namespace of its own. No inline function of a shared header may be called here: the linker could keep
// the copy compiled for the wrong CPU. TERSIFY_PLANS_ONLY leaves out what no plan of a file asks for: lanes of fp16,
// products of bits and the decoding of language models.

#include <float.h>
#include <math.h>
#include <string.h>

#include "isa/kernel_table.hpp"

#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 16")
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kBytes = TERSIFY_VECTOR_BYTES;
constexpr int kLanes = kBytes / 4;
typedef float Vec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));
typedef int32_t IntVec __attribute__((vector_size(TERSIFY_VECTOR_BYTES)));

inline Vec load(const char* p) { return *reinterpret_cast<const Vec*>(p); }
inline void store(char* p, Vec v) { *reinterpret_cast<Vec*>(p) = v; }

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify

// clang-format off: each may use what those before it define.
#include "kernels/curves-f32/curves_f32.hpp"
#include "kernels/conv-lists-f32/conv_lists_epilogue.hpp"
#include "kernels/conv-lists-f32/conv_lists_f32.hpp"
#include "kernels/conv-dense-f32/conv_dense_f32.hpp"
#include "kernels/conv-pairs-f32/conv_pairs_f32.hpp"
#include "kernels/conv-pixels-f32/conv_pixels_f32.hpp"
#include "kernels/pool-f32/pool_f32.hpp"
#include "kernels/lanes-f32/transpose.hpp"
#include "kernels/lanes-f32/lanes_f32.hpp"
#include "kernels/elementwise-f32/elementwise_f32.hpp"
#include "kernels/pixels-f32/pixels_f32.hpp"
#include "kernels/mean-f32/mean_f32.hpp"
#include "kernels/finite-f32/finite_f32.hpp"
#include "kernels/norm-f32/norm_f32.hpp"
#include "kernels/rows-i8/rows_i8.hpp"
#if !defined(TERSIFY_PLANS_ONLY)
#include "kernels/conv-lists-f16/conv_lists_f16.hpp"
#endif
#include "kernels/conv-lists-i8/lanes_i8.hpp"
#include "kernels/conv-lists-i8/conv_lists_i8_epilogue.hpp"
#include "kernels/conv-lists-i8/conv_lists_i8.hpp"
#include "kernels/gemv-trits-f32/gemv_trits_f32.hpp"
#include "kernels/linear-2bit-i8/linear_2bit_i8.hpp"
#include "kernels/linear-8bit-i8/linear_8bit_i8.hpp"
#include "kernels/linear-i8/linear_i8.hpp"
#include "kernels/conv-codes-i8/conv_codes_i8.hpp"
#if !defined(TERSIFY_PLANS_ONLY)
#include "kernels/linear-bits/bit_sums.hpp"
#include "kernels/linear-bits/linear_bits.hpp"
#include "kernels/levels-f32/levels_f32.hpp"
#endif
#include "kernels/attention-f32/attention_f32.hpp"
#include "kernels/recurrent-f32/recurrent_f32.hpp"
#if !defined(TERSIFY_PLANS_ONLY)
#include "kernels/linear-rows-f32/linear_rows_f32.hpp"
#include "kernels/attention-cache-f32/attention_cache_f32.hpp"
#include "kernels/gate-f32/gate_f32.hpp"
#endif
// clang-format on

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

const Kernels kKernels{
    .vector_bytes = kBytes,
    .patch_limit = TERSIFY_PATCH_LIMIT,
    .conv_lists_f32_scratch_bytes = lists_scratch_bytes<Fp32Lanes>,
    .conv_lists_f32 = lists_conv<Fp32Lanes>,
    .conv_dense_f32 = dense_conv,
    .conv_pairs_f32 = TERSIFY_PAIRS(pairs_conv),
    .conv_pixels_f32 = conv_pixels,
#if !defined(TERSIFY_PLANS_ONLY)
    .conv_lists_f16_scratch_bytes = lists_scratch_bytes<Fp16Lanes>,
    .conv_lists_f16 = lists_conv<Fp16Lanes>,
#endif
    .conv_lists_i8_scratch_bytes = lists_i8_scratch_bytes,
    .conv_lists_i8 = lists_conv_i8,
    .pool = pool,
    .to_lanes = to_lanes,
    .from_lanes = from_lanes,
#if !defined(TERSIFY_PLANS_ONLY)
    .to_lanes_f16 = to_lanes_f16,
    .from_lanes_f16 = from_lanes_f16,
#endif
    .to_lanes_i8 = to_lanes_i8,
    .from_lanes_i8 = from_lanes_i8,
    .swap_axes = swap_axes,
    .pool_pixels = pool_pixels,
    .mean_planes = mean_planes,
    .mean_pixels = mean_pixels,
    .elementwise = elementwise,
    .elementwise_rows = elementwise_rows,
    .curve = curve,
    .global_mean = global_mean,
    .trit_tables = TERSIFY_GEMV(trit_tables),
    .trit_gemv = TERSIFY_GEMV(trit_gemv),
    .nibble_gemv = TERSIFY_GEMV(nibble_gemv),
    .code_sums = code_sums,
    .byte_sums = byte_sums,
    .unpack_nibbles = unpack_nibbles,
    .quantize_vector = quantize_vector,
    .write_vector = write_vector,
    .quantize_pixels = quantize_pixels,
    .write_positions = write_positions,
#if !defined(TERSIFY_PLANS_ONLY)
    .bit_sums = bit_sums,
    .bit_vector = bit_vector,
    .bit_pixels = bit_pixels,
    .levels = levels,
#endif
    .all_finite = all_finite,
    .sign_bytes = sign_bytes,
    .whole_bytes = whole_bytes,
    .level_bytes = level_bytes,
    .state_rows = state_rows,
    .state_picks = TERSIFY_PICKS(state_picks),
    .lstm_cell = lstm_cell,
    .gru_cell = gru_cell,
    .attention_scratch_bytes = attention_scratch_bytes,
    .attention = attention,
#if !defined(TERSIFY_PLANS_ONLY)
    .linear_rows = linear_rows,
    .prepare_heads = prepare_heads,
    .store_cached = store_cached,
    .attention_cache = attention_cache,
    .gate = gate,
#endif
    .softmax = softmax,
    .softmax_columns = softmax_columns,
    .moments = moments,
    .layer_norm = layer_norm,
};

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
