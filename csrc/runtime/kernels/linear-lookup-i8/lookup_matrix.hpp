// Ternary weights for products with 8-bit activations that are looked up: four or five signs of a row are one byte, the
// position of their sum in a table that is made of the activations.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "engine/byte_rows.hpp"
#include "layout/aligned_bytes.hpp"

namespace tersify {

class LookupMatrix {
 public:
  static bool possible(int features) { return features <= kMostFeatures; }
  // Signs. Every part of the rows is one stretch of memory, read in order: so many as there are threads, or fewer.
  LookupMatrix(const ByteRows& weight, int threads, const LookupForm& form, HugePages* shared = nullptr);

  int rows() const { return rows_; }
  int parts() const { return int(parts_.size()); }
  int first_row(int part) const { return std::min(rows_, first_block(part) * kLookupRows); }
  int padded_rows(int first_part, int last_part) const {
    return (first_block(last_part) - first_block(first_part)) * kLookupRows;
  }
  int vector_bytes() const { return form_.signs * groups_; }  // of activations
  int tables_bytes() const { return form_.tables_bytes(); }
  LookupTask task(int first_part, int last_part) const;  // without activations, tables, words and sums
  // In vector operations; each of `parts` makes its own tables.
  static double cost(const LookupForm& form, int rows, int features, int vectors, int parts);
  double cost(int features, int vectors, int parts) const { return cost(form_, rows_, features, vectors, parts); }
  static size_t code_bytes(const LookupForm& form, int rows, int features);
  static constexpr const char* kernel_name() { return "looked-up signs, int8"; }
  size_t resident_bytes() const { return codes_.size(); }

 private:
  static constexpr int kMostFeatures = 1 << 22;  // sums of more than four times as many could overflow
  int first_block(int part) const;
  void add_row(int part, int row, const uint8_t* digits);

  const LookupForm& form_;
  int rows_, blocks_, groups_;
  std::vector<LookupPart> parts_;
  AlignedBytes codes_;
};

}  // namespace tersify
