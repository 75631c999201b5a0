// One new token attends to those before it. One block a head; heads of a group share keys and values.
//
// `qkv`: [heads + 2·groups][DIM], as one product makes it. `cosine`, `sine`: [positions][DIM / 2]; the first half of a
// vector turns with the second. `keys`, `values`: [groups][room][DIM]; the new ones are added at `position`. ACT: the 16-bit type
// of all of them but the angles. No block waits for another: each turns the new key for itself.
//
// A thread has eight numbers of a head, so CHUNKS of them are a position and the block sees PARTS positions at once. Each
// part weighs its positions by itself; in the end the parts are brought to the largest score of all.

#define CHUNKS (DIM / 8)
#define PARTS (THREADS / CHUNKS)
#define BATCH 4  // positions of a part that are on their way at once

__device__ __forceinline__ float turned(const void* x, size_t first, int d, float cosine, float sine) {
  const float mine = load<ACT>(x, first + d), other = load<ACT>(x, first + (d < DIM / 2 ? d + DIM / 2 : d - DIM / 2));
  return mine * cosine + (d < DIM / 2 ? -other : other) * sine;
}

__device__ __forceinline__ void eight_of(const uint4& from, float (&v)[8]) {
  const u32 words[4] = {from.x, from.y, from.z, from.w};
#pragma unroll
  for (int q = 0; q < 8; ++q) v[q] = as_float<ACT>(u16(words[q / 2] >> (16 * (q & 1))));
}

extern "C" __global__ void __launch_bounds__(THREADS)
    attention(const void* qkv, const float* cosine, const float* sine, void* keys, void* values, const int* position, void* y,
              int heads, int groups, int room) {
  __shared__ float query[DIM], key[DIM], value[DIM], sums[PARTS][DIM], tops[PARTS], wholes[PARTS];
  const int head = blockIdx.x, group = head / (heads / groups), chunk = threadIdx.x % CHUNKS, part = threadIdx.x / CHUNKS;
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
  const uint4* all_keys = static_cast<const uint4*>(keys) + size_t(group) * room * CHUNKS + chunk;
  const uint4* all_values = static_cast<const uint4*>(values) + size_t(group) * room * CHUNKS + chunk;
  float q[8], sum[8] = {}, top = -3.0e38f, whole = 0;
#pragma unroll
  for (int e = 0; e < 8; ++e) q[e] = query[8 * chunk + e];
  for (int first = part; first - part <= now; first += PARTS * BATCH) {  // as often for every thread: lanes meet
    uint4 k[BATCH], v[BATCH];
#pragma unroll
    for (int b = 0; b < BATCH; ++b)
      if (first + b * PARTS < now) {
        k[b] = all_keys[size_t(first + b * PARTS) * CHUNKS];
        v[b] = all_values[size_t(first + b * PARTS) * CHUNKS];
      }
    float scores[BATCH], before = top;
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const int p = first + b * PARTS;
      float eight[8], score = 0;
      if (p < now) {
        eight_of(k[b], eight);
#pragma unroll
        for (int e = 0; e < 8; ++e) score += q[e] * eight[e];
      } else if (p == now) {
#pragma unroll
        for (int e = 0; e < 8; ++e) score += q[e] * key[8 * chunk + e];
      }
#pragma unroll
      for (int away = CHUNKS / 2; away; away >>= 1) score += __shfl_xor_sync(0xffffffffu, score, away);
      scores[b] = score;
      if (p <= now && score > top) top = score;
    }
    const float fade = expf(before - top);
    whole *= fade;
#pragma unroll
    for (int e = 0; e < 8; ++e) sum[e] *= fade;
#pragma unroll
    for (int b = 0; b < BATCH; ++b) {
      const int p = first + b * PARTS;
      if (p > now) continue;
      const float weight = expf(scores[b] - top);
      float eight[8];
      if (p < now) {
        eight_of(v[b], eight);
      } else {
#pragma unroll
        for (int e = 0; e < 8; ++e) eight[e] = value[8 * chunk + e];
      }
      whole += weight;
#pragma unroll
      for (int e = 0; e < 8; ++e) sum[e] += weight * eight[e];
    }
  }
#pragma unroll
  for (int e = 0; e < 8; ++e) sums[part][8 * chunk + e] = sum[e];
  if (chunk == 0) tops[part] = top, wholes[part] = whole;
  __syncthreads();
  if (threadIdx.x < DIM) {
    float highest = tops[0], all = 0, total = 0;
#pragma unroll
    for (int i = 1; i < PARTS; ++i) highest = tops[i] > highest ? tops[i] : highest;
#pragma unroll
    for (int i = 0; i < PARTS; ++i) {
      const float weight = expf(tops[i] - highest);
      all += weight * sums[i][threadIdx.x], total += weight * wholes[i];
    }
    store<ACT>(y, size_t(head) * DIM + threadIdx.x, all / total);
  }
}
