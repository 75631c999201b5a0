// Lists of entries for the patch geometries that were asked for lately.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "kernels/conv-lists-f32/lane_weights.hpp"

namespace tersify {

class GeometryLists {
 public:
  GeometryLists() = default;
  // Entries begin as indices below `indices`, times two and with a sign where `signs`: nobody walks them yet.
  GeometryLists(std::shared_ptr<PositionedLists> by_index, int indices, bool signs);

  std::shared_ptr<const PositionedLists> lists_for(const std::vector<uint32_t>& positions,
                                                   const std::function<void(PositionedLists&)>& point_units);
  size_t resident_bytes() const;

 private:
  std::vector<std::shared_ptr<PositionedLists>> kept_;  // the one asked for last in front
  size_t count_ = 0;                                    // of entries
  int sign_bits_ = 0;
  bool by_index_ = true;  // the only one is
};

}  // namespace tersify
