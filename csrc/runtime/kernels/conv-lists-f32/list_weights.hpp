// Weights as lists of what is not zero.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/conv-lists-f32/geometry_lists.hpp"

namespace tersify {

constexpr int kInt8High = 255;
constexpr int kFp16Run = 64;  // entries of a row that may be added in 16-bit floats, which keep 11 bits

class ListWeights final : public LaneWeights {
 public:
  // Sign: only the signs of `weight` are kept. Table: every non-zero must be one of `table`.
  // Byte lanes: for 16-bit sums of activations in 0..kInt8High (or ± half of it). Lanes of fp16: for runs of kFp16Run
  // sums.
  ListWeights(const DenseWeight& weight, ValueKind kind, std::vector<float> table, int block_channels,
              Lane lane = Lane::F32, int threads = 1);

  std::shared_ptr<const PositionedLists> lists_for(const std::vector<uint32_t>& positions) override;
  void fill(ConvTask& task, const PositionedLists* lists) const override;
  int chunks() const override { return static_cast<int>(chunks_.size()); }
  int rows() const override { return rows_; }
  int block_channels() const override { return block_channels_; }
  size_t products() const override { return nonzeros_; }
  LaneForm form() const override { return LaneForm::Lists; }
  const char* kernel_name() const override;
  size_t resident_bytes() const override;

  // A row of one block while it is packed.
  struct Pending {
    uint16_t row;
    std::vector<uint16_t> entries{};
    std::vector<float> values{};
    int plus = 0;
    bool flush = false;
    bool continues = false, continued = false;  // a part of the row's entries in this block comes before, after it
  };

 private:
  // A range of output channels while it is packed: [block][row], and where each row begins and ends.
  struct PendingChunk {
    std::vector<std::vector<Pending>> blocks;
    std::vector<int> first, last;  // block; −1: none yet
    void begin_row(int row, int block);
  };
  PendingChunk collect(const DenseWeight& weight, const Chunk& chunk) const;
  void add_entry(Pending& row, int index, float value) const;
  void append_row(const Pending& row, int flags, PositionedLists& lists);
  void pack_chunks(const DenseWeight& weight, int threads, PositionedLists& lists);
  void pack_chunk(const DenseWeight& weight, const Chunk& chunk, PendingChunk& found, PositionedLists& lists);
  void point_units(PositionedLists& lists) const;
  bool signed_entries() const { return kind_ == ValueKind::Sign && !int8(); }
  bool int8() const { return lane_ == Lane::I8; }

  ValueKind kind_;
  int rows_, channels_, block_channels_, blocks_;
  Lane lane_;
  bool flushes_ = false;
  std::vector<float> table_;
  std::vector<Chunk> chunks_;
  std::vector<Row> row_list_;
  size_t nonzeros_ = 0;
  std::vector<uint8_t> codes_;
  std::vector<float> values_;
  std::vector<uint16_t> plus_;
  GeometryLists positioned_;
};

// Ranges of output channels with about as many non-zeros each.
std::vector<Chunk> split_rows(const DenseWeight& weight);

// Input channels whose footprints under one patch share the caches near the core with the sums.
int choose_block(const Window& window, int channels, int vector_bytes, const Patch& patch, bool int8);

// The same or fewer, so that no row can overflow a 16-bit sum within one block.
int int8_block(const DenseWeight& weight, int block_channels);

}  // namespace tersify
