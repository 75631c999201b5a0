#include "kernels/linear-lookup-i8/pair_matrix.hpp"

#include <vector>

#include "threads/in_parts.hpp"

namespace tersify {
namespace {

int pair_code(const int8_t* signs) { return 3 * (signs[0] + 1) + signs[1] + 1; }

}  // namespace

PairMatrix::PairMatrix(const ByteRows& weight, int threads)
    : rows_(weight.rows), rounds_((weight.features + kPairRoundFeatures - 1) / kPairRoundFeatures) {
  codes_.grow(size_t(blocks()) * block_bytes());
  auto* codes = reinterpret_cast<uint8_t*>(codes_.data());
  threads = std::min(blocks(), threads_for(size_t(rows_) * weight.features, threads));
  in_parts(blocks(), threads, [&](int, size_t begin, size_t end) {
    // Any code will do beyond the last feature, where activations are zeros, and in rows beyond the last.
    std::vector<int8_t> signs(vector_bytes());
    for (int row = int(begin) * kPairRows; row < int(end) * kPairRows; ++row) {
      if (row < rows_) weight.read(row, signs.data());
      uint8_t* own = codes + row / kPairRows * block_bytes() + row % kPairRows;
      for (size_t i = 0; i < signs.size(); i += 4, own += kPairRows)
        *own = static_cast<uint8_t>(pair_code(&signs[i]) | pair_code(&signs[i + 2]) << 4);
    }
  });
}

PairsTask PairMatrix::task(int block) const {
  PairsTask t{};
  t.codes = reinterpret_cast<const uint8_t*>(codes_.data()) + block * block_bytes();
  t.rounds = rounds_;
  return t;
}

}  // namespace tersify
