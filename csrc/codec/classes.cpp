#include "classes.h"

#include <algorithm>

namespace tersify {

Symbols symbols_of_box(const uint8_t* codes, const Box& box, const Cut& cut, int levels, int arity) {
  Symbols symbols(static_cast<size_t>(cut.units * cut.rows));
  uint8_t* out = symbols.data();
  const int64_t run = box.taps == 1 ? box.channels : box.taps;   // codes after which padding may follow
  const int64_t runs = box.weights() / run;
  for (int64_t r = 0; r < runs; ++r, codes += run) {
    for (int64_t at = 0; at < run; at += arity) {
      int symbol = 0;
      for (int i = 0; i < arity; ++i) symbol = symbol * levels + (at + i < run ? codes[at + i] : 0);
      *out++ = static_cast<uint8_t>(symbol);
    }
  }
  return symbols;
}

int density_class(uint64_t part, uint64_t whole) {
  // 65536 · 2^((k − 8.5) / 2) for k = 1 … 15: half an octave a class, class 8 around one.
  static const uint64_t limits[15] = {4871,   6889,   9742,   13777,  19484,  27554,  38968, 55109,
                                      77936,  110218, 155872, 220436, 311744, 440872, 623487};
  int made = 0;
  for (const uint64_t limit : limits) made += part * 65536 >= whole * limit;
  return made;
}

namespace {

// What classes along one axis save on symbols without context, in 1/65536 bits, less what they cost.
int64_t saving(const Symbols& symbols, const Cut& cut, int symbol_count, const std::vector<uint8_t>& classes,
               bool by_filter) {
  std::vector<uint32_t> counts(static_cast<size_t>(kDensities * symbol_count), 0), all(static_cast<size_t>(symbol_count));
  const uint8_t* at = symbols.data();
  for (int64_t unit = 0; unit < cut.units; ++unit) {
    const int64_t index = by_filter ? unit / cut.units_per_filter : unit % cut.units_per_filter;
    uint32_t* row = counts.data() + classes[static_cast<size_t>(index)] * symbol_count;
    for (int64_t r = 0; r < cut.rows; ++r) ++row[*at++];
  }
  int64_t saved = 0, used = 0;
  for (int k = 0; k < kDensities; ++k) {
    const uint32_t* row = counts.data() + k * symbol_count;
    for (int s = 0; s < symbol_count; ++s) all[static_cast<size_t>(s)] += row[s];
    saved -= static_cast<int64_t>(ideal_bits(row, static_cast<size_t>(symbol_count)));
  }
  for (const uint32_t count : all) used += count != 0;
  saved += static_cast<int64_t>(ideal_bits(all.data(), all.size()));
  // A class costs about two and a half bits; counts fitted to k classes look better than they are.
  const int64_t distinct = std::count_if(counts.begin(), counts.end(), [](uint32_t n) { return n != 0; });
  return saved - static_cast<int64_t>(classes.size()) * (5 << 15) - (distinct - used) * (3 << 14);
}

// Where activity only says zero or not, it is a count: the class that saves most on a Poisson count,
// after the bits that a class costs. `whole` is what a neutral part would count, times 65536.
int cheapest_class(uint64_t count, uint64_t whole) {
  // log2(e) · (2^((k − 8) / 2) − 1) in 1/65536
  static const int64_t excess[16] = {-88640, -86191, -82728, -77830, -70904, -61109, -47258, -27668,
                                     0,      39146,  94548,  172849, 283644, 440241, 661818, 975013};
  static const int64_t price[9] = {1, 2, 4, 5, 6, 7, 8, 8, 8};
  int best = kNeutral;
  int64_t best_score = INT64_MIN;
  for (int k = 0; k < kDensities; ++k) {
    const int64_t gain = static_cast<int64_t>(count) * (k - kNeutral) * 32768 -
                         static_cast<int64_t>(whole >> 16) * excess[k] -
                         ((static_cast<int64_t>(whole & 0xFFFF) * excess[k]) >> 16);
    const int64_t score = gain - (price[std::abs(k - kNeutral)] << 16);
    if (score > best_score) {
      best_score = score;
      best = k;
    }
  }
  return best;
}

std::vector<uint8_t> classes_along(const std::vector<uint64_t>& sums, uint64_t unit, bool counts) {
  uint64_t total = 0;
  for (const uint64_t sum : sums) total += sum;
  std::vector<uint8_t> classes;
  for (const uint64_t sum : sums)
    classes.push_back(static_cast<uint8_t>(
        counts ? cheapest_class(sum / unit, (total / unit << 16) / sums.size())
               : density_class((sum + unit) * sums.size(), total + unit * sums.size())));
  return classes;
}

}  // namespace

BoxClasses classes_of_box(const uint8_t* codes, const Box& box, const Cut& cut, const Symbols& symbols, int symbol_count,
                          int arity, const std::vector<uint8_t>& activity, uint64_t group_activity,
                          uint64_t group_weights) {
  std::vector<uint64_t> filters(static_cast<size_t>(box.filters)), channels(static_cast<size_t>(cut.units_per_filter));
  uint64_t total = 0;
  for (int64_t f = 0; f < box.filters; ++f) {
    uint64_t filter = 0;
    for (int64_t c = 0; c < box.channels; ++c) {
      uint32_t kernel = 0;
      for (int64_t t = 0; t < box.taps; ++t) kernel += activity[*codes++];
      channels[static_cast<size_t>(box.taps == 1 ? c / arity : c)] += kernel;
      filter += kernel;
    }
    filters[static_cast<size_t>(f)] = filter;
    total += filter;
  }
  BoxClasses made;
  if (total == 0 || group_activity == 0) return made;
  // Both sides are scaled to 2^22 weights, so that the products stay far below 2^64.
  made.offset = density_class(total * (static_cast<uint64_t>(kMaxWeights) / static_cast<uint64_t>(box.weights())),
                              group_activity * (static_cast<uint64_t>(kMaxWeights) / group_weights));
  const uint64_t unit = *std::max_element(activity.begin(), activity.end());
  const bool counts = std::all_of(activity.begin(), activity.end(), [&](uint8_t a) { return a == 0 || a == unit; });
  std::vector<uint8_t> by_filter = classes_along(filters, unit, counts);
  std::vector<uint8_t> by_channel = classes_along(channels, unit, counts);
  if (saving(symbols, cut, symbol_count, by_filter, true) > 0) made.filters = std::move(by_filter);
  if (saving(symbols, cut, symbol_count, by_channel, false) > 0) made.channels = std::move(by_channel);
  return made;
}

void choose_neighbours(Model& model, const std::vector<Symbols>& symbols, const Hints& hints) {
  const int count = model.symbols();
  model.class_of.assign(static_cast<size_t>(count), 0);
  model.above = true;
  model.left = model.arity == 1;
  model.mirror = model.levels == 3 && (model.arity == 2 || model.arity == 3);  // longer symbols have too many classes
  if (model.mirror) {
    // A symbol and its mirror image are one class; there are 14 of them for three codes.
    const std::vector<uint8_t> mirrored = mirrored_symbols(model.arity);
    int next = 0;
    for (int s = 0; s < count; ++s)
      model.class_of[static_cast<size_t>(s)] =
          mirrored[static_cast<size_t>(s)] < s ? model.class_of[mirrored[static_cast<size_t>(s)]] : static_cast<uint8_t>(next++);
    model.classes = next;
    return;
  }
  model.classes = count <= 8 ? count : count <= 16 ? 8 : count <= 64 ? 6 : 4;
  if (model.arity > 1 || count <= 8) {
    for (int s = 0; s < count; ++s) model.class_of[static_cast<size_t>(s)] = static_cast<uint8_t>(s % model.classes);
    return;
  }
  // Neighbouring levels share a class, and every class is met about equally often.
  std::vector<uint64_t> counts(static_cast<size_t>(count), 0);
  uint64_t total = 0, before = 0;
  for (const Symbols& box : symbols)
    for (const uint8_t s : box) ++counts[s];
  for (const uint64_t n : counts) total += n;
  for (const uint8_t code : hints.order) {
    const uint64_t middle = 2 * before + counts[code];
    model.class_of[code] = static_cast<uint8_t>(
        std::min<uint64_t>(model.classes - 1, total ? middle * static_cast<uint64_t>(model.classes) / (2 * total) : 0));
    before += counts[code];
  }
}

}  // namespace tersify
