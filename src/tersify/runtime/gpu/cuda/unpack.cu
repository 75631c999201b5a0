// Packed weights → a dense matrix [N][K], for products with so many vectors that tensor cores are better fed by a library.
//
// FORM 2: two-bit words of ternary.cu; 4: four-bit words of table4.cu. A thread has one word: 16 or 8 weights of a row that follow each
// other. OUT: the type of the matrix. THREADS: of a block.

#define WEIGHTS (32 / FORM)  // of a word

extern "C" __global__ void __launch_bounds__(THREADS)
    unpack(const u32* words, const float* levels, const float* scale, void* y, int N, int K, int KB, int count) {
  const int at = blockIdx.x * THREADS + threadIdx.x;
  let_next_start();
  wait_for_previous();
  if (at >= count) return;
  const u32 word = words[at];
  const int i = at & 3, lane = at >> 2 & 31, block = at >> 7;
  const int row = block / KB * 16 + (lane >> 2) + 8 * (i & 1);
  const int first = (block % KB * 4 + (lane & 3)) * 2 * WEIGHTS + WEIGHTS * (i >> 1);
  if (row >= N) return;
  const float factor = scale[row];
#pragma unroll
  for (int f = 0; f < WEIGHTS; ++f) {
    const int bit = FORM == 2 ? 16 * (f & 1) + 8 * (f >> 1 & 1) + 2 * (f >> 2) : 4 * f;
    const u32 code = word >> bit & ((1 << FORM) - 1);
    const float level = FORM == 2 ? float(int(code) - 1) : levels[code];
    if (first + f < K) store<OUT>(y, size_t(row) * K + first + f, level * factor);
  }
}
