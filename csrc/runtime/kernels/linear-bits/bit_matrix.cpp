#include "kernels/linear-bits/bit_matrix.hpp"

#include <algorithm>
#include <cstring>

#include "threads/in_parts.hpp"

namespace tersify {

std::vector<int> bit_places(int channels, int taps, int pixel_bytes) {
  std::vector<int> places;
  for (int c = 0; c < channels; ++c)
    for (int t = 0; t < taps; ++t) places.push_back(8 * t * pixel_bytes + c);
  return places;
}

BitMatrix::BitMatrix(const ByteRows& weight, const std::vector<int>& places, int bits, int threads)
    : rows_(weight.rows), words_((bits + 63) / 64), nonzeros_(size_t(groups()) * kBitRows), sums_(nonzeros_.size()) {
  threads = std::min(rows_, threads_for(size_t(rows_) * weight.features, threads));
  in_parts(rows_, threads, [&](int, size_t begin, size_t end) {
    std::vector<int8_t> signs(weight.features);
    for (size_t row = begin; row < end; ++row) {
      weight.read(int(row), signs.data());
      for (int8_t sign : signs) {
        nonzeros_[row] += sign != 0;
        sums_[row] += sign;
      }
    }
  });
  zeros_ = std::any_of(nonzeros_.begin(), nonzeros_.begin() + rows_, [&](int32_t n) { return n < weight.features; });
  const size_t bytes = size_t(groups()) * words_ * kBitRows * (zeros_ ? 2 : 1) * sizeof(uint64_t);
  planes_.grow(bytes);
  std::memset(planes_.data(), 0, bytes);
  in_parts(rows_, threads, [&](int, size_t begin, size_t end) {
    std::vector<int8_t> signs(weight.features);
    for (size_t row = begin; row < end; ++row) {
      weight.read(int(row), signs.data());
      add_row(int(row), signs.data(), places, weight.features);
    }
  });
}

void BitMatrix::add_row(int row, const int8_t* signs, const std::vector<int>& places, int features) {
  const size_t word_rows = kBitRows * (zeros_ ? 2 : 1);
  uint64_t* own = reinterpret_cast<uint64_t*>(planes_.data()) + row / kBitRows * words_ * word_rows + row % kBitRows;
  for (int i = 0; i < features; ++i) {
    const int place = places.empty() ? i : places[i];
    uint64_t* word = own + place / 64 * word_rows;
    word[0] |= uint64_t(signs[i] < 0) << place % 64;
    if (zeros_) word[kBitRows] |= uint64_t(signs[i] != 0) << place % 64;
  }
}

int BitMatrix::rows_of(int group) const { return std::min(kBitRows, rows_ - group * kBitRows); }

std::vector<int32_t> BitMatrix::starts(bool zeros_x, int middle) const {
  std::vector<int32_t> found(nonzeros_.size());
  for (size_t row = 0; row < found.size(); ++row)
    found[row] = (zeros_ && !zeros_x ? nonzeros_[row] : 0) + middle * sums_[row];
  return found;
}

BitsTask BitMatrix::task(int group, const std::vector<int32_t>& starts) const {
  BitsTask t{};
  t.weights = reinterpret_cast<const uint64_t*>(planes_.data()) + size_t(group) * words_ * kBitRows * (zeros_ ? 2 : 1);
  t.zeros = zeros_;
  t.words = words_;
  t.start = starts.data() + size_t(group) * kBitRows;
  return t;
}

}  // namespace tersify
