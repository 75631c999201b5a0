#include "kernels/conv-lists-f32/geometry_lists.hpp"

#include <algorithm>
#include <numeric>
#include <stdexcept>

namespace tersify {
namespace {

constexpr size_t kKeptGeometries = 4;  // for batch sizes that take turns

}  // namespace

GeometryLists::GeometryLists(std::shared_ptr<PositionedLists> by_index, int indices, bool signs)
    : count_(by_index->entries.size()), sign_bits_(signs) {
  by_index->positions.resize(indices);
  std::iota(by_index->positions.begin(), by_index->positions.end(), 0);
  by_index->entries.shrink_to_fit();
  kept_.push_back(std::move(by_index));
}

std::shared_ptr<const PositionedLists> GeometryLists::lists_for(
    const std::vector<uint32_t>& positions, const std::function<void(PositionedLists&)>& point_units) {
  if (!by_index_)
    for (auto known = kept_.begin(); known != kept_.end(); ++known)
      if ((*known)->positions == positions) {
        std::rotate(kept_.begin(), known, known + 1);
        return kept_.front();
      }
  const int shift = sign_bits_;
  if (*std::max_element(positions.begin(), positions.end()) >> (16 - shift))
    throw std::invalid_argument("a window of this size is too large to pack");
  const PositionedLists& from = *kept_.front();
  std::vector<uint16_t> index(1 + *std::max_element(from.positions.begin(), from.positions.end()));
  for (size_t i = 0; i < from.positions.size(); ++i) index[from.positions[i]] = static_cast<uint16_t>(i);
  auto lists = std::make_shared<PositionedLists>();
  lists->positions = positions;
  lists->units = from.units;
  lists->entries.resize(count_ + kReadAhead);
  std::transform(from.entries.begin(), from.entries.begin() + count_, lists->entries.begin(), [&](uint16_t e) {
    return static_cast<uint16_t>(positions[index[e >> shift]] << shift | (e & shift));
  });
  point_units(*lists);
  if (by_index_) kept_.clear();
  by_index_ = false;
  kept_.insert(kept_.begin(), std::move(lists));
  if (kept_.size() > kKeptGeometries) kept_.pop_back();
  return kept_.front();
}

size_t GeometryLists::resident_bytes() const {
  size_t bytes = 0;
  for (const auto& lists : kept_)
    bytes += lists->entries.size() * sizeof(uint16_t) + lists->units.size() * sizeof(Unit) +
             lists->positions.size() * sizeof(uint32_t);
  return bytes;
}

}  // namespace tersify
