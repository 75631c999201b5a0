// Rows of a matrix, kept in as few bits as their levels need.
#pragma once

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace tersify {

class EmbeddingTable {
 public:
  // `levels` empty: the numbers as they are. Otherwise every weight is 0 or one of them.
  EmbeddingTable(const float* weight, int rows, int width, std::vector<float> levels, std::vector<float> scale)
      : width_(width), scale_(std::move(scale)) {
    const size_t count = size_t(rows) * width;
    if (!scale_.empty() && scale_.size() != size_t(rows))
      throw std::invalid_argument("an embedding of " + std::to_string(rows) +
                                  " rows needs as many scales or none, got " + std::to_string(scale_.size()));
    if (levels.empty()) {
      values_.assign(weight, weight + count);
      return;
    }
    levels.insert(levels.begin(), 0.0f);
    bits_ = levels.size() <= 4 ? 2 : levels.size() <= 16 ? 4 : 8;
    if (levels.size() > 256) throw std::invalid_argument("an embedding has at most 255 levels besides zero");
    row_bytes_ = (size_t(width) * bits_ + 7) / 8;
    codes_.assign(row_bytes_ * rows, 0);
    for (int r = 0; r < rows; ++r)
      for (int i = 0; i < width; ++i) {
        const auto found = std::find(levels.begin(), levels.end(), weight[size_t(r) * width + i]);
        if (found == levels.end()) throw std::invalid_argument("a weight is missing from its table");
        codes_[r * row_bytes_ + size_t(i) * bits_ / 8] |=
            static_cast<uint8_t>((found - levels.begin()) << (i * bits_ % 8));
      }
    levels_ = std::move(levels);
  }

  void read(int64_t row, float* out) const {
    const float factor = scale_.empty() ? 1.0f : scale_[row];
    if (!bits_) {
      for (int i = 0; i < width_; ++i) out[i] = values_[row * width_ + i] * factor;
      return;
    }
    const uint8_t* codes = codes_.data() + row * row_bytes_;
    const int mask = (1 << bits_) - 1;
    for (int i = 0; i < width_; ++i) out[i] = levels_[codes[i * bits_ / 8] >> (i * bits_ % 8) & mask] * factor;
  }

  size_t resident_bytes() const {
    return codes_.size() + (values_.size() + levels_.size() + scale_.size()) * sizeof(float);
  }

 private:
  int width_, bits_ = 0;
  size_t row_bytes_ = 0;
  std::vector<uint8_t> codes_;
  std::vector<float> values_, levels_, scale_;
};

}  // namespace tersify
