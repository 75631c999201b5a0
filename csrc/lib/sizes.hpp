// Whole numbers of a plan, some of which are polynomials of the batch and the length: docs/reference/format.md, 10.9.
#pragma once

#include "lib/json.hpp"

namespace tersify::lib {

class Sizes {
 public:
  Sizes() = default;  // no polynomial is believed
  Sizes(int64_t batch, int64_t length) : free_(true), sizes_{batch, length} {}

  int64_t whole(const Json::Value& value, const char* what, int64_t low, int64_t high) const {
    if (!free_ || value.kind() != Json::Kind::Object) return value.whole(what, low, high);
    const int64_t found = polynomial(value);
    if (found > high) throw TooLarge("a size of the plan is too large for this batch or length");
    if (found < low) throw BadFile(std::string("the plan makes ") + what + " too small for this batch or length");
    return found;
  }

 private:
  static constexpr size_t kMostTerms = 16;
  static constexpr int64_t kMostPower = 4, kLargest = int64_t(1) << 48;

  int64_t polynomial(const Json::Value& value) const {
    const auto terms = value.find("terms").list("the terms of a size");
    if (terms.empty() || terms.size() > kMostTerms) bad_file("a size of the plan has no terms, or too many");
    int64_t total = 0;
    for (const Json::Value& item : terms) {
      const auto parts = item.list("a term of a size");
      if (parts.size() != 3) bad_file("a term of a size has a factor and two powers");
      int64_t product = parts[0].whole("a factor", -kLargest, kLargest);
      for (size_t i = 0; i < 2; ++i)
        for (int64_t power = parts[i + 1].whole("a power", 0, kMostPower); power > 0; --power)
          if (__builtin_mul_overflow(product, sizes_[i], &product)) too_large();
      if (__builtin_add_overflow(total, product, &total)) too_large();
    }
    const Json::Value divisor = value.find("over");
    const int64_t over = divisor.is_null() ? 1 : divisor.whole("what a size is divided by", 1, kLargest);
    if (total % over) bad_file("a size of the plan is not whole for this batch or length");
    return total / over;
  }
  [[noreturn]] static void too_large() { throw TooLarge("a size of the plan is too large for this batch or length"); }

  bool free_ = false;
  int64_t sizes_[2] = {1, 1};
};

}  // namespace tersify::lib
