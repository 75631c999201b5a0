// The weights of one layer in the forms that kernels read. Engines of one workspace share them.
#pragma once

#include <memory>
#include <vector>

#include "engine/shape.hpp"
#include "engine/workspace.hpp"
#include "kernels/conv-dense-f32/dense_weights.hpp"
#include "kernels/conv-pixels-f32/pixel_weights.hpp"
#include "kernels/embedding-f32/embedding_table.hpp"
#include "kernels/gemv-trits-f32/gemv_weights.hpp"
#include "kernels/linear-2bit-i8/code_matrix.hpp"
#include "kernels/linear-bits/bit_matrix.hpp"
#include "kernels/linear-lookup-i8/lookup_matrix.hpp"
#include "kernels/linear-lookup-i8/pair_matrix.hpp"
#include "kernels/linear-picks-i8/pick_matrix.hpp"
#include "kernels/linear-rows-f32/row_matrix.hpp"
#include "kernels/recurrent-f32/state_matrix.hpp"
#include "layout/patch_geometry.hpp"

namespace tersify {

class PackedWeights {
 public:
  virtual ~PackedWeights() = default;
  size_t resident_bytes() const;  // of the forms that exist by now: some are packed when they are first needed
  const Workspace* workspace() const { return workspace_.get(); }  // null: any may use them

 protected:
  explicit PackedWeights(std::shared_ptr<Workspace> workspace) : workspace_(std::move(workspace)) {}
  const std::shared_ptr<Workspace> workspace_;

 private:
  friend class Engine;
  virtual size_t bytes() const = 0;  // asked for under the workspace's lock
};

// For convolutions over lanes: lists of what is not zero, or everything.
class ListConvWeights : public PackedWeights {
 public:
  const Window window;
  const int rows, channels;
  const int row_weights;  // zeros count, too
  const Lane lane;
  virtual std::shared_ptr<LaneWeights> lists() const { return lists_; }
  virtual std::shared_ptr<const PixelWeights> pixels() const { return nullptr; }  // null: never

 protected:
  ListConvWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window, Lane lane,
                  std::shared_ptr<LaneWeights> lists);
  ListConvWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window, ValueKind kind,
                  std::vector<float> table, Lane lane, const Shape& output);
  size_t bytes() const override { return lists_ ? lists_->resident_bytes() : 0; }
  mutable std::shared_ptr<LaneWeights> lists_;
};

class ConvWeights final : public ListConvWeights {
 public:
  // Sign: only the signs of `weight` count. `output`: the usual size of what the weights will make, for which they are
  // cut.
  ConvWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window, ValueKind kind,
              std::vector<float> table, Lane lane, const Shape& output);
};

// Every weight, zeros and all: with rows in lanes or, packed when it is first needed, over lanes of positions.
class ConvDenseWeights final : public ListConvWeights {
 public:
  ConvDenseWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window,
                   const Shape& output);
  std::shared_ptr<LaneWeights> lists() const override;
  std::shared_ptr<const PixelWeights> pixels() const override { return pixels_; }

 private:
  size_t bytes() const override { return ListConvWeights::bytes() + pixels_->resident_bytes(); }
  const Shape output_;
  const std::shared_ptr<const PixelWeights> pixels_;
};

// Signs for activations in byte lanes.
class ConvInt8Weights final : public ListConvWeights {
 public:
  ConvInt8Weights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window,
                  const Shape& output);
  const std::vector<int32_t> sign_sums;  // of each row
};

// Whole numbers of −127..127, zeros and all, pixel by pixel: all channels of a tap together.
class ConvCodesWeights final : public PackedWeights {
 public:
  ConvCodesWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window);
  const Window window;
  const int rows, channels, pixel_bytes;
  const CodeMatrix codes;
  const std::vector<int32_t> level_sums;  // of each row

 private:
  size_t bytes() const override { return codes.resident_bytes() + level_sums.size() * sizeof(int32_t); }
};

// For single vectors, for many, or both, each packed when it is first needed.
class LinearWeights final : public PackedWeights {
 public:
  // `dense`: many vectors meet every weight, zeros and all.
  LinearWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features, ValueKind kind,
                std::vector<float> table, bool dense);
  const int rows, features;
  // Products of one vector with the lists.
  double products() const { return double(vectors_ ? vectors_->nonzeros() : lists_->products()); }
  const std::shared_ptr<GemvWeights>& vectors() const { return vectors_; }  // null: never
  const std::shared_ptr<LaneWeights>& lists();
  const std::shared_ptr<const PixelWeights>& pixels();  // instead of lists, where every weight is met
  bool dense() const { return dense_; }

 private:
  size_t bytes() const override;
  void pack_lists(const float* weight);
  ValueKind kind_;
  std::vector<float> table_;
  bool dense_;
  std::shared_ptr<GemvWeights> vectors_;
  std::shared_ptr<LaneWeights> lists_;
  std::shared_ptr<const PixelWeights> pixels_;
};

// Whole numbers in the form that one vector needs least time for: dense codes, signs to look up or, where most are
// zero, lists of the others.
class LinearInt8Weights final : public PackedWeights {
 public:
  // `signs`: only those count; else the weights are whole numbers.
  LinearInt8Weights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features, bool signs);
  // Numbers of levels, which are whole numbers, for networks that no cache holds. `smallest`: of signs the form of
  // fewest bytes is taken, else that of fewest bytes among those that are not looked up.
  LinearInt8Weights(std::shared_ptr<Workspace> workspace, const uint8_t* codes, int rows, int features,
                    const std::vector<int>& levels, bool smallest);
  const int rows, features;
  std::shared_ptr<const LookupMatrix> lookups;  // null: too few rows, or another form is cheaper
  std::shared_ptr<const PairMatrix> pairs;      // null: not signs, or the CPU has better ways
  std::shared_ptr<const PickMatrix> picks;      // null: too few zeros
  std::shared_ptr<const CodeMatrix> codes;      // null: never needed

  static double code_cost(int rows, int features, int vectors);

 private:
  void pack(ByteRows bytes, bool streamed, bool may_look_up);
  size_t bytes() const override;
};

// Signs for activations of two or three levels.
class BitWeights final : public PackedWeights {
 public:
  BitWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features);
  const int features;
  const BitMatrix matrix;

 private:
  size_t bytes() const override { return matrix.resident_bytes(); }
};

// The same pixel by pixel: all channels of a tap together.
class ConvBitWeights final : public PackedWeights {
 public:
  ConvBitWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window);
  const Window window;
  const int channels, pixel_bytes, features;
  const BitMatrix matrix;

 private:
  size_t bytes() const override { return matrix.resident_bytes(); }
};

// Every weight for float vectors, however many; rows can be read one by one, too.
class RowWeights final : public PackedWeights {
 public:
  RowWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features);
  RowWeights(std::shared_ptr<Workspace> workspace, const uint8_t* codes, int rows, int features,
             std::vector<float> levels);
  const RowMatrix matrix;

 private:
  size_t bytes() const override { return matrix.resident_bytes(); }
};

enum class Cell { Lstm, Gru };

// What a recurrent layer multiplies its state with, [gates × size][size], and what its state's gates begin with (GRU;
// an LSTM's are part of what the input makes).
class RecurrentWeights final : public PackedWeights {
 public:
  RecurrentWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features, Cell cell,
                   std::vector<float> bias);
  const Cell cell;
  const std::vector<float> bias;
  const StateMatrix matrix;

 private:
  size_t bytes() const override { return matrix.resident_bytes() + bias.size() * sizeof(float); }
};

class EmbeddingWeights final : public PackedWeights {
 public:
  EmbeddingWeights(const float* weight, int rows, int width, std::vector<float> levels, std::vector<float> scale);
  const int rows, width;
  const EmbeddingTable table;

 private:
  size_t bytes() const override { return table.resident_bytes(); }
};

// Throws for sizes that cannot be, and for what is not finite.
void check_weights(const DenseWeight& weight);
void check_window(const Window& window);

}  // namespace tersify
