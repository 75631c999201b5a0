// Products of bytes with 8-bit activations and exact 32-bit sums: weights that lie unpacked, 64 rows side by side. The
// helpers are those of products with codes.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

constexpr int kByteStep = kFields * kStepBytes;  // of 64 rows and four features

#if defined(TERSIFY_BYTE_PRODUCTS)

#if defined(__AVX512BW__) || defined(__ARM_FEATURE_DOTPROD)
constexpr int kWide = 2;  // twice the registers, twice the vectors
#else
constexpr int kWide = 1;
#endif

// V vectors meet F fields of sixteen rows.
template <int V, int F>
void byte_vectors(const CodesTask& t, int first) {
  constexpr int kLaneCount = TERSIFY_VECTOR_BYTES / 4;
  const ptrdiff_t apart = t.vector_bytes;
  for (int part = 0; part < kFieldRows; part += kLaneCount) {
    Bytes sums[V][F];
    UNROLL
    for (auto& vector : sums) UNROLL
    for (auto& field : vector) field = broadcast(0);
    const uint8_t* weights = t.codes + 4 * part;
    for (int r = 0; r < t.run_count; ++r) {
      // A pointer for every third vector: the other two are an index away.
      const int8_t* x[(V + 2) / 3];
      UNROLL
      for (int p = 0; p < (V + 2) / 3; ++p) x[p] = t.x + (first + 3 * p) * apart + t.runs[r];
      for (int step = 0; step < t.run_steps; ++step, weights += kByteStep) {
        Bytes field[F];
        UNROLL
        for (int f = 0; f < F; ++f) field[f] = load_codes(weights + f * kStepBytes);
        UNROLL
        for (int v = 0; v < V; ++v) {
          int32_t four;
          memcpy(&four, x[v / 3] + v % 3 * apart + 4 * step, sizeof four);
          const Bytes activations = broadcast(four);
          UNROLL
          for (int f = 0; f < F; ++f) sums[v][f] = NibbleCodes::multiply(sums[v][f], field[f], activations);
        }
      }
    }
    UNROLL
    for (int v = 0; v < V; ++v) UNROLL
    for (int f = 0; f < F; ++f) store_sums(t.sums + (first + v) * kCodeRows + f * kFieldRows + part, sums[v][f]);
  }
}

// The most vectors whose sums fit the registers, then fewer.
template <int F>
void byte_fields(const CodesTask& t) {
  constexpr int kMost = kWide * (F == 1 ? 8 : F == 2 ? 6 : F == 3 ? 4 : 3);
  int first = 0;
  for (; t.vectors - first >= kMost; first += kMost) byte_vectors<kMost, F>(t, first);
  for (; t.vectors - first >= 4 && kMost > 4; first += 4) byte_vectors < kMost<4 ? 1 : 4, F>(t, first);
  for (; t.vectors - first >= 2; first += 2) byte_vectors<2, F>(t, first);
  if (t.vectors > first) byte_vectors<1, F>(t, first);
}

void byte_sums(const CodesTask& t) {
  switch ((t.rows + kFieldRows - 1) / kFieldRows) {
    case 1:
      return byte_fields<1>(t);
    case 2:
      return byte_fields<2>(t);
    case 3:
      return byte_fields<3>(t);
    default:
      return byte_fields<4>(t);
  }
}

void unpack_nibbles(const uint8_t* codes, const uint8_t* levels, int steps, uint8_t* bytes) {
  const Bytes table = load_levels(levels), mask = broadcast(0x0f0f0f0f);
  for (int step = 0; step < steps; ++step, codes += kStepBytes, bytes += kByteStep)
    for (int part = 0; part < kStepBytes; part += TERSIFY_VECTOR_BYTES) {
      const Bytes both_rows = load_codes(codes + part);
      store_sums(reinterpret_cast<int32_t*>(bytes + part), look_up(table, both(both_rows, mask)));
      store_sums(reinterpret_cast<int32_t*>(bytes + kStepBytes + part),
                 look_up(table, both(high_nibbles(both_rows), mask)));
    }
}

#elif defined(TERSIFY_WORD_PRODUCTS)

void byte_sums(const CodesTask& t) { word_sums<ByteWords>(t); }

void unpack_nibbles(const uint8_t* codes, const uint8_t* levels, int steps, uint8_t* bytes) {
  for (int step = 0; step < steps; ++step, codes += kStepBytes, bytes += kByteStep)
    for (int part = 0; part < kStepBytes; part += 16) {
      const Words both_rows = load_words(codes + part), rows[] = {look_up(levels, low_nibbles(both_rows)),
                                                                  look_up(levels, upper_nibbles(both_rows))};
      memcpy(bytes + part, &rows[0], sizeof rows[0]);
      memcpy(bytes + kStepBytes + part, &rows[1], sizeof rows[1]);
    }
}

#else

void byte_sums(const CodesTask& t) {
  memset(t.sums, 0, size_t(t.vectors) * kCodeRows * sizeof(int32_t));
  for (int v = 0; v < t.vectors; ++v) {
    const uint8_t* weights = t.codes;
    int32_t* sums = t.sums + v * kCodeRows;
    for (int r = 0; r < t.run_count; ++r) {
      const int8_t* x = t.x + v * t.vector_bytes + t.runs[r];
      for (int step = 0; step < t.run_steps; ++step, weights += kByteStep)
        for (int row = 0; row < t.rows; ++row)
          for (int i = 0; i < 4; ++i) sums[row] += weights[4 * row + i] * x[4 * step + i];
    }
  }
}

void unpack_nibbles(const uint8_t* codes, const uint8_t* levels, int steps, uint8_t* bytes) {
  for (int step = 0; step < steps; ++step, codes += kStepBytes, bytes += kByteStep)
    for (int i = 0; i < kStepBytes; ++i) {
      bytes[i] = levels[codes[i] & 15];
      bytes[kStepBytes + i] = levels[codes[i] >> 4];
    }
}

#endif

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
