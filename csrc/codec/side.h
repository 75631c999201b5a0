// Side information: binary decisions with adaptive probabilities, coded by a single rANS state.
#pragma once

#include <array>

#include "rans.h"

namespace tersify {

// The probability of a zero bit, in 1/4096; it stays within 15..4081 by construction.
struct Chance {
  uint16_t zero = 2048;
  void learn(int bit) {
    if (bit)
      zero -= zero >> 4;
    else
      zero += (kScale - zero) >> 4;
  }
};

template <int Bits>
using Tree = std::array<Chance, 1 << Bits>;

class SideReader {
 public:
  SideReader(const uint8_t* begin, size_t bytes) : words_(begin, bytes), state_(words_.take_state()) {}

  int bit(Chance& chance) {
    const uint32_t zero = chance.zero, slot = state_ & (kScale - 1);
    const int value = slot >= zero;
    const uint32_t begin = value ? zero : 0, width = value ? kScale - zero : zero;
    state_ = width * (state_ >> kScaleBits) + slot - begin;
    if (state_ < kStateLow) state_ = (state_ << 16) | words_.take();
    chance.learn(value);
    return value;
  }

  template <size_t Size>
  int symbol(std::array<Chance, Size>& tree) {
    size_t node = 1;
    while (node < Size) node = 2 * node + static_cast<size_t>(bit(tree[node]));
    return static_cast<int>(node - Size);
  }

  void finish() const {
    require(state_ == kStateLow && words_.left() == 0, "the side information does not end where it must");
  }

 private:
  Words words_;
  uint32_t state_;
};

class SideWriter {
 public:
  void bit(Chance& chance, int value) {
    decisions_.push_back({chance.zero, value});
    chance.learn(value);
  }

  template <size_t Size>
  void symbol(std::array<Chance, Size>& tree, int value) {
    size_t node = 1;
    for (size_t half = Size / 2; half > 0; half /= 2) {
      const int next = (static_cast<size_t>(value) & half) != 0;
      bit(tree[node], next);
      node = 2 * node + static_cast<size_t>(next);
    }
  }

  std::vector<uint8_t> finish() const {
    ReverseWords words;
    uint32_t state = kStateLow;
    for (size_t i = decisions_.size(); i-- > 0;) {
      const auto [zero, value] = decisions_[i];
      rans_put(state, value ? zero : 0, value ? kScale - zero : zero, words);
    }
    put_state(state, words);
    std::vector<uint8_t> out;
    words.append_to(out);
    return out;
  }

 private:
  struct Decision {
    uint32_t zero;
    int value;
  };
  std::vector<Decision> decisions_;
};

}  // namespace tersify
