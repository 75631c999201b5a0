// What a stream of codes needs beside the stream itself: geometry, density classes, contexts, tables.
#pragma once

#include "side.h"

namespace tersify {

constexpr int kDensities = 16;     // joint density classes, and classes of a filter, a channel, a box
constexpr int kNeutral = 8;        // the class of a filter or channel whose box has no classes
constexpr int kMaxClasses = 16;    // classes of a neighbour
constexpr int kMaxTables = 128;
constexpr int kMaxArity = 8;
constexpr int kMaxLanes = 32;
constexpr int kMaxSymbols = 256;
constexpr int64_t kMaxWeights = 1 << 22;
constexpr int64_t kMaxTaps = 1 << 12;

struct Box {
  int64_t filters, channels, taps, width;
  int64_t weights() const { return filters * channels * taps; }
};

// How a box is cut into symbols: `units` runs of `rows` symbols, each symbol `arity` codes.
struct Cut {
  Cut(const Box& box, int arity);
  int64_t units_per_filter, units;
  int64_t rows;             // symbols in one unit
  int64_t up;               // the distance, in symbols, to the neighbour above
  int64_t codes_per_unit;
  int64_t codes_per_filter;
};

struct BoxClasses {
  int offset = kNeutral;
  std::vector<uint8_t> filters, channels;   // empty: all neutral
};

struct Table {
  std::vector<uint16_t> weights;     // as transmitted: three significant bits each
  std::vector<uint16_t> widths;      // out of 4096
  std::vector<uint16_t> begins;
  std::vector<uint64_t> inverses;    // 2^44 / width, rounded up: what a state divided by the width is found with
  void build();
  void invert();                     // for the encoder
};

struct Model {
  int levels = 0;
  int arity = 1;
  int lanes_log2 = 0;
  bool mirror = false, left = false, above = false;
  int classes = 0;                   // of a neighbour; 0 where neighbours are not used
  std::vector<uint8_t> class_of;     // per symbol
  std::vector<BoxClasses> boxes;
  std::vector<uint8_t> table_of;     // per context
  std::vector<Table> tables;

  int lanes() const { return 1 << lanes_log2; }
  int symbols() const;
  int left_states() const { return left ? classes + 1 : 1; }
  int above_states() const { return above ? classes + 1 : 1; }
  int contexts_per_density() const { return left_states() * above_states(); }
};

int symbols_of(int levels, int arity);
void check_boxes(const std::vector<Box>& boxes);

// The joint density class of every unit of a box.
std::vector<uint8_t> unit_densities(const Box& box, const Cut& cut, const BoxClasses& classes);

// Ternary symbols with the codes 1 and 2 exchanged, and whether the first nonzero code is a 2.
std::vector<uint8_t> mirrored_symbols(int arity);
std::vector<uint8_t> leads_with_two(int arity);

std::vector<uint8_t> write_model(const Model& model, const std::vector<Box>& boxes);
// Reads header and side information; `used` becomes the number of bytes they took.
Model read_model(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, size_t& used);

}  // namespace tersify
