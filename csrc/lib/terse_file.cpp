#include "lib/terse_file.hpp"

#include <algorithm>
#include <cstring>

#include "lib/directory_text.hpp"
#include "lib/groups.hpp"

namespace tersify::lib {
namespace {

constexpr uint64_t kMaxDirectory = 1 << 24, kMinDirectory = 1 << 16;
constexpr uint64_t kBytesPerValue = 64;  // of parsed text

float from_half(uint16_t half) {
  const uint32_t sign = uint32_t(half >> 15) << 31, exponent = half >> 10 & 31, fraction = half & 1023;
  uint32_t bits;
  if (exponent == 31) {
    bits = 0x7f800000u | fraction << 13;
  } else if (exponent) {
    bits = (exponent + 112) << 23 | fraction << 13;
  } else {
    const float small = float(fraction) * 5.9604644775390625e-8f;  // 2^-24
    std::memcpy(&bits, &small, sizeof bits);
  }
  bits |= sign;
  float made;
  std::memcpy(&made, &bits, sizeof made);
  return made;
}

// 0, 1, …, −2, −1, the largest being half of them.
std::vector<float> whole_levels(int64_t count) {
  std::vector<float> made;
  for (int64_t i = 0; i < count; ++i) made.push_back(float(i > count / 2 ? i - count : i));
  return made;
}

void check_float(const Part& part, const std::string& name) {
  const bool known = part.given == Dtype::F32 &&
                     (part.stored == Dtype::F32 || part.stored == Dtype::F16 || part.stored == Dtype::BF16);
  if (!known) throw BadFile("'" + name + "' is not of 32-bit floats, which kernels take");
}

std::vector<float> as_floats(const Bytes& raw, const Part& part) {
  std::vector<float> made(static_cast<size_t>(part.elements));
  if (part.stored == Dtype::F32) {
    if (!made.empty()) std::memcpy(made.data(), raw.data(), raw.size());
    return made;
  }
  for (size_t i = 0; i < made.size(); ++i) {
    const uint16_t bits = uint16_t(raw[2 * i] | raw[2 * i + 1] << 8);
    if (part.stored == Dtype::F16) {
      made[i] = from_half(bits);
    } else {
      const uint32_t wide = uint32_t(bits) << 16;
      std::memcpy(&made[i], &wide, sizeof wide);
    }
  }
  return made;
}

// The content of an entry in its own order: it may be the transpose of what the file holds.
template <typename Numbers>
Numbers in_order(Numbers held, const Entry& e) {
  if (!e.turned) return held;
  Numbers made(held.size());
  const size_t rows = size_t(e.shape[0]), columns = size_t(e.shape[1]);
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) made[r * columns + c] = held[c * rows + r];
  return made;
}

}  // namespace

TerseFile::TerseFile(std::shared_ptr<const Source> source, uint64_t max_bytes)
    : sections_(std::move(source)), max_bytes_(max_bytes) {
  const Bytes zipped = sections_.read("directory");
  const uint64_t limit = std::min(kMaxDirectory, std::max(kMinDirectory, max_bytes / 16));
  const Bytes text = unzip(zipped.data(), zipped.size(), limit, "the directory", kDirectoryText);
  const Json json({reinterpret_cast<const char*>(text.data()), text.size()}, "directory",
                  size_t(std::max(kMinDirectory, std::min<uint64_t>(max_bytes / kBytesPerValue, kMaxDirectory))));
  directory_ = std::make_unique<Directory>(json);
  for (const Group& group : directory_->groups)
    if (!group.crc && !sections_.has("small")) bad_file("a group has no checksum");
}

std::shared_ptr<const Bytes> TerseFile::group(int64_t index) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (recent_ == index) return decoded_;
  const Group& facts = directory_->groups[size_t(index)];
  const uint64_t size = uint64_t(facts.elements) * uint64_t(facts.levels ? 1 : width_of(facts.dtype));
  const std::string section = "g" + std::to_string(index);
  if (size > max_bytes_ || sections_.size(section) > max_bytes_)
    throw TooLarge("a group decodes to " + std::to_string(size) + " bytes, " + std::to_string(max_bytes_) +
                   " are allowed");
  decoded_ = nullptr;
  recent_ = -1;
  decoded_ = std::make_shared<const Bytes>(decode_group(facts, sections_.read(section)));
  recent_ = index;
  return decoded_;
}

void TerseFile::forget() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  decoded_ = nullptr;
  recent_ = -1;
}

Bytes TerseFile::part(int entry, PartKind kind, int64_t first, int64_t elements, int width) const {
  Bytes made;
  if (uint64_t(elements) > max_bytes_ / uint64_t(width))
    throw TooLarge("a tensor of " + std::to_string(elements) + " elements is larger than the limit of memory allows");
  made.reserve(size_t(elements) * size_t(width));
  for (int64_t left = elements, index = first; left > 0; ++index) {
    const std::shared_ptr<const Bytes> bytes = group(index);
    size_t at = 0;
    bool found = false;
    for (const Place& place : directory_->groups[size_t(index)].places) {
      const size_t size = size_t(place.elements) * size_t(width);
      if (place.entry == entry && place.part == kind) {  // blocks of one part lie in groups of their own
        made.insert(made.end(), bytes->begin() + ptrdiff_t(at), bytes->begin() + ptrdiff_t(at + size));
        left -= place.elements;
        found = true;
        break;
      }
      at += size;
    }
    if (!found) bad_file("a part of a tensor is not where the directory says");
  }
  return made;
}

Bytes TerseFile::codes_of(int index) const {
  const Entry& e = directory_->entries[size_t(index)];
  if (!e.codebook && !e.values) throw BadFile("'" + e.name + "' has no codes");
  return part(index, PartKind::Codes, e.code_group, e.elements, 1);
}

Bytes TerseFile::codes(std::string_view name) const {
  const Entry& e = directory_->entry(name);
  return in_order(codes_of(directory_->index_of_content(e)), e);
}

std::vector<float> TerseFile::floats(std::string_view name) const {
  const Entry& e = directory_->entry(name);
  return in_order(floats_of(directory_->index_of_content(e)), e);
}

std::vector<float> TerseFile::array(int entry, PartKind kind, const Part& facts) const {
  const std::string& name = directory_->entries[size_t(entry)].name;
  check_float(facts, name);
  if (facts.group == kWholeLevels) return whole_levels(facts.elements);
  return as_floats(part(entry, kind, facts.group, facts.elements, width_of(facts.stored)), facts);
}

std::vector<float> TerseFile::floats_of(int index) const {
  const Entry& e = directory_->entries[size_t(index)];
  if (uint64_t(e.elements) > max_bytes_ / sizeof(float))
    throw TooLarge("'" + e.name + "' is larger than the limit of memory allows");
  if (e.dense) return array(index, PartKind::Dense, *e.dense);
  const Bytes codes = codes_of(index);
  std::vector<float> made(codes.size());
  if (e.values) {
    const std::vector<float> values = array(index, PartKind::Values, *e.values);
    size_t next = 0;
    for (size_t i = 0; i < codes.size(); ++i) {
      if (!codes[i]) continue;
      if (next == values.size()) throw BadFile("'" + e.name + "' keeps more weights than it has values");
      made[i] = values[next++];
    }
    if (next != values.size()) throw BadFile("'" + e.name + "' keeps fewer weights than it has values");
  } else {
    const std::vector<float> book = array(index, PartKind::Codebook, *e.codebook);
    size_t inner = 1, rows = 1;  // numbers of a slice of the axis that lie together, and slices
    if (e.axis >= 0) {
      rows = size_t(e.shape[size_t(e.axis)]);
      for (size_t i = size_t(e.axis) + 1; i < e.shape.size(); ++i) inner *= size_t(e.shape[i]);
    }
    const size_t levels = size_t(e.levels);
    for (size_t i = 0; i < codes.size(); ++i) made[i] = book[(e.axis >= 0 ? i / inner % rows : 0) * levels + codes[i]];
  }
  if (!e.scale || made.empty()) return made;
  const std::vector<float> scale = array(index, PartKind::Scale, *e.scale);
  std::vector<size_t> sizes(e.shape.begin(), e.shape.end()), steps(sizes.size(), 0), place(sizes.size(), 0);
  size_t step = 1;
  for (size_t i = 1; i <= e.scale_shape.size(); ++i) {
    const size_t size = size_t(e.scale_shape[e.scale_shape.size() - i]);
    steps[sizes.size() - i] = size == 1 ? 0 : step;
    step *= size;
  }
  size_t at = 0;
  for (float& number : made) {
    number *= scale[at];
    for (size_t axis = sizes.size(); axis-- > 0;) {
      at += steps[axis];
      if (++place[axis] < sizes[axis]) break;
      at -= steps[axis] * sizes[axis];
      place[axis] = 0;
    }
  }
  return made;
}

}  // namespace tersify::lib
