#include "model.h"

#include <algorithm>

namespace tersify {

Cut::Cut(const Box& box, int arity) {
  if (box.taps == 1) {
    units_per_filter = (box.channels + arity - 1) / arity;
    rows = 1;
    codes_per_unit = arity;
  } else {
    units_per_filter = box.channels;
    rows = (box.taps + arity - 1) / arity;
    codes_per_unit = box.taps;
  }
  units = box.filters * units_per_filter;
  up = arity == 1 ? box.width : 1;
  codes_per_filter = box.channels * box.taps;
}

int symbols_of(int levels, int arity) {
  int64_t product = 1;
  for (int i = 0; i < arity; ++i) {
    product *= levels;
    require(product <= kMaxSymbols, "a symbol has more than 256 values");
  }
  return static_cast<int>(product);
}

int Model::symbols() const { return symbols_of(levels, arity); }

void check_boxes(const std::vector<Box>& boxes) {
  int64_t left = kMaxWeights;
  for (const Box& box : boxes) {
    for (const int64_t size : {box.filters, box.channels, box.taps, box.width})
      require(size >= 1 && size <= kMaxWeights, "a box has an impossible size");
    require(box.taps <= kMaxTaps && box.width <= box.taps, "a box has an impossible kernel");
    require(box.filters <= left / box.channels && box.filters * box.channels <= left / box.taps,
            "a group has more than 4194304 codes");
    left -= box.weights();
  }
}

std::vector<uint8_t> unit_densities(const Box& box, const Cut& cut, const BoxClasses& classes) {
  std::vector<uint8_t> densities(static_cast<size_t>(cut.units));
  uint8_t* out = densities.data();
  for (int64_t f = 0; f < box.filters; ++f) {
    const int base = classes.offset - 2 * kNeutral + (classes.filters.empty() ? kNeutral : classes.filters[f]);
    for (int64_t c = 0; c < cut.units_per_filter; ++c) {
      const int sum = base + (classes.channels.empty() ? kNeutral : classes.channels[c]);
      *out++ = static_cast<uint8_t>(std::clamp(sum, 0, kDensities - 1));
    }
  }
  return densities;
}

std::vector<uint8_t> mirrored_symbols(int arity) {
  std::vector<uint8_t> mirrored(static_cast<size_t>(symbols_of(3, arity)));
  for (size_t s = 0; s < mirrored.size(); ++s) {
    size_t made = 0, place = 1;
    for (size_t rest = s; rest > 0; rest /= 3, place *= 3) made += place * ((3 - rest % 3) % 3);
    mirrored[s] = static_cast<uint8_t>(made);
  }
  return mirrored;
}

std::vector<uint8_t> leads_with_two(int arity) {
  std::vector<uint8_t> leads(static_cast<size_t>(symbols_of(3, arity)));
  for (size_t s = 0; s < leads.size(); ++s) {
    size_t first = s;
    while (first >= 3) first /= 3;
    leads[s] = first == 2;
  }
  return leads;
}

void Table::build() {
  uint64_t total = 0;
  for (const uint16_t weight : weights) total += weight;
  require(total > 0, "a table has no symbols");
  widths.assign(weights.size(), 0);
  int64_t missing = kScale;
  for (size_t s = 0; s < weights.size(); ++s) {
    if (weights[s] == 0) continue;
    const uint64_t share = (weights[s] * static_cast<uint64_t>(kScale) + total / 2) / total;
    widths[s] = static_cast<uint16_t>(std::max<uint64_t>(1, share));
    missing -= widths[s];
  }
  while (missing != 0) {
    uint16_t& largest = *std::max_element(widths.begin(), widths.end());
    const int64_t change = missing > 0 ? missing : -std::min<int64_t>(-missing, largest / 2);
    largest = static_cast<uint16_t>(largest + change);
    missing -= change;
  }
  begins.assign(weights.size(), 0);
  uint32_t begin = 0;
  for (size_t s = 0; s < weights.size(); ++s) {
    begins[s] = static_cast<uint16_t>(begin);
    begin += widths[s];
  }
}

void Table::invert() {
  inverses.clear();
  for (const uint16_t width : widths) inverses.push_back(width == 0 ? 0 : ((1ull << 44) + width - 1) / width);
}

namespace {

struct SideModel {
  Tree<4> class_count, symbol_class, offset;
  Chance has_filters, has_channels;
  std::array<Tree<4>, 6> density;        // by axis and by how far the previous class was from neutral
  std::array<Chance, 2> same_table;      // by whether the previous context had the predicted table
  Tree<7> table;
  std::array<Tree<4>, 16> magnitude;     // by the magnitude of the same symbol in the table before
  std::array<Chance, 2> after_leading;   // the two bits after the leading one
};

int spread(int previous) { return std::min(2, std::abs(previous - kNeutral)); }

// A frequency is sent as its bit length and up to two bits after the leading one.
int bit_length(uint32_t value) {
  int bits = 0;
  for (; value != 0; value >>= 1) ++bits;
  return bits;
}

}  // namespace

std::vector<uint8_t> write_model(const Model& model, const std::vector<Box>& boxes) {
  SideWriter side;
  SideModel sides;
  if (model.classes > 0) {
    side.symbol(sides.class_count, model.classes - 1);
    for (const uint8_t each : model.class_of) side.symbol(sides.symbol_class, each);
  }
  for (size_t i = 0; i < boxes.size(); ++i) {
    const BoxClasses& box = model.boxes[i];
    side.symbol(sides.offset, box.offset);
    side.bit(sides.has_filters, !box.filters.empty());
    side.bit(sides.has_channels, !box.channels.empty());
    for (int axis = 0; axis < 2; ++axis) {
      int previous = kNeutral;
      for (const uint8_t each : axis ? box.channels : box.filters) {
        side.symbol(sides.density[3 * axis + spread(previous)], each);
        previous = each;
      }
    }
  }
  const size_t step = static_cast<size_t>(model.contexts_per_density());
  int same = 1;
  for (size_t c = 0; c < model.table_of.size() && model.tables.size() > 1; ++c) {
    const int predicted = c >= step ? model.table_of[c - step] : 0;
    const int fits = model.table_of[c] == predicted;
    side.bit(sides.same_table[same], fits);
    same = fits;
    if (!fits) side.symbol(sides.table, model.table_of[c]);
  }
  std::vector<int> before(static_cast<size_t>(model.symbols()), 0);
  for (const Table& table : model.tables) {
    for (size_t s = 0; s < table.weights.size(); ++s) {
      const int bits = bit_length(table.weights[s]);
      side.symbol(sides.magnitude[before[s]], bits);
      before[s] = bits;
      for (int b = bits - 2; b >= 0 && b >= bits - 3; --b) 
        side.bit(sides.after_leading[bits - 2 - b], (table.weights[s] >> b) & 1);
    }
  }
  const std::vector<uint8_t> coded = side.finish();
  std::vector<uint8_t> out = {
      static_cast<uint8_t>(model.lanes_log2),
      static_cast<uint8_t>(model.arity),
      static_cast<uint8_t>(model.mirror | (model.left << 1) | (model.above << 2)),
      static_cast<uint8_t>(model.tables.size()),
  };
  for (int shift = 0; shift < 32; shift += 8) out.push_back(static_cast<uint8_t>(coded.size() >> shift));
  out.insert(out.end(), coded.begin(), coded.end());
  return out;
}

Model read_model(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, size_t& used) {
  require(bytes >= 8, "a group of codes has at least 8 bytes");
  Model model;
  model.levels = levels;
  require(data[0] <= 5, "a stream has more than 32 lanes");
  model.lanes_log2 = data[0];
  model.arity = data[1];
  require(model.arity >= 1 && model.arity <= kMaxArity, "a symbol must have 1 to 8 codes");
  require(data[2] < 8, "a stream has unknown flags");
  model.mirror = data[2] & 1;
  model.left = data[2] & 2;
  model.above = data[2] & 4;
  const size_t tables = data[3];
  require(tables >= 1 && tables <= kMaxTables, "a stream must have 1 to 128 tables");
  const size_t side_bytes = data[4] | (data[5] << 8) | (data[6] << 16) | (static_cast<size_t>(data[7]) << 24);
  require(side_bytes <= bytes - 8, "the side information is longer than its group");
  used = 8 + side_bytes;
  const size_t symbols = static_cast<size_t>(model.symbols());
  require(!model.mirror || (levels == 3 && model.above), "only ternary codes with a row above are mirrored");

  SideReader side(data + 8, side_bytes);
  SideModel sides;
  if (model.left || model.above) {
    model.classes = side.symbol(sides.class_count) + 1;
    model.class_of.resize(symbols);
    for (uint8_t& each : model.class_of) {
      each = static_cast<uint8_t>(side.symbol(sides.symbol_class));
      require(each < model.classes, "a symbol has an unknown class");
    }
  }
  model.boxes.resize(boxes.size());
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Cut cut(boxes[i], model.arity);
    BoxClasses& box = model.boxes[i];
    box.offset = side.symbol(sides.offset);
    const int has_filters = side.bit(sides.has_filters), has_channels = side.bit(sides.has_channels);
    if (has_filters) box.filters.resize(static_cast<size_t>(boxes[i].filters));
    if (has_channels) box.channels.resize(static_cast<size_t>(cut.units_per_filter));
    for (int axis = 0; axis < 2; ++axis) {
      int previous = kNeutral;
      for (uint8_t& each : axis ? box.channels : box.filters) {
        previous = side.symbol(sides.density[3 * axis + spread(previous)]);
        each = static_cast<uint8_t>(previous);
      }
    }
  }
  const size_t step = static_cast<size_t>(model.contexts_per_density());
  model.table_of.assign(kDensities * step, 0);
  int same = 1;
  for (size_t c = 0; c < model.table_of.size() && tables > 1; ++c) {
    const int predicted = c >= step ? model.table_of[c - step] : 0;
    same = side.bit(sides.same_table[same]);
    const int table = same ? predicted : side.symbol(sides.table);
    require(static_cast<size_t>(table) < tables, "a context has an unknown table");
    model.table_of[c] = static_cast<uint8_t>(table);
  }
  model.tables.resize(tables);
  std::vector<int> before(symbols, 0);
  for (Table& table : model.tables) {
    table.weights.resize(symbols);
    for (size_t s = 0; s < symbols; ++s) {
      const int bits = side.symbol(sides.magnitude[before[s]]);
      before[s] = bits;
      uint32_t weight = bits > 0 ? 1u << (bits - 1) : 0;
      for (int b = bits - 2; b >= 0 && b >= bits - 3; --b)
        weight |= static_cast<uint32_t>(side.bit(sides.after_leading[bits - 2 - b])) << b;
      table.weights[s] = static_cast<uint16_t>(weight);
    }
    table.build();
  }
  side.finish();
  return model;
}

}  // namespace tersify
