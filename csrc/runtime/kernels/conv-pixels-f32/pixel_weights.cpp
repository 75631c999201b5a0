#include "kernels/conv-pixels-f32/pixel_weights.hpp"

#include <cstring>
#include <stdexcept>
#include <string>

namespace tersify {
namespace {

// Measured, in vector operations. Every tile of positions reads the weights.
constexpr double kOneVector = 1.1, kTwoVectors = 2.1, kTileReads = 1.5;
constexpr int kUsualTile = 12;

}  // namespace

PixelWeights::PixelWeights(const DenseWeight& w, int lanes)
    : rows_(w.rows), channels_(w.channels), taps_(w.taps), lanes_(lanes) {
  if (w.groups != 1) throw std::invalid_argument("a dense convolution has one group, got " + std::to_string(w.groups));
  const int vectors = (rows_ + lanes_ - 1) / lanes_;
  bytes_.grow(size_t(vectors) * lanes_ * numbers() * sizeof(float));
  std::memset(bytes_.data(), 0, bytes_.size());
  float* packed = reinterpret_cast<float*>(bytes_.data());
  for (int r = 0; r < rows_; ++r)
    for (int c = 0; c < channels_; ++c)
      for (int tap = 0; tap < taps_; ++tap)
        packed[place(r, tap * channels_ + c)] = w.data[(size_t(r) * channels_ + c) * taps_ + tap];
}

size_t PixelWeights::place(int row, int number) const {
  const int block = row / block_rows();
  const size_t wide = rows_of(block) > lanes_ ? block_rows() : lanes_;
  return size_t(first_row(block)) * numbers() + number * wide + row % block_rows();
}

const float* PixelWeights::block(int block) const {
  return reinterpret_cast<const float*>(bytes_.data()) + place(first_row(block), 0);
}

std::vector<float> PixelWeights::unpack() const {
  const float* packed = reinterpret_cast<const float*>(bytes_.data());
  std::vector<float> weight(size_t(rows_) * numbers());
  for (int r = 0; r < rows_; ++r)
    for (int c = 0; c < channels_; ++c)
      for (int tap = 0; tap < taps_; ++tap)
        weight[(size_t(r) * channels_ + c) * taps_ + tap] = packed[place(r, tap * channels_ + c)];
  return weight;
}

double PixelWeights::cost(int positions) const {
  const int vectors = (rows_ + lanes_ - 1) / lanes_, tiles = (positions + kUsualTile - 1) / kUsualTile;
  const double products = positions * (vectors / 2 * kTwoVectors + vectors % 2 * kOneVector);
  return double(numbers()) * (products + tiles * (vectors + 1) / 2 * kTileReads);
}

}  // namespace tersify
