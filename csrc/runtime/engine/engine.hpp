// The whole network as one call, for inputs of one size: values, the operations between them, and a schedule of steps
// over the arenas of a workspace.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "engine/epilogue.hpp"
#include "engine/key_cache.hpp"
#include "engine/packed_weights.hpp"
#include "engine/shape.hpp"
#include "engine/workspace.hpp"
#include "isa/kernel_table.hpp"
#include "layout/patch_geometry.hpp"

namespace tersify {

struct Step {
  explicit Step(const char* name) : kernel(name) {}
  int tasks = 0;
  size_t scratch_bytes = 0;  // per thread
  std::vector<int> reads, writes;
  std::function<void(char* const* buffers, int task, char* scratch)> run;
  std::function<void()> prepare{};  // before every run; may be empty
  std::function<void()> release{};  // after it
  const char* kernel;               // what a profile calls it
  int value = -1;                   // the output of the operation that it belongs to
};

// What a run spent in the steps of one operation, in microseconds of wall time: work of threads side by side counts
// once.
struct StepTime {
  int value;
  const char* kernel;
  double microseconds;
};

class Schedule;

struct Op {
  std::vector<int> inputs;
  int output = -1;
  int maxima = -1;  // of a convolution: the value that holds its maxima, all that is wanted of it
  Window pool{};    // and their windows
  bool takes_maxima = false;
  bool takes_slopes = false;  // a PReLU behind it can be part of it
  std::shared_ptr<const std::vector<float>> slopes{};  // of a PReLU: the operation, or what is part of it
  std::function<void(Schedule&, const Op&)> plan;
};

// `items` pieces of `shape`, one behind the other. Two values of the same size in all may be the same memory.
struct Value {
  int items;
  Shape shape;
  Quant quant{};
  bool ids = false;     // 64-bit row numbers of embeddings
  int root = -1;        // of ids: the input that they are
  int64_t rows = 0;     // of ids of an input: how many rows the smallest of its embeddings has; 0: none reads them
  bool folded = false;  // only its maxima exist

  int64_t numel() const { return int64_t(items) * shape.numel(); }
  size_t element_bytes() const { return ids ? sizeof(int64_t) : sizeof(float); }
};

// Memory of a caller: `count` elements.
struct Span {
  char* data;
  int64_t count;
};

// One axis of what a move makes: places low..high come from the input, `stride` numbers apart; the others are filled.
struct MoveAxis {
  int size, low, high;
  int64_t stride;
};

struct Move {
  std::vector<MoveAxis> axes;  // of an item, outermost first
  int64_t offset = 0;          // where the place of all zeros lies in the input
  float fill = 0;
};

struct Attention {
  int heads, key_heads, queries, keys, width, value_width;
  float scale;
  bool causal;
  // Whether a value holds [tokens][heads][width] instead of [heads][tokens][width].
  bool q_tokens_first, k_tokens_first, v_tokens_first, out_tokens_first;
  bool mask_heads, mask_queries;  // whether the mask has these axes; it always has the keys
  bool mask_added;                // to the scores; else keys count where it is not 0
};

// Of one layer over a cache. Every token holds queries, keys and values, all heads of each.
struct CachedAttention {
  int layer, heads;
  float scale;
  int window;    // the last so many positions are seen; 0: all
  bool rotated;  // queries and keys turn with their position, if the cache knows how
  std::vector<float> query_norm, key_norm;  // weights of RMS norms over every head, or empty
  float eps;
};

void check_quant(const Quant& quant);  // throws for what bytes do not hold
void check_levels(const Quant& levels);  // the same; scale 0: signs
void check_bit_levels(const Quant& levels);  // throws for more than three levels
int middle_level(const Quant& levels);  // that lies as zero among bits

class Engine {
 public:
  explicit Engine(std::shared_ptr<Workspace> workspace);
  ~Engine();

  int input(int items, Shape shape);
  int input_ids(int items, int count);
  // mean: not null where the output is one number a channel, the mean of its positions, finished so.
  // Lists of 16-bit lanes round weights, `in`, `residual` and the output (but not its mean) to 16-bit floats.
  int conv(int in, std::shared_ptr<const ConvWeights> weights, Epilogue epilogue, int residual, const Epilogue* mean);
  int conv_dense(int in, std::shared_ptr<const ConvDenseWeights> weights, Epilogue epilogue, int residual,
                 const Epilogue* mean);  // every weight, in float lanes
  // The same on byte lanes: signs only; `in`, `residual` and the output (but not its mean) are quantized values.
  int conv_i8(int in, std::shared_ptr<const ConvInt8Weights> weights, Epilogue epilogue, int residual, Quant output,
              const Epilogue* mean);
  // Whole numbers, zeros and all; `in` is rounded as `quant` says, the output is not.
  int conv_codes(int in, std::shared_ptr<const ConvCodesWeights> weights, Epilogue epilogue, int residual, Quant quant);
  void quantize(int value, Quant quant);
  int linear(int in, std::shared_ptr<LinearWeights> weights, Epilogue epilogue);
  // Every vector of activations is rounded to 8 bits of its own scale.
  int linear_i8(int in, std::shared_ptr<const LinearInt8Weights> weights, Epilogue epilogue);
  // Signs alone; `in` becomes the nearest of two or three levels (scale 0: signs).
  int linear_bits(int in, std::shared_ptr<const BitWeights> weights, Epilogue epilogue, Quant levels);
  int conv_bits(int in, std::shared_ptr<const ConvBitWeights> weights, Epilogue epilogue, int residual, Quant levels);
  // The nearest of some levels, which are floats.
  int levels(int in, Quant levels);
  // Every weight, of float vectors.
  int linear_rows(int in, std::shared_ptr<const RowWeights> weights, Epilogue epilogue);
  int embedding_rows(int in, std::shared_ptr<const RowWeights> weights, std::vector<float> scale);
  // All tokens of a run as one item; the cache says which they are.
  int cached_attention(int in, std::shared_ptr<KeyCache> cache, CachedAttention attention);
  // Every number of a vector × its own factor.
  int scale_columns(int in, std::vector<float> factors);
  int wanted_rows(int in, std::shared_ptr<KeyCache> cache, int count);
  // activation(first half) × second half of every vector, both of `width` numbers; `square`: the first half twice.
  int gate(int in, int width, Epilogue activation, bool square);
  // The output may have one row or column more than whole windows fill: its maxima then see fewer positions.
  int max_pool(int in, const Window& window, int output_h, int output_w);
  int avg_pool(int in, const Window& window, int output_h, int output_w, bool count_padding);
  // Maxima of windows side by side over a convolution that nobody else reads: part of it wherever the layout allows.
  int fold_max_pool(int conv, const Window& window, int output_h, int output_w);
  int global_mean(int in, Epilogue epilogue);
  int elementwise(int a, int b, bool multiply, Epilogue epilogue);  // b −1: none
  int concatenate(const std::vector<int>& inputs);                  // along the channels
  int view(int in, int items, Shape shape);
  int embedding(int in, std::shared_ptr<const EmbeddingWeights> weights);
  int softmax(int in, int count);
  int softmax_along(int in, int count, int apart);  // of numbers that do not lie side by side
  // Not centred: no mean is taken off (RMS norm).
  int layer_norm(int in, int count, std::vector<float> weight, std::vector<float> bias, float eps, bool centred);
  // Groups of channels, each with the mean and the spread of all its positions.
  int group_norm(int in, int groups, std::vector<float> weight, std::vector<float> bias, float eps);
  int prelu(int in, std::vector<float> slopes);  // one a channel: negative numbers are multiplied with it
  int curve(int in, Curve curve);
  // With a constant of the size of an item, number by number.
  int with_constant(int in, std::vector<float> constant, bool multiply);
  int move(int in, Shape shape, Move move);
  // Queries, keys, values and perhaps a mask. `mask`: one that is the same at every run, of one item or of a few that
  // follow each other again and again; empty: none.
  int attention(const std::vector<int>& inputs, const Attention& attention, std::vector<float> mask = {});
  // From what the input makes of all gates at every step, [steps][gates × size], the states [steps][size]. A GRU's gates
  // come without what the state adds to them. `first`: the state, and of an LSTM the cell, that it begins with; none:
  // zeros. `keeps_cell`: the last cell of an LSTM stands behind the states.
  int recurrent(int in, std::shared_ptr<const RecurrentWeights> weights, bool backwards,
                const std::vector<int>& first = {}, bool keeps_cell = false);
  void outputs(const std::vector<int>& values);

  // Nothing can be added from now on.
  void seal();
  // False, and the outputs are of no use, where an input holds NaN or infinity, or a curve makes one: lists skip zeros,
  // so 0 · infinity would vanish.
  bool run(const std::vector<Span>& inputs, const std::vector<Span>& outputs);
  // The same, of any numbers, and how long each step took.
  std::vector<StepTime> profile(const std::vector<Span>& inputs, const std::vector<Span>& outputs);

  const Value& value(int number) const { return values_.at(number); }
  Workspace& workspace() const { return *workspace_; }
  int64_t input_count(size_t number) const { return values_[inputs_[number]].numel(); }
  bool input_is_ids(size_t number) const { return values_[inputs_[number]].ids; }
  size_t input_number() const { return inputs_.size(); }
  int64_t output_count(size_t number) const { return values_[outputs_[number]].numel(); }
  size_t output_number() const { return outputs_.size(); }
  size_t weight_bytes() const;  // of the packed forms that exist by now
  size_t arena_bytes() const;   // that a run needs; 0 before the first

 private:
  friend class Schedule;
  using Turn = Workspace::Turn;
  using Inputs = std::vector<const char*>;
  using Outputs = std::vector<char*>;
  struct Plans;

  int new_value(int items, Shape shape);
  int add(std::vector<int> inputs, Shape shape, std::function<void(Schedule&, const Op&)> plan);
  const Value& at(int value) const;  // throws for a value that does not exist, or holds no floats
  const Value& residual_at(int residual, int items, const Shape& shape) const;
  template <class Weights>
  void use(const std::shared_ptr<Weights>& weights, const char* kind);
  int list_conv(int in, std::shared_ptr<const ListConvWeights> weights, Epilogue epilogue, int residual,
                const Epilogue* mean);
  int pool(int in, const Window& window, bool is_max, bool count_padding, int output_h, int output_w);
  int vectors_of(int in, int features) const;
  int view_of(int in, int items, Shape shape);
  int add_embedding(int in, int rows, int width, std::function<void(int64_t row, float* out)> read);
  const Op* prelu_behind(const Op& op) const;  // the one that can be part of it; null: none
  void check_folds(int conv, const Window& window, int output_h, int output_w) const;

  void check_spans(const std::vector<Span>& inputs, const std::vector<Span>& outputs) const;
  void check_ids(const std::vector<Span>& inputs) const;
  bool all_finite(Turn& turn, const std::vector<Span>& inputs) const;
  void plan();
  void run_all(Turn& turn, const std::vector<Span>& inputs, const std::vector<Span>& outputs,
               std::vector<StepTime>* profile);
  void run_portions(Turn& turn, const Inputs& inputs, const Outputs& outputs, std::vector<StepTime>* profile);
  void run_together(Turn& turn, const Inputs& inputs, const Outputs& outputs, std::vector<StepTime>* profile);
  template <class Pointers>
  Pointers skip(const Pointers& pointers, const std::vector<int>& values, int portions) const;

  std::shared_ptr<Workspace> workspace_;
  std::vector<Value> values_;
  std::vector<Op> ops_;
  std::vector<int> inputs_, outputs_;
  std::map<int, int> views_;  // values that are others under another shape
  std::vector<std::shared_ptr<const PackedWeights>> weights_;
  bool sealed_ = false;
  std::atomic<bool> finite_{true};  // what the curves of a run made; one run at a time has the workspace
  std::unique_ptr<Plans> plans_;  // made by the first run
};

template <class Weights>
void Engine::use(const std::shared_ptr<Weights>& weights, const char* kind) {
  if (!weights) throw std::invalid_argument(std::string("a ") + kind + " needs weights");
  if (weights->workspace() && weights->workspace() != workspace_.get())
    throw std::invalid_argument(std::string("the weights of a ") + kind + " were packed for another workspace");
  if (std::find(weights_.begin(), weights_.end(), weights) == weights_.end()) weights_.push_back(weights);
}

}  // namespace tersify
