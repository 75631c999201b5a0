#include "kernels/conv-lists-f32/list_weights.hpp"

#include <algorithm>
#include <stdexcept>
#include <string>

#include "threads/in_parts.hpp"

namespace tersify {
namespace {

// Measured: more than the first-level cache holds, but shorter lists cost more; bytes wait less for the second level.
constexpr size_t kFootprintBytes = 44 << 10, kInt8FootprintBytes = 96 << 10;
constexpr int kMaxChunks = 16;
constexpr int kRowsPerChunk = 32;
constexpr int kInt16Most = 32767;
constexpr int kMaxChunkRows = 0xffff;

using Pending = ListWeights::Pending;

// Marks the blocks after which a row's 16-bit sum could overflow: activations are all ≥ 0 or at most half as
// large, so a sum stays within `limit` entries of one sign. Where nobody counts signs, all are of one.
bool mark_flushes(std::vector<std::vector<Pending>>& blocks, int rows, int limit) {
  std::vector<int> plus(rows, 0), minus(rows, 0);
  std::vector<Pending*> before(rows, nullptr);
  bool any = false;
  for (auto& block : blocks)
    for (Pending& p : block) {
      const int more_plus = p.plus, more_minus = static_cast<int>(p.entries.size()) - p.plus;
      if (before[p.row] && std::max(plus[p.row] + more_plus, minus[p.row] + more_minus) > limit) {
        before[p.row]->flush = any = true;
        plus[p.row] = minus[p.row] = 0;
      }
      plus[p.row] += more_plus;
      minus[p.row] += more_minus;
      before[p.row] = &p;
    }
  return any;
}

// Longer rows become several parts, between which their sums can be moved.
void cut_rows(std::vector<std::vector<Pending>>& blocks, size_t most) {
  for (auto& block : blocks) {
    std::vector<Pending> parts;
    for (Pending& whole : block)
      for (size_t at = 0; at == 0 || at < whole.entries.size(); at += most) {
        const size_t end = std::min(whole.entries.size(), at + most);
        parts.push_back({.row = whole.row,
                         .entries = {whole.entries.begin() + at, whole.entries.begin() + end},
                         .values = {whole.values.begin() + at, whole.values.begin() + end},
                         .continues = at > 0,
                         .continued = end < whole.entries.size()});
      }
    block = std::move(parts);
  }
}

// The kernel takes entries of one sign in pairs: where one is left over it gets a zero for company.
void make_even(std::vector<std::vector<Pending>>& blocks, uint16_t zero) {
  for (auto& block : blocks)
    for (Pending& p : block) {
      if (p.plus % 2) p.entries.insert(p.entries.begin() + p.plus++, zero);
      if (p.entries.size() % 2) p.entries.push_back(zero);
    }
}

}  // namespace

std::vector<Chunk> split_rows(const DenseWeight& w) {
  std::vector<Chunk> made;
  const size_t per_row = size_t(w.channels / w.groups) * w.taps;
  std::vector<size_t> until(w.rows + 1, 0);
  for (int r = 0; r < w.rows; ++r) {
    const float* row = w.data + r * per_row;
    until[r + 1] = until[r] + 1 + (per_row - std::count(row, row + per_row, 0.0f));
  }
  int chunks = std::clamp(w.rows / kRowsPerChunk, 1, kMaxChunks);
  if (chunks > 1) chunks += chunks % 2;  // so that two threads get the same
  for (int c = 0, begin = 0; c < chunks; ++c) {
    const size_t target = until.back() * (c + 1) / chunks;
    int end = static_cast<int>(std::lower_bound(until.begin(), until.end(), target) - until.begin());
    end = c + 1 == chunks ? w.rows : std::clamp(end, begin, w.rows);
    for (; begin < end; begin += made.back().rows) made.push_back({begin, std::min(end - begin, kMaxChunkRows)});
  }
  return made;
}

int choose_block(const Window& window, int channels, int vector_bytes, const Patch& patch, bool int8) {
  const Axis y = make_axis(patch.h, window.kernel_h, window.stride_h, window.pad_h, window.dilation_h);
  const Axis x = make_axis(patch.w, window.kernel_w, window.stride_w, window.pad_w, window.dilation_w);
  const size_t bytes = y.input.size() * x.input.size() * vector_bytes;
  const size_t most = int8 ? kInt8FootprintBytes : kFootprintBytes;
  const int limit = std::max<int>(1, std::min<size_t>(most / bytes, kCountMask / window.taps()));
  const int blocks = (channels + limit - 1) / limit;
  return (channels + blocks - 1) / blocks;
}

int int8_block(const DenseWeight& w, int block) {
  const int per_group = w.channels / w.groups, limit = kInt16Most / kInt8High;
  for (;; block = (block + 1) / 2) {
    int most = 0;
    for (int r = 0; r < w.rows; ++r) {
      const int base = r / (w.rows / w.groups) * per_group;
      int plus = 0, minus = 0;
      for (int c = 0; c < per_group; ++c) {
        if ((base + c) % block == 0) plus = minus = 0;
        for (int tap = 0; tap < w.taps; ++tap) {
          const float value = w.data[(size_t(r) * per_group + c) * w.taps + tap];
          plus += value > 0;
          minus += value < 0;
        }
        most = std::max({most, plus, minus});
      }
    }
    if (most <= limit || block == 1) return block;
  }
}

ListWeights::ListWeights(const DenseWeight& weight, ValueKind kind, std::vector<float> table, int block_channels,
                         Lane lane, int threads)
    : kind_(kind),
      rows_(weight.rows),
      channels_(weight.channels),
      block_channels_(block_channels),
      blocks_((weight.channels + block_channels - 1) / block_channels),
      lane_(lane),
      table_(std::move(table)) {
  if (block_channels * weight.taps > kCountMask)
    throw std::invalid_argument("a kernel of " + std::to_string(weight.taps) + " taps is too large to pack");
  if (int8() && (kind != ValueKind::Sign || int8_block(weight, block_channels) != block_channels ||
                 weight.taps * kInt8High > kInt16Most))
    throw std::invalid_argument("16-bit sums need ternary weights and kernels of fewer taps");
  chunks_ = split_rows(weight);
  auto lists = std::make_shared<PositionedLists>();
  pack_chunks(weight, threads, *lists);
  nonzeros_ = lists->entries.size();
  row_list_.shrink_to_fit();
  codes_.shrink_to_fit();
  values_.shrink_to_fit();
  plus_.shrink_to_fit();
  positioned_ = {std::move(lists), block_channels * weight.taps + 1, signed_entries()};  // the last index: a zero
}

void ListWeights::pack_chunks(const DenseWeight& weight, int threads, PositionedLists& lists) {
  const size_t weights = size_t(weight.rows) * (weight.channels / weight.groups) * weight.taps;
  std::vector<PendingChunk> pending(chunks_.size());
  in_parts(chunks_.size(), std::min(chunks(), threads_for(weights, threads)), [&](int, size_t begin, size_t end) {
    for (size_t i = begin; i < end; ++i) pending[i] = collect(weight, chunks_[i]);
  });
  for (size_t i = 0; i < chunks_.size(); ++i) pack_chunk(weight, chunks_[i], pending[i], lists);
}

std::shared_ptr<const PositionedLists> ListWeights::lists_for(const std::vector<uint32_t>& positions) {
  return positioned_.lists_for(positions, [this](PositionedLists& lists) { point_units(lists); });
}

void ListWeights::point_units(PositionedLists& lists) const {
  const Row* row = row_list_.data();
  const uint16_t* entry = lists.entries.data();
  const uint8_t* code = codes_.data();
  const float* value = values_.data();
  const uint16_t* plus = plus_.data();
  for (Unit& unit : lists.units) {
    unit = {.rows = row,
            .row_count = unit.row_count,
            .entries = entry,
            .codes = code,
            .values = value,
            .pairs = nullptr,
            .plus = plus,
            .entry_count = 0,
            .first = false,
            .last = false};
    size_t count = 0;
    for (uint32_t r = 0; r < unit.row_count; ++r) count += row[r].count & kCountMask;
    row += unit.row_count;
    entry += count;
    if (kind_ == ValueKind::Table) code += count;
    if (kind_ == ValueKind::Float) value += count;
    if (int8()) plus += unit.row_count;
  }
}

// Every row of the chunk, its non-zeros block by block of input channels.
ListWeights::PendingChunk ListWeights::collect(const DenseWeight& w, const Chunk& chunk) const {
  const int per_group = w.channels / w.groups, rows_per_group = w.rows / w.groups;
  PendingChunk found{.blocks = std::vector<std::vector<Pending>>(blocks_),
                     .first = std::vector<int>(chunk.rows, -1),
                     .last = std::vector<int>(chunk.rows, -1)};
  for (int r = 0; r < chunk.rows; ++r) {
    const int row = chunk.first_row + r, base = row / rows_per_group * per_group;
    const float* values = w.data + size_t(row) * per_group * w.taps;
    for (int channel = base; channel < base + per_group;) {
      const int b = channel / block_channels_, end = std::min(base + per_group, (b + 1) * block_channels_);
      const int first = (channel - b * block_channels_) * w.taps, count = (end - channel) * w.taps;
      for (int i = 0; i < count; ++i) {
        if (values[i] == 0.0f) continue;
        if (found.last[r] != b) found.begin_row(r, b);
        add_entry(found.blocks[b].back(), first + i, values[i]);
      }
      values += count;
      channel = end;
    }
    if (found.first[r] < 0) found.begin_row(r, 0);  // an empty row still has an epilogue: its shift and residual count
  }
  return found;
}

void ListWeights::PendingChunk::begin_row(int row, int block) {
  blocks[block].push_back({.row = static_cast<uint16_t>(row)});
  last[row] = block;
  if (first[row] < 0) first[row] = block;
}

// Bytes keep the positive entries in front; all else keeps the order of the weights.
void ListWeights::add_entry(Pending& row, int index, float value) const {
  if (int8() && value > 0) {
    row.entries.insert(row.entries.begin() + row.plus++, static_cast<uint16_t>(index));
    return;
  }
  row.entries.push_back(static_cast<uint16_t>(signed_entries() ? index * 2 + (value < 0) : index));
  row.values.push_back(value);
}

void ListWeights::pack_chunk(const DenseWeight& w, const Chunk& chunk, PendingChunk& found, PositionedLists& lists) {
  if (lane_ == Lane::F16) {
    cut_rows(found.blocks, kFp16Run);
    flushes_ |= mark_flushes(found.blocks, chunk.rows, kFp16Run);
  }
  if (int8()) {
    flushes_ |= mark_flushes(found.blocks, chunk.rows, kInt16Most / kInt8High);
    make_even(found.blocks, static_cast<uint16_t>(block_channels_ * w.taps));
  }
  for (int b = 0; b < blocks_; ++b) {
    std::vector<Pending>& rows = found.blocks[b];
    // Rows of like length follow each other, so the CPU foresees where their lists end.
    std::stable_sort(rows.begin(), rows.end(), [](const Pending& x, const Pending& y) {
      return std::make_pair(x.entries.size(), x.plus) > std::make_pair(y.entries.size(), y.plus);
    });
    lists.units.push_back({});
    lists.units.back().row_count = static_cast<uint32_t>(rows.size());
    for (const Pending& row : rows) {
      const bool begins = found.first[row.row] == b && !row.continues,
                 ends = found.last[row.row] == b && !row.continued;
      append_row(row, (begins ? kFirst : 0) | (ends ? kLast : 0) | (row.flush ? kFlush : 0), lists);
    }
  }
}

void ListWeights::append_row(const Pending& row, int flags, PositionedLists& lists) {
  if (int8()) plus_.push_back(static_cast<uint16_t>(row.plus));
  row_list_.push_back({row.row, static_cast<uint16_t>(row.entries.size() | flags)});
  lists.entries.insert(lists.entries.end(), row.entries.begin(), row.entries.end());
  if (kind_ == ValueKind::Float) values_.insert(values_.end(), row.values.begin(), row.values.end());
  if (kind_ != ValueKind::Table) return;
  for (float value : row.values) {
    const auto found = std::find(table_.begin(), table_.end(), value);
    if (found == table_.end()) throw std::invalid_argument("a weight is missing from its table");
    codes_.push_back(static_cast<uint8_t>(found - table_.begin()));
  }
}

void ListWeights::fill(ConvTask& task, const PositionedLists* lists) const {
  task.kind = kind_;
  task.table = table_.data();
  task.units = lists ? lists->units.data() : nullptr;
  task.chunks = chunks_.data();
  task.blocks = blocks_;
  task.block_channels = block_channels_;
  task.channels = channels_;
  task.flushes = flushes_;
}

const char* ListWeights::kernel_name() const {
  if (int8()) return "sparse signs, int8";
  const bool fp16 = lane_ == Lane::F16;
  switch (kind_) {
    case ValueKind::Sign:
      return fp16 ? "sparse signs, fp16" : "sparse signs";
    case ValueKind::Table:
      return fp16 ? "sparse table, fp16" : "sparse table";
    default:
      return fp16 ? "sparse values, fp16" : "sparse values";
  }
}

size_t ListWeights::resident_bytes() const {
  size_t bytes = row_list_.size() * sizeof(Row) + codes_.size() + values_.size() * sizeof(float) +
                 plus_.size() * sizeof(uint16_t) + table_.size() * sizeof(float) + chunks_.size() * sizeof(Chunk);
  return bytes + positioned_.resident_bytes();
}

}  // namespace tersify
