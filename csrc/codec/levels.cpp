#include "levels.h"

#include <cstring>

namespace tersify {

namespace {

constexpr int kSlotBits = 10;            // four times as many slots as there are codes, so that chains stay short
constexpr size_t kSlots = 1u << kSlotBits;

// A row's values by their bits. Clearing it costs as much as the row had values.
template <typename Word>
class Seen {
 public:
  // The code of a value; a value not seen before gets the next one.
  uint32_t code_of(Word word) {
    size_t slot = static_cast<size_t>((static_cast<uint64_t>(word) * 0x9E3779B97F4A7C15ull) >> (64 - kSlotBits));
    while (codes_[slot] != kFree && words_[slot] != word) slot = (slot + 1) & (kSlots - 1);
    if (codes_[slot] == kFree) {
      codes_[slot] = static_cast<uint32_t>(used_.size());
      words_[slot] = word;
      used_.push_back(slot);
    }
    return codes_[slot];
  }
  size_t size() const { return used_.size(); }
  Word word(size_t code) const { return words_[used_[code]]; }
  void clear() {
    for (const size_t slot : used_) codes_[slot] = kFree;
    used_.clear();
  }
  Seen() {
    for (uint32_t& code : codes_) code = kFree;
  }

 private:
  static constexpr uint32_t kFree = UINT32_MAX;
  uint32_t codes_[kSlots];
  Word words_[kSlots];
  std::vector<size_t> used_;
};

template <typename Word>
bool find(const uint8_t* data, size_t rows, size_t columns, size_t limit, uint8_t* codes, Levels& found) {
  Seen<Word> seen;
  for (size_t r = 0; r < rows; ++r) {
    uint64_t counts[256] = {};
    for (size_t c = 0; c < columns; ++c, data += sizeof(Word)) {
      Word word;
      std::memcpy(&word, data, sizeof(Word));
      const uint32_t code = seen.code_of(word);
      if (code >= limit) return false;   // limit is at most 256
      ++counts[code];
      *codes++ = static_cast<uint8_t>(code);
    }
    found.per_row.push_back(static_cast<uint32_t>(seen.size()));
    for (size_t k = 0; k < seen.size(); ++k) {
      found.patterns.push_back(seen.word(k));
      found.counts.push_back(counts[k]);
    }
    seen.clear();
  }
  return true;
}

}  // namespace

bool find_levels(const uint8_t* data, int width, size_t rows, size_t columns, size_t limit, uint8_t* codes,
                 Levels& found) {
  switch (width) {
    case 1: return find<uint8_t>(data, rows, columns, limit, codes, found);
    case 2: return find<uint16_t>(data, rows, columns, limit, codes, found);
    case 4: return find<uint32_t>(data, rows, columns, limit, codes, found);
    default: return find<uint64_t>(data, rows, columns, limit, codes, found);
  }
}

void relabel(uint8_t* codes, size_t rows, size_t columns, const uint8_t* table) {
  for (size_t r = 0; r < rows; ++r, table += 256)
    for (size_t c = 0; c < columns; ++c, ++codes) *codes = table[*codes];
}

}  // namespace tersify
