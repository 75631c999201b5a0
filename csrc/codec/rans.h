// The one entropy coder of a .terse file: range asymmetric numeral systems with 32-bit states, 12-bit
// probabilities and 16-bit renormalisation. docs/reference/format.md specifies every bit of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace tersify {

constexpr int kScaleBits = 12;
constexpr uint32_t kScale = 1u << kScaleBits;
constexpr uint32_t kStateLow = 1u << 16;

struct Malformed : std::runtime_error {
  using std::runtime_error::runtime_error;
};

inline void require(bool fine, const char* rule) {
  if (!fine) throw Malformed(rule);
}

// 16-bit little-endian words, read front to back with every read checked.
class Words {
 public:
  Words(const uint8_t* begin, size_t bytes) : at_(begin), end_(begin + bytes) {
    require(bytes % 2 == 0, "a stream has an odd number of bytes");
  }
  size_t left() const { return static_cast<size_t>(end_ - at_) / 2; }
  const uint8_t* at() const { return at_; }
  void skip(size_t words) { at_ += 2 * words; }
  uint32_t peek() const { return at_[0] | (static_cast<uint32_t>(at_[1]) << 8); }
  uint32_t take() {
    require(at_ != end_, "a stream ends too early");
    const uint32_t word = peek();
    at_ += 2;
    return word;
  }
  uint32_t take_state() {
    const uint32_t low = take();
    const uint32_t state = low | (take() << 16);
    require(state >= kStateLow, "a stream begins with an impossible state");
    return state;
  }

 private:
  const uint8_t* at_;
  const uint8_t* end_;
};

// The encoder runs backwards, so words are collected in reverse and turned round at the end.
class ReverseWords {
 public:
  void put(uint32_t word) { words_.push_back(static_cast<uint16_t>(word)); }
  void append_to(std::vector<uint8_t>& out) const {
    for (size_t i = words_.size(); i-- > 0;) {
      out.push_back(static_cast<uint8_t>(words_[i]));
      out.push_back(static_cast<uint8_t>(words_[i] >> 8));
    }
  }
  size_t size() const { return words_.size(); }

 private:
  std::vector<uint16_t> words_;
};

inline void rans_put(uint32_t& state, uint32_t begin, uint32_t width, ReverseWords& out) {
  if (state >= (static_cast<uint64_t>(width) << 20)) {
    out.put(state & 0xFFFF);
    state >>= 16;
  }
  state = ((state / width) << kScaleBits) + state % width + begin;
}

// state / width, without a division where the machine multiplies wide enough.
inline uint32_t divided(uint32_t state, uint32_t width, uint64_t inverse) {
#if defined(__SIZEOF_INT128__)
  (void)width;
  return static_cast<uint32_t>((static_cast<unsigned __int128>(state) * inverse) >> 44);
#else
  (void)inverse;
  return state / width;
#endif
}

// The same without a division: `inverse` is 2^44 / width, rounded up, which is exact for every 32-bit state.
inline void rans_put(uint32_t& state, uint32_t begin, uint32_t width, uint64_t inverse, ReverseWords& out) {
  if (state >= (static_cast<uint64_t>(width) << 20)) {
    out.put(state & 0xFFFF);
    state >>= 16;
  }
  const uint32_t quotient = divided(state, width, inverse);
  state = (quotient << kScaleBits) + (state - quotient * width) + begin;
}

inline void put_state(uint32_t state, ReverseWords& out) {
  out.put(state >> 16);
  out.put(state & 0xFFFF);
}

}  // namespace tersify
