#include "kernels/linear-lookup-i8/lookup_matrix.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/linear-lookup-i8/lookup_positions.hpp"
#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr LookupPositions kPositions = lookup_positions();

// The byte of a block at which the code of each row lies.
constexpr auto kBytes = [] {
  std::array<uint8_t, kLookupRows> bytes{};
  for (int byte = 0; byte < kLookupRows; ++byte) bytes[lookup_row(byte)] = static_cast<uint8_t>(byte);
  return bytes;
}();

// Measured on Zen 4, in vector operations. Intel permutes two tables of bytes at half that speed: there lookups cost
// about what dense products do.
constexpr double kPerCodes = 4.3, kPerTable = 14;

int bands_of(int blocks) { return (blocks + kLookupBandBlocks - 1) / kLookupBandBlocks; }
int blocks_of(int rows) { return (rows + kLookupRows - 1) / kLookupRows; }
int groups_of(int features) { return (features + 4 * kLookupRound - 1) / (4 * kLookupRound) * kLookupRound; }

// The number of four signs, given as digits of base three: the first counts 1, the last 27. A product sums them up in its
// highest byte, and no lower one overflows.
int signs_number(const uint8_t* digits) {
  uint32_t four;
  std::memcpy(&four, digits, sizeof four);
  return int(four * (1u << 24 | 3u << 16 | 9u << 8 | 27u) >> 24);
}

}  // namespace

LookupMatrix::LookupMatrix(const ByteRows& weight, int threads)
    : rows_(weight.rows), blocks_(blocks_of(weight.rows)), groups_(groups_of(weight.features)) {
  parts_.resize(std::min(threads, bands_of(blocks_)));
  codes_.grow(size_t(blocks_) * groups_ * kLookupRows);
  auto* codes = reinterpret_cast<uint8_t*>(codes_.data());
  for (int part = 0; part < parts(); ++part) {
    const int first = first_block(part);
    parts_[part] = {codes + size_t(first) * groups_ * kLookupRows, first_block(part + 1) - first};
  }
  in_parts(parts(), std::min(parts(), threads_for(size_t(rows_) * weight.features, threads)),
           [&](int, size_t begin, size_t end) {
             std::vector<uint8_t> digits(size_t(groups_) * 4);
             std::vector<int8_t> signs(digits.size(), 0);
             for (int part = int(begin); part < int(end); ++part)
               for (int row = first_block(part) * kLookupRows; row < first_block(part + 1) * kLookupRows; ++row) {
                 if (row < rows_)
                   weight.read(row, signs.data());
                 else
                   std::fill(signs.begin(), signs.end(), int8_t(0));
                 for (size_t i = 0; i < digits.size(); ++i) digits[i] = static_cast<uint8_t>(signs[i] + 1);
                 add_row(part, row, digits.data());
               }
           });
}

// The codes of a row lie one in each group's block.
void LookupMatrix::add_row(int part, int row, const uint8_t* digits) {
  const int block = row / kLookupRows - first_block(part), blocks = parts_[part].blocks;
  const int band = block / kLookupBandBlocks * kLookupBandBlocks, band_blocks = std::min(kLookupBandBlocks, blocks - band);
  uint8_t* codes = reinterpret_cast<uint8_t*>(codes_.data()) + size_t(first_block(part)) * groups_ * kLookupRows;
  for (int chunk = 0; chunk < groups_; chunk += kLookupChunk) {
    const int groups = std::min(kLookupChunk, groups_ - chunk);
    uint8_t* first = codes + (size_t(chunk) * blocks + size_t(band) * groups + (block - band)) * kLookupRows;
    for (int group = 0; group < groups; ++group)
      first[size_t(group) * band_blocks * kLookupRows + kBytes[row % kLookupRows]] =
          kPositions.position[group % 2][signs_number(digits + 4 * size_t(chunk + group))];
  }
}

// Whole bands, but for the last part.
int LookupMatrix::first_block(int part) const {
  return std::min(blocks_, int(size_t(bands_of(blocks_)) * part / parts_.size()) * kLookupBandBlocks);
}

LookupTask LookupMatrix::task(int first_part, int last_part) const {
  LookupTask t{};
  t.first = parts_.data() + first_part;
  t.last = parts_.data() + last_part;
  t.groups = groups_;
  return t;
}

double LookupMatrix::cost(int rows, int features, int vectors, int parts) {
  return double(groups_of(features)) * vectors * (blocks_of(rows) * kPerCodes + parts * kPerTable);
}

}  // namespace tersify
