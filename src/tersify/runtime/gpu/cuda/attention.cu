// One new token attends to those before it. One block a head; heads of a group share keys and values.
//
// `qkv`: [heads + 2·groups][DIM], as one product makes it. `cosine`, `sine`: [positions][DIM / 2]; the first half of a
// vector turns with the second. `keys`, `values`: [groups][room][DIM]; the new ones are added at `position`. ACT: the type of all
// of them but the angles. No block waits for another: each turns the new key for itself.

#define WARPS_OF_BLOCK (THREADS / 32)
#define PARTS_OF_BLOCK (THREADS / DIM)

__device__ __forceinline__ float turned(const void* x, size_t first, int d, float cosine, float sine) {
  const float mine = load<ACT>(x, first + d), other = load<ACT>(x, first + (d < DIM / 2 ? d + DIM / 2 : d - DIM / 2));
  return mine * cosine + (d < DIM / 2 ? -other : other) * sine;
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention(const void* qkv, const float* cosine, const float* sine, void* keys, void* values, const int* position, void* y,
              int heads, int groups, int room) {
  SHARED_OF_LAUNCH(float, weights);  // one a position
  __shared__ float query[DIM], key[DIM], value[DIM], sums[PARTS_OF_BLOCK][DIM], scratch[33];
  const int head = blockIdx.x, group = head / (heads / groups), lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
  let_next_start();
  wait_for_previous();
  const int now = position[0];
  if (threadIdx.x < DIM) {
    const int d = threadIdx.x, angle = d % (DIM / 2);
    const float c = cosine[size_t(now) * (DIM / 2) + angle], s = sine[size_t(now) * (DIM / 2) + angle];
    query[d] = turned(qkv, size_t(head) * DIM, d, c, s) * rsqrtf(float(DIM));
    key[d] = turned(qkv, size_t(heads + group) * DIM, d, c, s);
    value[d] = load<ACT>(qkv, size_t(heads + groups + group) * DIM + d);
    if (head % (heads / groups) == 0) {
      store<ACT>(keys, (size_t(group) * room + now) * DIM + d, key[d]);
      store<ACT>(values, (size_t(group) * room + now) * DIM + d, value[d]);
    }
  }
  __syncthreads();
  const size_t first = size_t(group) * room * DIM;
  float top = -3.0e38f;
  for (int p = warp; p <= now; p += WARPS_OF_BLOCK) {
    float score = 0;
#pragma unroll
    for (int d = lane; d < DIM; d += 32) score += query[d] * (p == now ? key[d] : load<ACT>(keys, first + size_t(p) * DIM + d));
#pragma unroll
    for (int away = 16; away; away >>= 1) score += __shfl_xor_sync(0xffffffffu, score, away);
    if (lane == 0) weights[p] = score;
    top = score > top ? score : top;
  }
  if (lane == 0) scratch[warp] = top;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < WARPS_OF_BLOCK; ++w) top = scratch[w] > top ? scratch[w] : top;
  const int part = threadIdx.x / DIM, d = threadIdx.x % DIM;
  float sum = 0, whole = 0;
#pragma unroll 8
  for (int p = part; p <= now; p += PARTS_OF_BLOCK) {
    const float weight = expf(weights[p] - top);
    whole += weight;
    sum += weight * (p == now ? value[d] : load<ACT>(values, first + size_t(p) * DIM + d));
  }
  sums[part][d] = sum;
  __syncthreads();
  if (d == 0) scratch[part] = whole;
  __syncthreads();
  if (threadIdx.x < DIM) {
    float all = 0, total = 0;
#pragma unroll
    for (int i = 0; i < PARTS_OF_BLOCK; ++i) all += sums[i][d], total += scratch[i];
    store<ACT>(y, size_t(head) * DIM + d, all / total);
  }
}
