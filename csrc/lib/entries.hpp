// What the directory says of the tensors, checked in every number, and which groups hold their parts.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "codec/model.h"
#include "lib/json.hpp"

namespace tersify::lib {

enum class Dtype { F64, F32, F16, BF16, F8E4M3, F8E5M2, I64, I32, I16, I8, U8, Bool };
int width_of(Dtype dtype);
bool is_float(Dtype dtype);

constexpr int64_t kWholeLevels = -1;  // the group of a codebook that is not stored: 0, 1, …, −2, −1

struct Part {  // an array
  Dtype stored, given;
  int64_t group, elements;
};

struct Entry {
  std::string name;
  std::vector<int64_t> shape;
  int64_t elements = 0;
  int same = -1;        // the entry whose numbers it has, in this shape
  bool turned = false;  // a matrix: the transpose of those numbers
  std::optional<Part> dense, codebook, values, scale;
  std::vector<int64_t> scale_shape;
  int64_t code_group = -1;  // where there are codes
  int levels = 2;
  int axis = -1;
};

enum class PartKind { Codes, Dense, Codebook, Values, Scale };

struct Place {  // of a block
  int entry;
  PartKind part;
  int64_t elements;
};

struct Group {
  std::string codec;
  std::optional<uint32_t> crc;  // none in a small file, which has one for all of it
  int levels = 0;  // of codes; 0: arrays, or nothing
  Dtype dtype = Dtype::U8;
  std::vector<Box> boxes;            // of codes
  std::vector<std::string> kinds;    // of arrays
  std::vector<Place> places;         // in the order in which they lie
  int64_t elements = 0;
};

struct Directory {
  explicit Directory(const Json& json);  // throws BadFile
  std::vector<Entry> entries;
  std::vector<Group> groups;
  // Throws BadFile where there is none. The content of an entry may lie in that of another.
  const Entry& entry(std::string_view name) const;
  int index_of_content(const Entry& entry) const;

 private:
  void place(int entry, PartKind part, int64_t first, const std::vector<Box>& blocks);
  std::map<std::string, int, std::less<>> names_;
};

std::vector<Box> blocks_of(const Box& box);
Box box_of(const std::vector<int64_t>& shape);
// The boxes of a group of arrays; small ones of a kind share one.
std::vector<Box> boxes_of_arrays(const std::vector<std::pair<std::string, int64_t>>& arrays, int64_t piece);

}  // namespace tersify::lib
