#include "decode.h"

#include <algorithm>
#include <cstring>

#include "cpu/features.hpp"

namespace tersify {

Decoder::Decoder(const Model& model)
    : lanes(model.lanes()),
      symbols(model.symbols()),
      above_states(model.above_states()),
      contexts_per_density(model.contexts_per_density()),
      classes(model.classes),
      mirror(model.mirror),
      left(model.left),
      above(model.above) {
  slots.resize(model.tables.size() * kScale);
  for (size_t t = 0; t < model.tables.size(); ++t) {
    const Table& table = model.tables[t];
    uint32_t* slot = slots.data() + t * kScale;
    for (size_t s = 0; s < table.widths.size(); ++s)
      for (uint32_t i = 0; i < table.widths[s]; ++i)
        *slot++ = static_cast<uint32_t>(s) | (i << 8) | ((table.widths[s] - 1u) << 20);
  }
  for (const uint8_t table : model.table_of) slot_base.push_back(table * kScale);
  const std::vector<uint8_t> mirrored = mirror ? mirrored_symbols(model.arity) : std::vector<uint8_t>();
  const std::vector<uint8_t> leads = mirror ? leads_with_two(model.arity) : std::vector<uint8_t>();
  symbol_facts.assign(static_cast<size_t>(std::max(32, symbols)), 0);
  for (size_t s = 0; s < static_cast<size_t>(symbols); ++s) {
    symbol_facts[s] = static_cast<uint32_t>(mirror ? mirrored[s] : s);
    if (classes > 0) symbol_facts[s] |= static_cast<uint32_t>(model.class_of[s]) << 8;
    if (mirror) symbol_facts[s] |= static_cast<uint32_t>(leads[s]) << 16;
  }
}

namespace {

// Members are copied into locals first: the compiler must assume that a byte written changes anything else.
template <bool Checked>
void decode_row(const Decoder& d, const uint8_t* densities, int active, Rows rows, int64_t row, uint32_t* states,
                Words& words_out) {
  const bool has_left = d.left && row % rows.up != 0;
  const bool has_above = d.above && row >= rows.up;
  const uint32_t per_density = static_cast<uint32_t>(d.contexts_per_density);
  const uint32_t above_states = static_cast<uint32_t>(d.above_states), none = static_cast<uint32_t>(d.classes);
  const uint32_t absent = (d.left && !has_left ? none * above_states : 0) + (d.above && !has_above ? none : 0);
  const bool mirror = d.mirror && has_above;
  const uint32_t* const slots = d.slots.data();
  const uint32_t* const slot_base = d.slot_base.data();
  const uint32_t* const facts = d.symbol_facts.data();
  const uint8_t* const left = rows.classes + (has_left ? row - 1 : row) * kMaxLanes;
  const uint8_t* const above = rows.classes + (has_above ? row - rows.up : row) * kMaxLanes;
  const uint8_t* const symbols_above = rows.symbols + (has_above ? row - rows.up : row) * kMaxLanes;
  uint8_t* const out = rows.symbols + row * kMaxLanes;
  uint8_t* const out_classes = rows.classes + row * kMaxLanes;
  Words words = words_out;
  for (int lane = 0; lane < active; ++lane) {
    uint32_t context = densities[lane] * per_density + absent;
    if (has_left) context += left[lane] * above_states;
    if (has_above) context += above[lane];
    uint32_t state = states[lane];
    const uint32_t slot = slots[slot_base[context] + (state & (kScale - 1))];
    state = ((slot >> 20) + 1) * (state >> kScaleBits) + ((slot >> 8) & (kScale - 1));
    const bool hungry = state < kStateLow;
    if (Checked) {
      if (hungry) state = (state << 16) | words.take();
    } else {      // without a branch: whether a lane needs a word cannot be predicted
      const uint32_t fed = (state << 16) | words.peek();
      state = hungry ? fed : state;
      words.skip(hungry);
    }
    states[lane] = state;
    uint32_t symbol = slot & 0xFF;
    if (mirror) symbol = (facts[symbols_above[lane]] >> 16) != 0 ? facts[symbol] & 0xFF : symbol;
    out[lane] = static_cast<uint8_t>(symbol);
    out_classes[lane] = static_cast<uint8_t>(facts[symbol] >> 8);
  }
  words_out = words;
}

}  // namespace

void decode_row_portable(const Decoder& d, const uint8_t* densities, int active, Rows rows, int64_t row,
                         uint32_t* states, Words& words) {
  if (words.left() >= static_cast<size_t>(active))
    decode_row<false>(d, densities, active, rows, row, states, words);
  else
    decode_row<true>(d, densities, active, rows, row, states, words);
}

void decode_rows_portable(const Decoder& d, const uint8_t* densities, int active, Rows rows, uint32_t* states,
                          Words& words) {
  for (int64_t row = 0; row < rows.count; ++row) decode_row_portable(d, densities, active, rows, row, states, words);
}

namespace {

// Symbols back to codes. The units of a box come in order, a few at a time.
class Expander {
 public:
  Expander(const Model& model, const Box& box, const Cut& cut, uint8_t* out)
      : arity_(model.arity), cut_(cut), out_(out), units_left_(cut.units) {
    for (size_t s = 0; s < static_cast<size_t>(model.symbols()); ++s) {
      size_t rest = s;
      for (size_t i = static_cast<size_t>(arity_); i-- > 0; rest /= static_cast<size_t>(model.levels))
        codes_[8 * s + i] = static_cast<uint8_t>(rest % static_cast<size_t>(model.levels));
    }
    // Where channels are grouped into symbols, the last group of a filter may be short.
    short_unit_ = box.taps == 1 ? box.channels - (cut.units_per_filter - 1) * arity_ : cut.codes_per_unit;
    all_whole_ = cut.rows * arity_ == short_unit_;
    groups_channels_ = box.taps == 1;
  }

  void take(const uint8_t* symbols, int active) {
    if (arity_ == 1 && cut_.rows == 1) {
      std::memcpy(out_, symbols, static_cast<size_t>(active));
      out_ += active;
      return;
    }
    for (int lane = 0; lane < active; ++lane) {
      const bool last_of_filter = ++unit_of_filter_ == cut_.units_per_filter;
      if (last_of_filter) unit_of_filter_ = 0;
      --units_left_;
      if (arity_ == 1)
        ones(symbols + lane);
      else if (arity_ == 3 && units_left_ > 0 && (all_whole_ || (groups_channels_ && !last_of_filter)))
        threes(symbols + lane);
      else
        exact(symbols + lane, last_of_filter ? short_unit_ : cut_.codes_per_unit);
    }
  }

 private:
  void ones(const uint8_t* symbols) {
    for (int64_t row = 0; row < cut_.rows; ++row) *out_++ = symbols[row * kMaxLanes];
  }

  // Whole symbols of three codes; writes one byte too many, which the next unit overwrites.
  void threes(const uint8_t* symbols) {
    for (int64_t row = 0; row < cut_.rows; ++row, out_ += 3)
      std::memcpy(out_, codes_ + 8 * symbols[row * kMaxLanes], 4);
  }

  void exact(const uint8_t* symbols, int64_t codes) {
    for (int64_t row = 0; row < cut_.rows; ++row, codes -= arity_) {
      const uint8_t* made = codes_ + 8 * symbols[row * kMaxLanes];
      const int64_t used = std::min<int64_t>(arity_, codes);
      for (int64_t i = 0; i < used; ++i) *out_++ = made[i];
      for (int64_t i = used; i < arity_; ++i) require(made[i] == 0, "a padding code is not zero");
    }
  }

  int arity_;
  const Cut& cut_;
  uint8_t* out_;
  int64_t units_left_, unit_of_filter_ = 0, short_unit_;
  bool all_whole_, groups_channels_;
  uint8_t codes_[8 * kMaxSymbols] = {};
};

}  // namespace

std::vector<std::string> paths() {
  std::vector<std::string> found;
#if defined(__x86_64__)
  const CpuFeatures& cpu = cpu_features();
  if (cpu.avx512f && cpu.avx512bw && cpu.avx512vl) found.emplace_back("avx512");
  if (cpu.avx2) found.emplace_back("avx2");
  if (cpu.sse41) found.emplace_back("sse4");
#elif defined(__aarch64__)
  found.emplace_back("neon");
#endif
  found.emplace_back("portable");
  return found;
}

RowDecoder path_named(const std::string& name) {
  for (const std::string& path : paths()) {
    if (path != name) continue;
#if defined(__x86_64__)
    if (name == "avx512") return decode_rows_avx512;
    if (name == "avx2") return decode_rows_avx2;
#endif
#if defined(__x86_64__) || defined(__aarch64__)
    if (name == "sse4" || name == "neon") return decode_rows_128;
#endif
    return decode_rows_portable;
  }
  throw std::invalid_argument("this machine has no path '" + name + "'");
}

void decode_codes(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, uint8_t* out,
                  RowDecoder decode_rows) {
  size_t used = 0;
  const Model model = read_model(data, bytes, boxes, levels, used);
  const Decoder decoder(model);
  Words words(data + used, bytes - used);
  uint32_t states[kMaxLanes];
  for (int lane = 0; lane < decoder.lanes; ++lane) states[lane] = words.take_state();

  std::vector<uint8_t> symbols, classes;
  for (size_t i = 0; i < boxes.size(); ++i) {
    const Cut cut(boxes[i], model.arity);
    const std::vector<uint8_t> densities = unit_densities(boxes[i], cut, model.boxes[i]);
    symbols.resize(static_cast<size_t>(cut.rows * kMaxLanes));
    classes.resize(symbols.size());
    const Rows rows{symbols.data(), classes.data(), cut.rows, cut.up};
    Expander expander(model, boxes[i], cut, out);
    for (int64_t unit = 0; unit < cut.units; unit += decoder.lanes) {
      const int active = static_cast<int>(std::min<int64_t>(decoder.lanes, cut.units - unit));
      (active == kMaxLanes ? decode_rows : decode_rows_portable)(decoder, densities.data() + unit, active, rows,
                                                                 states, words);
      expander.take(rows.symbols, active);
    }
    out += boxes[i].weights();
  }
  require(words.left() == 0, "a stream is longer than its codes");
  for (int lane = 0; lane < decoder.lanes; ++lane)
    require(states[lane] == kStateLow, "a stream does not end in the state it must");
}

}  // namespace tersify
