#include "kernels/linear-lookup-i8/lookup_matrix.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "kernels/linear-lookup-i8/lookup_positions.hpp"
#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr LookupPositions kFourPositions = lookup_positions();
constexpr FivePositions kFivePositions = five_positions();

// The byte of a block at which the code of each row lies.
constexpr auto kBytes = [] {
  std::array<uint8_t, kLookupRows> bytes{};
  for (int byte = 0; byte < kLookupRows; ++byte) bytes[lookup_row(byte)] = static_cast<uint8_t>(byte);
  return bytes;
}();

// Measured on Zen 4, in vector operations. Intel permutes two tables of bytes at half that speed: there lookups cost
// about what dense products do.
struct Costs {
  double codes, table;
};
constexpr Costs kFourCosts{4.3, 14}, kFiveCosts{7.3, 45};

int bands_of(int blocks) { return (blocks + kLookupBandBlocks - 1) / kLookupBandBlocks; }
int blocks_of(int rows) { return (rows + kLookupRows - 1) / kLookupRows; }
int groups_of(const LookupForm& form, int features) {
  const int round = form.signs * form.round;
  return (features + round - 1) / round * form.round;
}

// The number of four signs, given as digits of base three: the first counts 1, the last 27. A product sums them up in its
// highest byte, and no lower one overflows.
int signs_number(const uint8_t* digits) {
  uint32_t four;
  std::memcpy(&four, digits, sizeof four);
  return int(four * (1u << 24 | 3u << 16 | 9u << 8 | 27u) >> 24);
}

uint8_t position_of(const LookupForm& form, int group, const uint8_t* digits) {
  const int set = signs_number(digits);
  return form.signs == 4 ? kFourPositions.position[group % 2][set] : kFivePositions.position[set + 81 * digits[4]];
}

}  // namespace

LookupMatrix::LookupMatrix(const ByteRows& weight, int threads, const LookupForm& form, HugePages* shared)
    : form_(form),
      rows_(weight.rows),
      blocks_(blocks_of(weight.rows)),
      groups_(groups_of(form, weight.features)) {
  parts_.resize(std::min(threads, bands_of(blocks_)));
  codes_.grow(code_bytes(form, rows_, weight.features), shared);
  auto* codes = reinterpret_cast<uint8_t*>(codes_.data());
  for (int part = 0; part < parts(); ++part) {
    const int first = first_block(part);
    parts_[part] = {codes + size_t(first) * groups_ * kLookupRows, first_block(part + 1) - first};
  }
  in_parts(parts(), std::min(parts(), threads_for(size_t(rows_) * weight.features, threads)),
           [&](int, size_t begin, size_t end) {
             std::vector<uint8_t> digits(vector_bytes());
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
  for (int chunk = 0; chunk < groups_; chunk += form_.chunk) {
    const int groups = std::min(form_.chunk, groups_ - chunk);
    uint8_t* first = codes + (size_t(chunk) * blocks + size_t(band) * groups + (block - band)) * kLookupRows;
    for (int group = 0; group < groups; ++group)
      first[size_t(group) * band_blocks * kLookupRows + kBytes[row % kLookupRows]] =
          position_of(form_, group, digits + form_.signs * size_t(chunk + group));
  }
}

// Whole bands, but for the last part.
int LookupMatrix::first_block(int part) const {
  return std::min(blocks_, int(size_t(bands_of(blocks_)) * part / parts_.size()) * kLookupBandBlocks);
}

LookupTask LookupMatrix::task(int first_part, int last_part) const {
  LookupTask t{};
  t.form = &form_;
  t.first = parts_.data() + first_part;
  t.last = parts_.data() + last_part;
  t.groups = groups_;
  return t;
}

size_t LookupMatrix::code_bytes(const LookupForm& form, int rows, int features) {
  return size_t(blocks_of(rows)) * groups_of(form, features) * kLookupRows;
}

double LookupMatrix::cost(const LookupForm& form, int rows, int features, int vectors, int parts) {
  const Costs& per = form.signs == 4 ? kFourCosts : kFiveCosts;
  return double(groups_of(form, features)) * vectors * (blocks_of(rows) * per.codes + parts * per.table);
}

}  // namespace tersify
