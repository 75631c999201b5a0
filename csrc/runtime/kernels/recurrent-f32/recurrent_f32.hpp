// One step of a recurrent layer: the state times a matrix that stays packed, then the gates.

#if defined(__AVX512F__)
#include <immintrin.h>
#endif

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Blocks of rows; two features at a time, so that no sum waits for itself.
void state_rows(const StateTask& t) {
  constexpr int kVectors = kStateRows / kLanes;
  for (int row = 0; row < t.rows; row += kStateRows) {
    const float* weights = t.dense + size_t(row) * t.features;
    Vec sums[2][kVectors] = {};
    int f = 0;
    for (; f + 2 <= t.features; f += 2, weights += 2 * kStateRows) UNROLL
    for (int odd = 0; odd < 2; ++odd) UNROLL
    for (int v = 0; v < kVectors; ++v)
      sums[odd][v] += load_some(weights + odd * kStateRows + v * kLanes, kLanes) * t.state[f + odd];
    if (f < t.features) UNROLL
    for (int v = 0; v < kVectors; ++v) sums[0][v] += load_some(weights + v * kLanes, kLanes) * t.state[f];
    for (int v = 0; v < kVectors && row + v * kLanes < t.rows; ++v) {
      const int at = row + v * kLanes, some = t.rows - at < kLanes ? t.rows - at : kLanes;
      Vec sum = sums[0][v] + sums[1][v];
      if (t.start) sum += load_some(t.start + at, some);
      store_some(t.out + at, sum, some);
    }
  }
}

#if defined(__AVX512F__)
// Every lane picks the features its row has: one permutation of a window of 32.
void state_picks(const StateTask& t) {
  const uint16_t* count = t.counts;
  const uint8_t* index = t.indices;
  const float* value = t.values;
  for (int row = 0; row < t.rows; row += kPickedRows) {
    __m512 sums[2] = {_mm512_setzero_ps(), _mm512_setzero_ps()};
    for (int f = 0; f < t.features; f += kPickedWindow) {
      const __m512 low = _mm512_loadu_ps(t.state + f), high = _mm512_loadu_ps(t.state + f + 16);
      for (int e = *count++; e > 0; --e, index += kPickedRows, value += kPickedRows) {
        const __m512i picked = _mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(index)));
        const __m512 next = sums[1];
        sums[1] = _mm512_fmadd_ps(_mm512_permutex2var_ps(low, picked, high), _mm512_loadu_ps(value), sums[0]);
        sums[0] = next;
      }
    }
    const int some = t.rows - row < kPickedRows ? t.rows - row : kPickedRows;
    Vec sum = (Vec)_mm512_add_ps(sums[0], sums[1]);
    if (t.start) sum += load_some(t.start + row, some);
    store_some(t.out + row, sum, some);
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
