// softmax(q · kᵀ · scale) · v for one head: keys are turned so that a vector holds the same feature of neighbours.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kQueryTile = 4, kKeyVectors = kBytes == 64 ? 4 : 2, kValueVectors = 2;

inline int up_to_lanes(int count, int vectors) {
  const int whole = vectors * kLanes;
  return (count + whole - 1) / whole * whole;
}

size_t attention_scratch_bytes(int keys, int width, int value_width) {
  const size_t padded = size_t(up_to_lanes(keys, kKeyVectors));
  return (padded * width + size_t(keys) * up_to_lanes(value_width, kValueVectors) + kQueryTile * padded) *
         sizeof(float);
}

// [keys][width] → [width][keys, padded by zeros].
void turn_keys(const AttentionTask& t, float* turned, int padded) {
  for (int first = 0; first < padded; first += kLanes)
    for (int f = 0; f < t.width; f += kLanes) {
      const int features = t.width - f < kLanes ? t.width - f : kLanes;
      IntVec rows[kLanes];
      for (int i = 0; i < kLanes; ++i)
        rows[i] = first + i < t.keys ? (IntVec)load_some(t.k + (first + i) * t.k_stride + f, features) : IntVec{};
      transpose(rows);
      for (int i = 0; i < features; ++i) memcpy(turned + size_t(f + i) * padded + first, &rows[i], kBytes);
    }
}

// The keys that do not count get nothing of the softmax; a query that sees none makes zeros.
void mask_scores(const AttentionTask& t, int query, float* scores) {
  if (t.mask) {
    const float* mask = t.mask + query * t.mask_stride;
    for (int k = 0; k < t.keys; ++k) scores[k] = t.added ? scores[k] + mask[k] : mask[k] != 0 ? scores[k] : -INFINITY;
  }
  for (int k = t.visible + query < 0 ? 0 : t.visible + query; k < t.keys; ++k) scores[k] = -INFINITY;
}

void attend_softmax(const AttentionTask& t, int query, float* scores) {
  mask_scores(t, query, scores);
  bool none = true;
  for (int k = 0; k < t.keys && none; ++k) none = scores[k] == -INFINITY;
  if (none)
    memset(scores, 0, size_t(t.keys) * sizeof(float));
  else
    softmax(scores, scores, t.keys);
}

void attention(const AttentionTask& t) {
  const int padded = up_to_lanes(t.keys, kKeyVectors), values = up_to_lanes(t.value_width, kValueVectors);
  float* turned = reinterpret_cast<float*>(t.scratch);
  float* v = turned + size_t(padded) * t.width;
  float* scores = v + size_t(t.keys) * values;
  turn_keys(t, turned, padded);
  for (int k = 0; k < t.keys; ++k) {
    memcpy(v + size_t(k) * values, t.v + k * t.v_stride, size_t(t.value_width) * sizeof(float));
    memset(v + size_t(k) * values + t.value_width, 0, size_t(values - t.value_width) * sizeof(float));
  }
  for (int first = 0; first < t.queries; first += kQueryTile) {
    const int count = t.queries - first < kQueryTile ? t.queries - first : kQueryTile;
    const float* q[kQueryTile];  // where queries are missing the last is computed again
    for (int i = 0; i < kQueryTile; ++i) q[i] = t.q + (first + (i < count ? i : count - 1)) * t.q_stride;
    for (int key = 0; key < padded; key += kKeyVectors * kLanes) {
      Vec sums[kQueryTile][kKeyVectors] = {};
      for (int f = 0; f < t.width; ++f) {
        Vec k[kKeyVectors];
        UNROLL
        for (int i = 0; i < kKeyVectors; ++i)
          memcpy(&k[i], turned + size_t(f) * padded + key + i * kLanes, sizeof k[i]);
        UNROLL
        for (int i = 0; i < kQueryTile; ++i) UNROLL
        for (int j = 0; j < kKeyVectors; ++j) sums[i][j] += q[i][f] * k[j];
      }
      UNROLL
      for (int i = 0; i < kQueryTile; ++i) UNROLL
      for (int j = 0; j < kKeyVectors; ++j) {
        const Vec scaled = sums[i][j] * t.scale;
        memcpy(scores + size_t(i) * padded + key + j * kLanes, &scaled, sizeof scaled);
      }
    }
    for (int i = 0; i < count; ++i) attend_softmax(t, first + i, scores + size_t(i) * padded);
    for (int at = 0; at < t.value_width; at += kValueVectors * kLanes) {
      Vec sums[kQueryTile][kValueVectors] = {};
      for (int k = 0; k < t.keys; ++k) {
        Vec value[kValueVectors];
        UNROLL
        for (int j = 0; j < kValueVectors; ++j)
          memcpy(&value[j], v + size_t(k) * values + at + j * kLanes, sizeof value[j]);
        UNROLL
        for (int i = 0; i < kQueryTile; ++i) UNROLL
        for (int j = 0; j < kValueVectors; ++j) sums[i][j] += scores[size_t(i) * padded + k] * value[j];
      }
      for (int i = 0; i < count; ++i)
        for (int j = 0; j < kValueVectors && at + j * kLanes < t.value_width; ++j)
          store_some(t.out + (first + i) * t.out_stride + at + j * kLanes, sums[i][j], t.value_width - at - j * kLanes);
    }
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
