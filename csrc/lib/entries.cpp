#include "lib/entries.hpp"

#include <algorithm>

namespace tersify::lib {
namespace {

constexpr int64_t kMaxElements = int64_t(1) << 48;
constexpr size_t kMaxRank = 32;
constexpr int64_t kBlock = 1 << 22, kOwnBox = 512;

struct DtypeFacts {
  const char* name;
  Dtype dtype;
  int width;
};
constexpr DtypeFacts kDtypes[] = {
    {"F64", Dtype::F64, 8},        {"F32", Dtype::F32, 4},        {"F16", Dtype::F16, 2}, {"BF16", Dtype::BF16, 2},
    {"F8_E4M3", Dtype::F8E4M3, 1}, {"F8_E5M2", Dtype::F8E5M2, 1}, {"I64", Dtype::I64, 8}, {"I32", Dtype::I32, 4},
    {"I16", Dtype::I16, 2},        {"I8", Dtype::I8, 1},          {"U8", Dtype::U8, 1},   {"BOOL", Dtype::Bool, 1}};

Dtype dtype_named(std::string_view name) {
  for (const DtypeFacts& facts : kDtypes)
    if (name == facts.name) return facts.dtype;
  throw BadFile("the unknown dtype '" + std::string(name) + "'; a newer library may know it");
}

void require(bool fine, const std::string& name, const char* rule) {
  if (!fine) throw BadFile("'" + name + "' " + rule);
}

// All sizes, and their product without the zeros, which must not overflow where one of them is missing.
std::vector<int64_t> sizes_of(const std::vector<Json::Value>& items, size_t first, const std::string& name) {
  std::vector<int64_t> sizes;
  int64_t product = 1;
  require(items.size() - first <= kMaxRank, name, "has too many dimensions");
  for (size_t i = first; i < items.size(); ++i) {
    const int64_t size = items[i].whole("a size", 0, kMaxElements);
    sizes.push_back(size);
    if (size) {
      require(product <= kMaxElements / size, name, "has an impossible shape");
      product *= size;
    }
  }
  return sizes;
}

int64_t product_of(const std::vector<int64_t>& sizes) {
  int64_t product = 1;
  for (const int64_t size : sizes) product = size == 0 || product == 0 ? 0 : product * size;
  return product;
}

bool broadcasts(const std::vector<int64_t>& small, const std::vector<int64_t>& large) {
  if (small.size() > large.size()) return false;
  for (size_t i = 1; i <= small.size(); ++i) {
    const int64_t size = small[small.size() - i];
    if (size != 1 && size != large[large.size() - i]) return false;
  }
  return true;
}

int64_t blocks_in(const Box& box) {
  if (box.weights() <= kBlock) return std::min<int64_t>(box.weights(), 1);
  const int64_t row = box.channels * box.taps;
  if (row <= kBlock) return (box.filters + kBlock / row - 1) / (kBlock / row);
  const int64_t step = kBlock / box.taps;
  return (box.channels + step - 1) / step * box.filters;
}

void check_groups(int64_t first, const Box& box, size_t groups, const std::string& name) {
  const int64_t blocks = blocks_in(box);
  require(blocks == 0 || (first >= 0 && blocks <= int64_t(groups) && first <= int64_t(groups) - blocks), name,
          "lies in groups that are not there");
}

struct Reference {
  Dtype stored, given;
  int64_t group;
  std::vector<int64_t> sizes;
};

Reference reference_of(const Json::Value& value, const std::string& name) {
  const auto items = value.list("a part");
  require(items.size() >= 2, name, "has a part without a dtype or a group");
  const std::string_view dtypes = items[0].text("a dtype");
  const size_t arrow = dtypes.find('>');
  Reference made;
  made.stored = dtype_named(dtypes.substr(0, arrow));
  made.given = arrow == std::string_view::npos ? made.stored : dtype_named(dtypes.substr(arrow + 1));
  made.group = items[1].whole("a group", INT64_MIN, INT64_MAX);
  made.sizes = sizes_of(items, 2, name);
  return made;
}

Part part_of(const Reference& reference, const std::vector<int64_t>& shape, size_t groups, const std::string& name) {
  int64_t elements = 1;
  for (const int64_t size : shape)
    if (size) {
      require(elements <= kMaxElements / size, name, "has a part of an impossible shape");
      elements *= size;
    }
  elements = product_of(shape);
  check_groups(reference.group, {1, elements, 1, 1}, groups, name);
  return {reference.stored, reference.given, reference.group, elements};
}

Entry entry_of(const Json::Value& item, size_t groups, std::string& same) {
  Entry e;
  e.name = std::string(item.find("n").text("a tensor's name"));
  e.shape = sizes_of(item.find("s").list("a shape"), 0, e.name);
  e.elements = product_of(e.shape);
  const auto has = [&](const char* key) { return !item.find(key).is_null(); };
  const bool compressed = has("c") || has("b") || has("v") || has("m") || has("a") || has("f");
  if (has("e")) {
    require(!has("d") && !compressed, e.name, "equals another tensor and has parts of its own");
    const Json::Value other = item.find("e");
    if (other.kind() == Json::Kind::List) {  // a name and the order of the axes
      const auto parts = other.list("a name");
      require(parts.size() == 3 && parts[1].whole("an axis", 0, 1) == 1 && parts[2].whole("an axis", 0, 1) == 0,
              e.name, "equals a tensor in an order of axes that is not known");
      e.turned = true;
      same = std::string(parts[0].text("a name"));
    } else {
      same = std::string(other.text("a name"));
    }
    return e;
  }
  if (has("d")) {
    const Reference dense = reference_of(item.find("d"), e.name);
    require(dense.sizes.empty() && !compressed, e.name, "is dense and has keys of a compressed tensor");
    e.dense = part_of(dense, e.shape, groups, e.name);
    return e;
  }
  e.code_group = item.find("c").whole("the group of codes", INT64_MIN, INT64_MAX);
  check_groups(e.code_group, box_of(e.shape), groups, e.name);
  if (has("a")) e.axis = int(item.find("a").whole("an axis", 0, int64_t(e.shape.size()) - 1));
  require(has("b") != has("v"), e.name, "needs a codebook or values, not both and not neither");
  if (has("b")) {
    Reference book = reference_of(item.find("b"), e.name);
    require(book.sizes.size() == 1 && book.sizes[0] >= 1 && book.sizes[0] <= 256, e.name, "has 1..256 levels");
    e.levels = int(book.sizes[0]);
    if (book.group == kWholeLevels) {
      require(e.axis < 0 && book.stored == book.given && book.stored <= Dtype::BF16, e.name,
              "has whole numbers for levels and an axis, or a dtype without them");
      e.codebook = Part{book.stored, book.given, kWholeLevels, book.sizes[0]};
    } else {
      if (e.axis >= 0) book.sizes.insert(book.sizes.begin(), e.shape[size_t(e.axis)]);
      e.codebook = part_of(book, book.sizes, groups, e.name);
    }
  } else {
    const Reference values = reference_of(item.find("v"), e.name);
    require(e.axis < 0, e.name, "has an axis and no codebook");
    require(values.sizes.size() == 1 && values.sizes[0] <= e.elements, e.name, "has too many values");
    e.values = part_of(values, values.sizes, groups, e.name);
  }
  if (has("m")) {
    const Reference scale = reference_of(item.find("m"), e.name);
    require(broadcasts(scale.sizes, e.shape), e.name, "has a scale that does not fit");
    e.scale = part_of(scale, scale.sizes, groups, e.name);
    e.scale_shape = scale.sizes;
  }
  return e;
}

}  // namespace

int width_of(Dtype dtype) {
  for (const DtypeFacts& facts : kDtypes)
    if (facts.dtype == dtype) return facts.width;
  return 1;
}

bool is_float(Dtype dtype) { return dtype <= Dtype::F8E5M2; }

Box box_of(const std::vector<int64_t>& shape) {
  if (shape.size() < 2) return {1, product_of(shape), 1, 1};
  const int64_t taps = product_of({shape.begin() + 2, shape.end()});
  constexpr int64_t kMostTaps = 1 << 12;
  if (taps > kMostTaps) return {shape[0], shape[1] * taps, 1, 1};
  return {shape[0], shape[1], taps, taps > 1 ? shape.back() : 1};
}

std::vector<Box> blocks_of(const Box& box) {
  std::vector<Box> blocks;
  if (box.weights() <= kBlock) {
    if (box.weights()) blocks.push_back(box);
    return blocks;
  }
  const int64_t row = box.channels * box.taps;
  if (row <= kBlock) {
    const int64_t step = kBlock / row;
    for (int64_t f = 0; f < box.filters; f += step)
      blocks.push_back({std::min(step, box.filters - f), box.channels, box.taps, box.width});
    return blocks;
  }
  const int64_t step = kBlock / box.taps;
  for (int64_t f = 0; f < box.filters; ++f)
    for (int64_t c = 0; c < box.channels; c += step)
      blocks.push_back({1, std::min(step, box.channels - c), box.taps, box.width});
  return blocks;
}

std::vector<Box> boxes_of_arrays(const std::vector<std::pair<std::string, int64_t>>& arrays, int64_t piece) {
  std::vector<int64_t> sizes;
  const std::string* pooled = nullptr;
  for (const auto& [kind, elements] : arrays) {
    const bool small = elements < kOwnBox;
    if (small && pooled && *pooled == kind)
      sizes.back() += elements;
    else
      sizes.push_back(elements);
    pooled = small ? &kind : nullptr;
  }
  std::vector<Box> boxes;
  for (const int64_t size : sizes)
    for (int64_t at = 0; at < size; at += piece) boxes.push_back({1, std::min(piece, size - at), 1, 1});
  return boxes;
}

Directory::Directory(const Json& json) {
  const Json::Value root = json.root();
  for (const Json::Value& item : root.find("groups").list("groups")) {
    const auto listed = item.list("a group");
    if (listed.empty()) bad_file("a group is [codec, checksum, …]");
    Group group;
    group.codec = std::string(listed[0].text("a codec"));
    if (listed.size() > 1) group.crc = uint32_t(listed[1].whole("a checksum", 0, UINT32_MAX));
    groups.push_back(std::move(group));
  }
  std::vector<std::string> same;
  for (const Json::Value& item : root.find("tensors").list("tensors")) {
    same.emplace_back();
    entries.push_back(entry_of(item, groups.size(), same.back()));
    if (!names_.emplace(entries.back().name, int(entries.size()) - 1).second)
      bad_file("two tensors have the same name");
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    if (same[i].empty()) continue;
    const auto found = names_.find(same[i]);
    Entry& e = entries[i];
    const bool fits = found != names_.end() && same[size_t(found->second)].empty() &&
                      entries[size_t(found->second)].elements == e.elements && (!e.turned || e.shape.size() == 2);
    require(fits, e.name, "must have the content of a tensor that is there and fits its shape");
    e.same = found->second;
  }
  if (const Json::Value aliases = root.find("aliases"); !aliases.is_null())
    for (const auto& [alias, name] : aliases.object("aliases")) {
      const auto found = names_.find(name.text("an alias"));
      if (found == names_.end() || !names_.emplace(std::string(alias), found->second).second)
        bad_file("an alias must map a new name to a tensor that is there");
    }
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& e = entries[i];
    if (e.code_group >= 0) place(int(i), PartKind::Codes, e.code_group, blocks_of(box_of(e.shape)));
    const auto array = [&](const std::optional<Part>& part, PartKind kind) {
      if (part) place(int(i), kind, part->group, blocks_of({1, part->elements, 1, 1}));
    };
    array(e.dense, PartKind::Dense);
    if (e.codebook && e.codebook->group != kWholeLevels) array(e.codebook, PartKind::Codebook);
    array(e.values, PartKind::Values);
    array(e.scale, PartKind::Scale);
  }
  for (Group& group : groups) {
    if (group.elements > kBlock) bad_file("a group holds more elements than are allowed");
    if (group.levels || group.places.empty()) continue;
    std::vector<size_t> order(group.places.size());
    for (size_t i = 0; i < order.size(); ++i) order[i] = i;
    std::stable_sort(order.begin(), order.end(),
                     [&](size_t a, size_t b) { return group.kinds[a] < group.kinds[b]; });
    std::vector<std::string> kinds;
    std::vector<Place> places;
    for (const size_t i : order) {
      kinds.push_back(std::move(group.kinds[i]));
      places.push_back(group.places[i]);
    }
    group.kinds = std::move(kinds);
    group.places = std::move(places);
  }
}

void Directory::place(int index, PartKind part, int64_t first, const std::vector<Box>& blocks) {
  const Entry& e = entries[size_t(index)];
  for (size_t i = 0; i < blocks.size(); ++i) {
    Group& group = groups[size_t(first) + i];
    const bool fresh = group.places.empty();
    if (part == PartKind::Codes) {
      if (!fresh && group.levels != e.levels) bad_file("a group mixes codes of different kinds");
      group.levels = e.levels;
      group.boxes.push_back(blocks[i]);
    } else {
      const Part& array = *(part == PartKind::Dense      ? e.dense
                            : part == PartKind::Codebook ? e.codebook
                            : part == PartKind::Values   ? e.values
                                                         : e.scale);
      if (!fresh && (group.levels || group.dtype != array.stored)) bad_file("a group mixes arrays of different kinds");
      group.dtype = array.stored;
      const char letter = part == PartKind::Dense ? 'd' : part == PartKind::Codebook ? 'b' : part == PartKind::Values ? 'v' : 'm';
      group.kinds.push_back(letter + e.name.substr(e.name.rfind('.') + 1));
    }
    group.places.push_back({index, part, blocks[i].weights()});
    group.elements += blocks[i].weights();
    if (group.elements > kBlock) bad_file("a group holds more elements than are allowed");
  }
}

const Entry& Directory::entry(std::string_view name) const {
  const auto found = names_.find(name);
  if (found == names_.end()) throw BadFile("the file has no tensor '" + std::string(name) + "'");
  return entries[size_t(found->second)];
}

int Directory::index_of_content(const Entry& entry) const {
  return entry.same >= 0 ? entry.same : int(&entry - entries.data());
}

}  // namespace tersify::lib
