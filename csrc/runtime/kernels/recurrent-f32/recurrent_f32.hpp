// One step of a recurrent layer: the state times a matrix that stays packed, then the gates.

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Of a block of rows and some items, whose sums stay in registers; of one item two features at a time, so that no sum
// waits for itself.
template <int items>
void state_block(const StateTask& t, int row, int first) {
  constexpr int kAll = kStateRows / kLanes, kFew = kBytes == 64 && items <= 4 ? kAll : items == 2 ? 4 : 2;
  constexpr int kOdd = items == 1 ? 2 : 1, kVectors = items == 1 ? kAll : kFew;
  const float* states = t.state + first * t.state_stride;
  const float* block = t.dense + size_t(row) * t.features;
  for (int begin = 0; begin < kStateRows && row + begin < t.rows; begin += kVectors * kLanes) {
    const float* weights = block + begin;
    Vec sums[kOdd][items][kVectors] = {};
    auto add = [&](int f, int odd) {
      Vec weight[kVectors];
      UNROLL
      for (int v = 0; v < kVectors; ++v) weight[v] = load_some(weights + odd * kStateRows + v * kLanes, kLanes);
      UNROLL
      for (int i = 0; i < items; ++i) UNROLL
      for (int v = 0; v < kVectors; ++v) sums[odd][i][v] += weight[v] * states[i * t.state_stride + f + odd];
    };
    int f = 0;
    for (; f + kOdd <= t.features; f += kOdd, weights += kOdd * kStateRows) UNROLL
    for (int odd = 0; odd < kOdd; ++odd) add(f, odd);
    if (f < t.features) add(f, 0);
    Vec made[items][kVectors];  // where a loop may count: clang would keep the sums in memory for it
    UNROLL
    for (int i = 0; i < items; ++i) UNROLL
    for (int v = 0; v < kVectors; ++v) made[i][v] = sums[0][i][v] + (kOdd > 1 ? sums[kOdd - 1][i][v] : Vec{});
    for (int i = 0; i < items; ++i)
      for (int v = 0; v < kVectors && row + begin + v * kLanes < t.rows; ++v) {
        const int at = row + begin + v * kLanes, some = t.rows - at < kLanes ? t.rows - at : kLanes;
        Vec sum = made[i][v];
        if (t.start) sum += load_some(t.start + (first + i) * t.start_stride + at, some);
        store_some(t.out + (first + i) * t.out_stride + at, sum, some);
      }
  }
}

// A block of rows stays near while all items meet it.
void state_rows(const StateTask& t) {
  for (int row = 0; row < t.rows; row += kStateRows) {
    int i = 0;
    if constexpr (kBytes == 64) {
#if !defined(__clang__)  // which keeps 24 sums in memory
      for (; i + 12 <= t.items; i += 12) state_block<12>(t, row, i);
#endif
      for (; i + 8 <= t.items; i += 8) state_block<8>(t, row, i);
    }
    for (; i + 4 <= t.items; i += 4) state_block<4>(t, row, i);
    for (; i + 2 <= t.items; i += 2) state_block<2>(t, row, i);
    if (i < t.items) state_block<1>(t, row, i);
  }
}

#if defined(__AVX512F__)
// Every lane picks the features its row has: one permutation of a window of 32.
void state_picks(const StateTask& t) {
  for (int i = 0; i < t.items; ++i) {
    const float* state = t.state + i * t.state_stride;
    const uint16_t* count = t.counts;
    const uint8_t* index = t.indices;
    const float* value = t.values;
    for (int row = 0; row < t.rows; row += kPickedRows) {
      __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
      for (int f = 0; f < t.features; f += kPickedWindow) {
        const __m512 low = _mm512_loadu_ps(state + f), high = _mm512_loadu_ps(state + f + 16);
        for (int e = *count++; e > 0; --e, index += kPickedRows, value += kPickedRows) {
          const __m512i picked = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(index)));
          const __m512 next = sums[1];
          sums[1] = _mm512_fmadd_ps(_mm512_permutex2var_ps(low, picked, high), _mm512_loadu_ps(value), sums[0]);
          sums[0] = next;
        }
      }
      const int some = t.rows - row < kPickedRows ? t.rows - row : kPickedRows;
      Vec sum = (Vec)_mm512_add_ps(sums[0], sums[1]);
      if (t.start) sum += load_some(t.start + i * t.start_stride + row, some);
      store_some(t.out + i * t.out_stride + row, sum, some);
    }
  }
}
#define TERSIFY_PICKS(function) function
#else
#define TERSIFY_PICKS(function) nullptr
#endif

// gates: [input, forget, cell, output][size], as torch has them.
void lstm_cell(const float* gates, int size, float* cell, float* state) {
  for (int i = 0; i < size; i += kLanes) {
    const int some = size - i < kLanes ? size - i : kLanes;
    const Vec in = sigmoid_of(load_some(gates + i, some)), forget = sigmoid_of(load_some(gates + size + i, some));
    const Vec fresh = tanh_of(load_some(gates + 2 * size + i, some));
    const Vec out = sigmoid_of(load_some(gates + 3 * size + i, some));
    const Vec kept = forget * load_some(cell + i, some) + in * fresh;
    store_some(cell + i, kept, some);
    store_some(state + i, out * tanh_of(kept), some);
  }
}

// given, own: [reset, update, new][size], from the input and from the state.
void gru_cell(const float* given, const float* own, int size, float* state) {
  for (int i = 0; i < size; i += kLanes) {
    const int some = size - i < kLanes ? size - i : kLanes;
    auto sum = [&](int gate) {
      return load_some(given + gate * size + i, some) + load_some(own + gate * size + i, some);
    };
    const Vec reset = sigmoid_of(sum(0)), update = sigmoid_of(sum(1));
    const Vec fresh = tanh_of(load_some(given + 2 * size + i, some) + reset * load_some(own + 2 * size + i, some));
    store_some(state + i, fresh + update * (load_some(state + i, some) - fresh), some);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
