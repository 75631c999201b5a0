// Squares of numbers, as many rows as a vector has lanes.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Rows become columns: interleaving the first half with the second, once for every bit of an index.
inline void transpose(IntVec* rows) {
#if defined(__clang__)
  IntVec columns[kLanes];
  for (int i = 0; i < kLanes; ++i)
    for (int l = 0; l < kLanes; ++l) columns[i][l] = rows[l][i];
  memcpy(rows, columns, sizeof columns);
#else
  IntVec low, high;
  for (int l = 0; l < kLanes; ++l) {
    low[l] = l / 2 + l % 2 * kLanes;
    high[l] = low[l] + kLanes / 2;
  }
  UNROLL
  for (int bit = 1; bit < kLanes; bit *= 2) {
    IntVec mixed[kLanes];
    UNROLL
    for (int i = 0; i < kLanes / 2; ++i) {
      mixed[2 * i] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], low);
      mixed[2 * i + 1] = __builtin_shuffle(rows[i], rows[i + kLanes / 2], high);
    }
    UNROLL
    for (int i = 0; i < kLanes; ++i) rows[i] = mixed[i];
  }
#endif
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
