#include "kernels/linear-lookup-i8/lookup_matrix.hpp"

#include <algorithm>

#include "kernels/linear-lookup-i8/lookup_positions.hpp"

namespace tersify {
namespace {

constexpr LookupPositions kPositions = lookup_positions();

// Measured on Zen 4, in vector operations. Intel permutes two tables of bytes at half that speed: there lookups cost
// about what dense products do.
constexpr double kPerCodes = 4.3, kPerTable = 14;

int bands_of(int blocks) { return (blocks + kLookupBandBlocks - 1) / kLookupBandBlocks; }
int blocks_of(int rows) { return (rows + kLookupRows - 1) / kLookupRows; }
int groups_of(int features) { return (features + 4 * kLookupRound - 1) / (4 * kLookupRound) * kLookupRound; }

// The number of the signs of four features; there may be fewer.
int signs_number(const float* weight, int count) {
  int number = 0;
  for (int feature = 3; feature >= 0; --feature) number = 3 * number + (feature < count ? int(weight[feature]) : 0) + 1;
  return number;
}

}  // namespace

LookupMatrix::LookupMatrix(const float* weight, int rows, int features, int most_parts)
    : rows_(rows), blocks_(blocks_of(rows)), groups_(groups_of(features)) {
  parts_.resize(std::min(most_parts, bands_of(blocks_)));
  codes_.grow(size_t(blocks_) * groups_ * kLookupRows);
  auto* codes = reinterpret_cast<uint8_t*>(codes_.data());
  auto add_block = [&](int group, int block) {
    for (int byte = 0; byte < kLookupRows; ++byte) {
      const int row = block * kLookupRows + lookup_row(byte), left = row < rows ? features - 4 * group : 0;
      *codes++ =
          kPositions
              .position[group % 2][signs_number(weight + (left > 0 ? size_t(row) * features + 4 * group : 0), left)];
    }
  };
  for (int part = 0; part < parts(); ++part) {
    const int first = first_block(part), last = first_block(part + 1);
    parts_[part] = {codes, last - first};
    for (int chunk = 0; chunk < groups_; chunk += kLookupChunk)
      for (int band = first; band < last; band += kLookupBandBlocks)
        for (int group = chunk; group < std::min(groups_, chunk + kLookupChunk); ++group)
          for (int block = band; block < std::min(last, band + kLookupBandBlocks); ++block) add_block(group, block);
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
