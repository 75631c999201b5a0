#include "flat.h"

#include <algorithm>
#include <cstring>
#include <memory>

namespace tersify {

void count_codes(const uint8_t* codes, size_t count, uint64_t* totals) {
  uint32_t parts[4][256] = {};      // four, since a count that was just stored is slow to read again
  size_t at = 0;
  for (; at + 8 <= count; at += 8) {
    uint64_t eight;
    std::memcpy(&eight, codes + at, 8);
    for (int i = 0; i < 8; ++i) ++parts[i & 3][eight >> 8 * i & 0xFF];
  }
  for (; at < count; ++at) ++parts[0][codes[at]];
  for (size_t s = 0; s < 256; ++s) totals[s] = uint64_t{parts[0][s]} + parts[1][s] + parts[2][s] + parts[3][s];
}

namespace {

int64_t decode_flat_portable(const uint32_t* slots, uint32_t* states, Words& words_out, uint8_t* out, int64_t runs) {
  Words words = words_out;
  int64_t run = 0;
  for (; run < runs && words.left() >= kMaxLanes; ++run, out += kMaxLanes) {
    for (int lane = 0; lane < kMaxLanes; ++lane) {
      uint32_t state = states[lane];
      const uint32_t slot = slots[state & (kScale - 1)];
      state = ((slot >> 20) + 1) * (state >> kScaleBits) + ((slot >> 8) & (kScale - 1));
      const bool hungry = state < kStateLow;
      const uint32_t fed = (state << 16) | words.peek();
      states[lane] = hungry ? fed : state;
      words.skip(hungry);
      out[lane] = static_cast<uint8_t>(slot);
    }
  }
  words_out = words;
  return run;
}

inline void put(const FlatSymbol& symbol, uint32_t& state_out, uint16_t*& at) {
  uint32_t state = state_out;
  const bool full = state >= (static_cast<uint64_t>(symbol.width) << 20);
  at[-1] = static_cast<uint16_t>(state);
  at -= full;
  state = full ? state >> 16 : state;
  const uint32_t quotient = divided(state, symbol.width, symbol.inverse);
  state_out = (quotient << kScaleBits) + (state - quotient * symbol.width) + symbol.begin;
}

void encode_flat_portable(const FlatTable& table, const uint8_t* symbols, int64_t runs, uint32_t* states,
                          uint16_t*& at) {
  for (int64_t run = runs; run-- > 0;)
    for (int lane = kMaxLanes; lane-- > 0;) put(table.symbols[symbols[run * kMaxLanes + lane]], states[lane], at);
}

// The stream: states, then words. `at` runs backwards through room for one word a symbol and one in front.
void write_stream(const Model& m, const uint8_t* codes, const std::vector<Box>& boxes, std::vector<uint8_t>& out) {
  size_t total = 0;
  for (const Box& box : boxes) total += static_cast<size_t>(box.channels);
  std::vector<FlatTable> tables;
  for (const Table& table : m.tables) tables.emplace_back(table);
  const int64_t lanes = m.lanes();
  const size_t room = total + 2 * kMaxLanes + 1;
  const std::unique_ptr<uint16_t[]> words(new uint16_t[room]);     // not cleared: most of it is never touched
  uint16_t* const end = words.get() + room;
  uint16_t* at = end;
  uint32_t states[kMaxLanes];
  std::fill(states, states + kMaxLanes, kStateLow);
  const FlatEncoder whole_runs = flat_encoder();
  codes += total;
  for (size_t b = boxes.size(); b-- > 0;) {
    const FlatTable& table = tables[m.table_of[static_cast<size_t>(m.boxes[b].offset)]];
    const int64_t count = boxes[b].channels, whole = count / lanes * lanes;
    codes -= count;
    for (int64_t i = count; i-- > whole;) put(table.symbols[codes[i]], states[i - whole], at);
    if (lanes == kMaxLanes)
      whole_runs(table, codes, whole / lanes, states, at);
    else
      for (int64_t i = whole; i-- > 0;) put(table.symbols[codes[i]], states[i % lanes], at);
  }
  for (int64_t lane = lanes; lane-- > 0;) {
    *--at = static_cast<uint16_t>(states[lane] >> 16);
    *--at = static_cast<uint16_t>(states[lane]);
  }
  const size_t begin = out.size();
  out.resize(begin + 2 * static_cast<size_t>(end - at));
  for (uint8_t* byte = out.data() + begin; at != end; ++at, byte += 2) {
    byte[0] = static_cast<uint8_t>(*at);
    byte[1] = static_cast<uint8_t>(*at >> 8);
  }
}

}  // namespace

FlatTable::FlatTable(const Table& table) : symbols{}, quotients{}, spans{} {
  for (size_t s = 0; s < table.widths.size(); ++s) {
    const uint32_t width = table.widths[s], begin = table.begins[s];
    if (width == 0) continue;
    symbols[s] = {((1ull << 44) + width - 1) / width, width, begin};
    quotients[s] = (1.0 + 0x1p-50) / width;
    spans[s] = width | begin << 16;
  }
}

FlatDecoder flat_decoder(const std::string& path) {
#if defined(__x86_64__)
  if (path == "avx512") return decode_flat_avx512;
  if (path == "avx2") return decode_flat_avx2;
#endif
  return decode_flat_portable;
}

FlatEncoder flat_encoder() {
#if defined(__x86_64__)
  if (paths().front() == "avx512") return encode_flat_avx512;
#endif
  return encode_flat_portable;
}

FlatReader::FlatReader(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, FlatDecoder runs)
    : model_(read_model(data, bytes, boxes, levels, used_)),
      decoder_(model_),
      words_(data + used_, bytes - used_),
      runs_(runs) {
  simple_ = model_.arity == 1 && !model_.left && !model_.above;
  for (size_t b = 0; b < boxes.size(); ++b)
    simple_ = simple_ && boxes[b].taps == 1 && model_.boxes[b].filters.empty() && model_.boxes[b].channels.empty();
  for (int lane = 0; lane < decoder_.lanes; ++lane) states_[lane] = words_.take_state();
}

void FlatReader::begin_box(size_t box) {
  slots_ = decoder_.slots.data() + decoder_.slot_base[static_cast<size_t>(model_.boxes[box].offset)];
}

void FlatReader::read(uint8_t* out, int64_t count) {
  int64_t done = 0;
  if (decoder_.lanes == kMaxLanes) done = kMaxLanes * runs_(slots_, states_, words_, out, count / kMaxLanes);
  for (int64_t lane = 0; done < count; ++done, lane = (lane + 1) % decoder_.lanes) {
    uint32_t state = states_[lane];
    const uint32_t slot = slots_[state & (kScale - 1)];
    state = ((slot >> 20) + 1) * (state >> kScaleBits) + ((slot >> 8) & (kScale - 1));
    states_[lane] = state < kStateLow ? (state << 16) | words_.take() : state;
    out[done] = static_cast<uint8_t>(slot);
  }
}

bool decode_flat(const uint8_t* data, size_t bytes, const std::vector<Box>& boxes, int levels, uint8_t* out,
                 const std::string& path) {
  FlatReader reader(data, bytes, boxes, levels, flat_decoder(path));
  if (!reader.simple()) return false;
  for (size_t b = 0; b < boxes.size(); ++b) {
    reader.begin_box(b);
    reader.read(out, boxes[b].weights());
    out += boxes[b].weights();
  }
  reader.finish();
  return true;
}

void FlatReader::finish() const {
  require(words_.left() == 0, "a stream is longer than its codes");
  for (int lane = 0; lane < decoder_.lanes; ++lane)
    require(states_[lane] == kStateLow, "a stream does not end in the state it must");
}

std::vector<uint8_t> encode_flat(const uint8_t* codes, const std::vector<Box>& boxes, int levels, int lanes_log2) {
  Counts counts(boxes.size(), std::vector<uint32_t>(static_cast<size_t>(levels), 0));
  const uint8_t* at = codes;
  for (size_t b = 0; b < boxes.size(); ++b) {
    uint64_t totals[kMaxSymbols];
    const int64_t size = boxes[b].channels;
    count_codes(at, static_cast<size_t>(size), totals);
    std::copy(totals, totals + levels, counts[b].begin());
    at += size;
  }
  Choice best;
  for (const std::vector<uint8_t>& offsets : {std::vector<uint8_t>(boxes.size(), kNeutral), alike(counts)}) {
    Model m;
    m.levels = levels;
    Counts by_density(kDensities, std::vector<uint32_t>(static_cast<size_t>(levels), 0));
    for (size_t b = 0; b < boxes.size(); ++b) {
      m.boxes.push_back(BoxClasses{offsets[b], {}, {}});
      for (size_t s = 0; s < counts[b].size(); ++s) by_density[offsets[b]][s] += counts[b][s];
    }
    const uint64_t bits = make_tables(m, by_density) + 8 * write_model(m, boxes).size();
    if (bits < best.bits) best = {std::move(m), bits};
  }
  best.model.lanes_log2 = lanes_log2 >= 0 ? lanes_log2 : lanes_log2_for(best.bits);
  std::vector<uint8_t> out = write_model(best.model, boxes);
  write_stream(best.model, codes, boxes, out);
  return out;
}

}  // namespace tersify
