// Sizes of values.
#pragma once

#include <climits>
#include <cstdint>
#include <stdexcept>
#include <string>

namespace tersify {

struct Shape {  // of one item
  int c, h, w;
  int numel() const { return c * h * w; }
  bool operator==(const Shape& o) const { return c == o.c && h == o.h && w == o.w; }
  bool operator!=(const Shape& o) const { return !(*this == o); }
};

inline std::string sizes_text(int64_t c, int64_t h, int64_t w) {
  std::string text = "(";
  text += std::to_string(c);
  text += ", ";
  text += std::to_string(h);
  text += ", ";
  text += std::to_string(w);
  text += ")";
  return text;
}

inline std::string to_string(const Shape& s) { return sizes_text(s.c, s.h, s.w); }

// Throws unless all sizes are positive and their product fits.
inline Shape checked_shape(int64_t c, int64_t h, int64_t w) {
  const bool good = c > 0 && h > 0 && w > 0 && c <= INT_MAX && h <= INT_MAX / c && w <= INT_MAX / (c * h);
  if (!good)
    throw std::invalid_argument("sizes are positive and their product is below 2^31, got " + sizes_text(c, h, w));
  return {int(c), int(h), int(w)};
}

// Whether vectors of `count` numbers are whole trailing axes of an item.
inline bool ends_in(const Shape& s, int count) {
  const int last = s.w > 1 ? s.w : s.h > 1 ? s.h : s.c;
  return count == s.w || count == last || count == s.h * s.w || count == s.numel();
}

}  // namespace tersify
