// softmax(q · kᵀ · scale) · v for one head: keys are turned so that a vector holds the same feature of neighbours.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Some queries share what is read of the keys, and of the values; more of them stay near their scores.
constexpr int kQueryTile = kBytes == 64 ? 6 : 4, kValueTile = kBytes == 64 ? 12 : 4, kQueryBlock = 24;
constexpr int kKeyVectors = kBytes == 64 ? 4 : 2, kValueVectors = 2;
constexpr int kKeyBlock = kKeyVectors * kLanes, kValueBlock = kValueVectors * kLanes;

inline int whole_blocks(int count, int block) { return (count + block - 1) / block * block; }

// Rows of scores a power of two apart would share few places of a cache.
inline size_t scores_apart(int keys) { return size_t(whole_blocks(keys, kKeyBlock)) + kLanes; }

size_t attention_scratch_bytes(int keys, int width, int value_width) {
  return (size_t(whole_blocks(keys, kKeyBlock)) * width + size_t(keys) * whole_blocks(value_width, kValueBlock) +
          kQueryBlock * scores_apart(keys)) *
         sizeof(float);
}

// [keys][width] → [block of keys][width][its keys, padded by zeros].
void turn_keys(const AttentionTask& t, float* turned) {
  for (int first = 0; first < whole_blocks(t.keys, kKeyBlock); first += kLanes) {
    float* block = turned + size_t(first / kKeyBlock) * t.width * kKeyBlock + first % kKeyBlock;
    for (int f = 0; f < t.width; f += kLanes) {
      const int features = t.width - f < kLanes ? t.width - f : kLanes;
      IntVec rows[kLanes];
      for (int i = 0; i < kLanes; ++i)
        rows[i] = first + i < t.keys ? (IntVec)load_some(t.k + (first + i) * t.k_stride + f, features) : IntVec{};
      transpose(rows);
      for (int i = 0; i < features; ++i) memcpy(block + size_t(f + i) * kKeyBlock, &rows[i], kBytes);
    }
  }
}

// [keys][width] → [block of the width, padded by zeros][keys][its numbers].
void gather_values(const AttentionTask& t, float* gathered) {
  for (int at = 0; at < t.value_width; at += kValueBlock)
    for (int k = 0; k < t.keys; ++k, gathered += kValueBlock)
      for (int j = 0; j < kValueBlock; j += kLanes) {
        const Vec v = load_some(t.v + k * t.v_stride + at + j, t.value_width - at - j > 0 ? t.value_width - at - j : 0);
        memcpy(gathered + j, &v, kBytes);
      }
}

// The keys that do not count get nothing of the softmax; `seen`: those that are looked at, of which a causal query may
// see fewer.
void mask_scores(const AttentionTask& t, int query, int seen, float* scores) {
  if (t.mask) {
    const float* mask = t.mask + query * t.mask_stride;
    for (int k = 0; k < seen; ++k) scores[k] = t.added ? scores[k] + mask[k] : mask[k] != 0 ? scores[k] : -INFINITY;
  }
  for (int k = t.visible + query < 0 ? 0 : t.visible + query; k < seen; ++k) scores[k] = -INFINITY;
}

// Whole vectors of scores: of what stands behind the last key nothing is left. A query that sees no key makes zeros.
void attend_softmax(const AttentionTask& t, int query, int seen, float* scores) {
  mask_scores(t, query, seen, scores);
  bool none = true;
  for (int k = 0; k < seen && none; ++k) none = scores[k] == -INFINITY;
  const int whole = whole_blocks(seen, kLanes);
  for (int k = seen; k < whole; ++k) scores[k] = -INFINITY;
  if (none)
    memset(scores, 0, size_t(seen) * sizeof(float));
  else
    softmax(scores, scores, whole);
}

// Of a block of keys and some queries from `first` on.
template <int count>
void score_keys(const AttentionTask& t, int first, const float* keys, float* scores, size_t apart) {
  const float* q = t.q + first * t.q_stride;
  Vec sums[count][kKeyVectors] = {};
  for (int f = 0; f < t.width; ++f, keys += kKeyBlock) {
    Vec k[kKeyVectors];
    UNROLL
    for (int i = 0; i < kKeyVectors; ++i) memcpy(&k[i], keys + i * kLanes, kBytes);
    UNROLL
    for (int i = 0; i < count; ++i) UNROLL
    for (int j = 0; j < kKeyVectors; ++j) sums[i][j] += q[i * t.q_stride + f] * k[j];
  }
  UNROLL
  for (int i = 0; i < count; ++i) UNROLL
  for (int j = 0; j < kKeyVectors; ++j) {
    const Vec scaled = sums[i][j] * t.scale;
    memcpy(scores + i * apart + j * kLanes, &scaled, kBytes);
  }
}

// Of a block of the values' width and some queries from `first` on: sums of values, weighted by the scores.
template <int count>
void weigh_values(const AttentionTask& t, int first, int at, int seen, const float* values, const float* scores,
                  size_t apart) {
  Vec sums[count][kValueVectors] = {};
  for (int k = 0; k < seen; ++k, values += kValueBlock) {
    Vec value[kValueVectors];
    UNROLL
    for (int j = 0; j < kValueVectors; ++j) memcpy(&value[j], values + j * kLanes, kBytes);
    UNROLL
    for (int i = 0; i < count; ++i) UNROLL
    for (int j = 0; j < kValueVectors; ++j) sums[i][j] += scores[i * apart + k] * value[j];
  }
  Vec made[count][kValueVectors];  // where a loop may count: clang would keep the sums in memory for it
  UNROLL
  for (int i = 0; i < count; ++i) UNROLL
  for (int j = 0; j < kValueVectors; ++j) made[i][j] = sums[i][j];
  for (int i = 0; i < count; ++i)
    for (int j = 0; j < kValueVectors && at + j * kLanes < t.value_width; ++j)
      store_some(t.out + (first + i) * t.out_stride + at + j * kLanes, made[i][j], t.value_width - at - j * kLanes);
}

// Queries first..last: those of a tile share a block of keys and of values while it is near.
void attend(const AttentionTask& t, int first, int last, const float* keys, const float* values, float* scores) {
  const size_t apart = scores_apart(t.keys);
  const int visible = t.visible + last - 1, seen = visible < 1 ? 1 : visible < t.keys ? visible : t.keys;
  for (int key = 0; key < seen; key += kKeyBlock, keys += size_t(t.width) * kKeyBlock) {
    int q = first;
    auto row = [&] { return scores + (q - first) * apart + key; };
    for (; q + kQueryTile <= last; q += kQueryTile) score_keys<kQueryTile>(t, q, keys, row(), apart);
    for (; q + 2 <= last; q += 2) score_keys<2>(t, q, keys, row(), apart);
    if (q < last) score_keys<1>(t, q, keys, row(), apart);
  }
  for (int q = first; q < last; ++q) attend_softmax(t, q, seen, scores + (q - first) * apart);
  for (int at = 0; at < t.value_width; at += kValueBlock, values += size_t(t.keys) * kValueBlock) {
    int q = first;
    auto row = [&] { return scores + (q - first) * apart; };
    for (; q + kValueTile <= last; q += kValueTile) weigh_values<kValueTile>(t, q, at, seen, values, row(), apart);
    if constexpr (kValueTile > 4)
      for (; q + 4 <= last; q += 4) weigh_values<4>(t, q, at, seen, values, row(), apart);
    for (; q < last; ++q) weigh_values<1>(t, q, at, seen, values, row(), apart);
  }
}

void attention(const AttentionTask& t) {
  float* keys = reinterpret_cast<float*>(t.scratch);
  float* values = keys + size_t(whole_blocks(t.keys, kKeyBlock)) * t.width;
  float* scores = values + size_t(t.keys) * whole_blocks(t.value_width, kValueBlock);
  turn_keys(t, keys);
  gather_values(t, values);
  for (int first = 0; first < t.queries; first += kQueryBlock)
    attend(t, first, t.queries - first < kQueryBlock ? t.queries : first + kQueryBlock, keys, values, scores);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
