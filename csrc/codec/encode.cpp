#include "encode.h"

#include <algorithm>

#include "classes.h"
#include "flat.h"

namespace tersify {

namespace {

constexpr size_t kBoxSlice = 64;
constexpr int kEncoderTables = 64;    // 64 tables of 16 KiB still decode out of the second-level cache

// Calls `visit(box, index of the symbol, lane)` for every symbol, in the reverse of the decoder's order.
template <typename Visit>
void walk_backwards(const std::vector<Cut>& cuts, int lanes, Visit visit) {
  for (size_t box = cuts.size(); box-- > 0;) {
    const int64_t last = (cuts[box].units - 1) / lanes * lanes;
    for (int64_t unit = last; unit >= 0; unit -= lanes) {
      const int active = static_cast<int>(std::min<int64_t>(lanes, cuts[box].units - unit));
      for (int64_t row = cuts[box].rows; row-- > 0;)
        for (int lane = active; lane-- > 0;) visit(box, (unit + lane) * cuts[box].rows + row, lane);
    }
  }
}

struct Job {
  Model model;
  std::vector<Cut> cuts;
  std::vector<Symbols> symbols;           // as they are
  std::vector<Symbols> coded;             // as they are coded: mirrored where the row above asks for it
  std::vector<std::vector<uint16_t>> contexts;
};

void find_contexts(Job& job, const std::vector<Box>& boxes) {
  const Model& m = job.model;
  const std::vector<uint8_t> mirrored = m.mirror ? mirrored_symbols(m.arity) : std::vector<uint8_t>();
  const std::vector<uint8_t> leads = m.mirror ? leads_with_two(m.arity) : std::vector<uint8_t>();
  job.coded = job.symbols;
  job.contexts.resize(boxes.size());
  for (size_t b = 0; b < boxes.size(); ++b) {
    const Cut& cut = job.cuts[b];
    const std::vector<uint8_t> densities = unit_densities(boxes[b], cut, m.boxes[b]);
    const uint8_t* symbols = job.symbols[b].data();
    uint8_t* coded = job.coded[b].data();
    job.contexts[b].resize(job.symbols[b].size());
    uint16_t* contexts = job.contexts[b].data();
    for (int64_t unit = 0; unit < cut.units; ++unit) {
      for (int64_t row = 0; row < cut.rows; ++row, ++symbols, ++coded, ++contexts) {
        int context = densities[static_cast<size_t>(unit)] * m.contexts_per_density();
        if (m.left) context += (row % cut.up != 0 ? m.class_of[symbols[-1]] : m.classes) * m.above_states();
        if (m.above) {
          const bool there = row >= cut.up;
          context += there ? m.class_of[symbols[-cut.up]] : m.classes;
          if (m.mirror && there && leads[symbols[-cut.up]]) *coded = mirrored[*symbols];
        }
        *contexts = static_cast<uint16_t>(context);
      }
    }
  }
}

}  // namespace

uint64_t make_tables(Model& m, const Counts& counts) {
  const size_t step = static_cast<size_t>(m.contexts_per_density());
  Counts joined;
  m.table_of = cluster(counts, step, kEncoderTables, joined);
  for (size_t c = step; c < counts.size(); ++c)      // where a context never occurs, the predicted table is cheapest
    if (std::all_of(counts[c].begin(), counts[c].end(), [](uint32_t n) { return n == 0; }))
      m.table_of[c] = m.table_of[c - step];
  m.tables.clear();
  uint64_t bits = 0;                                  // in 1/65536
  for (const std::vector<uint32_t>& each : joined) {
    m.tables.push_back(table_of_counts(each));
    bits += coded_bits(m.tables.back(), each);
  }
  return bits >> 16;
}

namespace {

std::vector<uint8_t> write(const Job& job, const std::vector<Box>& boxes) {
  const Model& m = job.model;
  std::vector<uint8_t> out = write_model(m, boxes);
  std::vector<uint32_t> states(static_cast<size_t>(m.lanes()), kStateLow);
  ReverseWords words;
  walk_backwards(job.cuts, m.lanes(), [&](size_t box, int64_t at, int lane) {
    const Table& table = m.tables[m.table_of[job.contexts[box][static_cast<size_t>(at)]]];
    const uint8_t symbol = job.coded[box][static_cast<size_t>(at)];
    rans_put(states[static_cast<size_t>(lane)], table.begins[symbol], table.widths[symbol], table.inverses[symbol], words);
  });
  for (int lane = m.lanes(); lane-- > 0;) put_state(states[static_cast<size_t>(lane)], words);
  words.append_to(out);
  return out;
}

}  // namespace

int lanes_log2_for(uint64_t bits) {
  const uint64_t bytes = bits / 8;
  return bytes >= 1 << 16 ? 5 : bytes >= 1 << 13 ? 3 : bytes >= 1 << 12 ? 2 : bytes >= 1 << 10 ? 1 : 0;
}

std::vector<uint8_t> alike(const Counts& counts) {
  // Symbols that occur nowhere do not decide, and exponents have many of them.
  std::vector<size_t> used;
  for (size_t s = 0; !counts.empty() && s < counts[0].size(); ++s)
    if (std::any_of(counts.begin(), counts.end(), [s](const std::vector<uint32_t>& each) { return each[s] != 0; }))
      used.push_back(s);
  Counts dense, joined;
  for (const std::vector<uint32_t>& each : counts) {
    dense.emplace_back();
    for (const size_t s : used) dense.back().push_back(each[s]);
  }
  return cluster(dense, kBoxSlice, kDensities, joined);
}

namespace {

// Fills in the rest of a job's model, and keeps it in `best` where it needs fewer bits.
void try_model(Job& job, const std::vector<Box>& boxes, Choice& best) {
  find_contexts(job, boxes);
  Counts counts(static_cast<size_t>(kDensities * job.model.contexts_per_density()),
                std::vector<uint32_t>(static_cast<size_t>(job.model.symbols()), 0));
  for (size_t b = 0; b < job.coded.size(); ++b)
    for (size_t i = 0; i < job.coded[b].size(); ++i) ++counts[job.contexts[b][i]][job.coded[b][i]];
  const uint64_t bits = make_tables(job.model, counts) + 8 * write_model(job.model, boxes).size();
  if (bits < best.bits) best = {job.model, bits};
}

// The smallest of four codings: without contexts, with density classes and neighbours, and with boxes that are alike
// sharing their statistics, with neighbours and without.
std::vector<uint8_t> encode_with_arity(const uint8_t* codes, const std::vector<Box>& boxes, int levels, int arity,
                                       const Hints& hints, int lanes_log2) {
  Job job;
  Model& m = job.model;
  m.levels = levels;
  m.arity = arity;
  uint64_t group_activity = 0, group_weights = 0;
  const uint8_t* at = codes;
  for (size_t b = 0; b < boxes.size(); ++b) {
    job.cuts.emplace_back(boxes[b], arity);
    job.symbols.push_back(symbols_of_box(at, boxes[b], job.cuts[b], levels, arity));
    for (int64_t i = 0; i < boxes[b].weights(); ++i) group_activity += hints.activity[b][*at++];
    group_weights += static_cast<uint64_t>(boxes[b].weights());
  }
  m.boxes.assign(boxes.size(), BoxClasses());
  Model alone = m;                                    // no neighbours
  Choice best;
  try_model(job, boxes, best);

  at = codes;
  for (size_t b = 0; b < boxes.size(); ++b) {
    m.boxes[b] = classes_of_box(at, boxes[b], job.cuts[b], job.symbols[b], m.symbols(), arity, hints.activity[b],
                                group_activity, group_weights);
    at += boxes[b].weights();
  }
  const bool neighbours = std::any_of(job.cuts.begin(), job.cuts.end(), [](const Cut& cut) { return cut.rows > 1; });
  const bool one_density = std::all_of(m.boxes.begin(), m.boxes.end(), [&](const BoxClasses& box) {
    return box.filters.empty() && box.channels.empty() && box.offset == m.boxes[0].offset;
  });
  if (neighbours) choose_neighbours(m, job.symbols, hints);
  if (!one_density || neighbours) try_model(job, boxes, best);
  if (!one_density && !neighbours) {
    refine_classes(m.boxes, boxes, job.cuts, job.symbols, m.symbols());
    try_model(job, boxes, best);
  }
  Counts by_box(boxes.size(), std::vector<uint32_t>(static_cast<size_t>(m.symbols()), 0));
  for (size_t b = 0; b < boxes.size(); ++b)
    for (const uint8_t symbol : job.symbols[b]) ++by_box[b][symbol];
  const std::vector<uint8_t> offsets = alike(by_box);
  if (std::any_of(offsets.begin(), offsets.end(), [&](uint8_t offset) { return offset != offsets[0]; })) {
    for (size_t b = 0; b < boxes.size(); ++b) alone.boxes[b] = m.boxes[b] = BoxClasses{offsets[b], {}, {}};
    try_model(job, boxes, best);
    if (neighbours) {
      m = std::move(alone);
      try_model(job, boxes, best);
    }
  }
  m = std::move(best.model);
  m.lanes_log2 = lanes_log2 >= 0 ? lanes_log2 : lanes_log2_for(best.bits);
  for (Table& table : m.tables) table.invert();
  find_contexts(job, boxes);
  return write(job, boxes);
}

// About the bits of all boxes, in 1/65536: how well symbols of that many codes suit them. Up to kBoxSlice boxes have a
// table each, more of them share one.
uint64_t bits_with_arity(const uint8_t* codes, const std::vector<Box>& boxes, int levels, int arity) {
  const std::vector<uint32_t> none(static_cast<size_t>(symbols_of(levels, arity)), 0);
  Counts counts(boxes.size() <= kBoxSlice ? boxes.size() : 1, none);
  for (size_t b = 0; b < boxes.size(); ++b) {
    std::vector<uint32_t>& own = counts[b % counts.size()];
    for (const uint8_t symbol : symbols_of_box(codes, boxes[b], Cut(boxes[b], arity), levels, arity)) ++own[symbol];
    codes += boxes[b].weights();
  }
  uint64_t bits = 0;
  for (const std::vector<uint32_t>& each : counts) bits += coded_bits(table_of_counts(each), each);
  return bits;
}

// Arities that promise at least a fivehundredth. Short filters show the padding of their last symbol, and where one
// code is very frequent a symbol of few codes is too likely for the grain of a table.
std::vector<int> better_arities(const uint8_t* codes, const std::vector<Box>& boxes, int levels, int usual) {
  std::vector<int> better;
  if (boxes.empty() || levels < 2 || levels * levels > kMaxSymbols) return better;
  const uint64_t known = bits_with_arity(codes, boxes, levels, usual);
  int64_t symbols = levels;
  for (int arity = 1; arity <= kMaxArity && symbols <= kMaxSymbols; ++arity, symbols *= levels) {
    if (arity == usual) continue;
    const uint64_t bits = bits_with_arity(codes, boxes, levels, arity);
    if (bits < known - known / 500) better.push_back(arity);
  }
  return better;
}

}  // namespace

std::vector<uint8_t> encode_codes(const uint8_t* codes, const std::vector<Box>& boxes, int levels,
                                  const Hints& hints, int lanes_log2) {
  const int usual = levels == 2 || levels == 3 ? 3 : 1;     // threes decode fastest
  std::vector<uint8_t> best = usual == 1 && is_flat(boxes)
                                  ? encode_flat(codes, boxes, levels, lanes_log2)
                                  : encode_with_arity(codes, boxes, levels, usual, hints, lanes_log2);
  for (const int arity : better_arities(codes, boxes, levels, usual)) {
    std::vector<uint8_t> made = encode_with_arity(codes, boxes, levels, arity, hints, lanes_log2);
    if (made.size() < best.size()) best = std::move(made);
  }
  return best;
}

}  // namespace tersify
