// The whole network as one call: values, the operations between them, and, for each batch size met, a schedule of steps
// over one arena.
#pragma once

#include <cmath>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "gemv.hpp"
#include "geometry.hpp"
#include "isa.hpp"
#include "kernels.hpp"
#include "layout.hpp"
#include "memory.hpp"
#include "pool.hpp"
#include "weights.hpp"

namespace tersify {

// The constants of a Finish, owned.
struct FinishData {
  std::vector<float> scale, shift, scale2, shift2;
  Act act = Act::Clamp;
  float low = -INFINITY, high = INFINITY;
  Finish view() const;
};

struct Shape {  // of one image
  int c, h, w;
  int numel() const { return c * h * w; }
};

struct Step {
  int tasks = 0;
  size_t scratch_bytes = 0;  // per thread
  std::vector<int> reads, writes;
  std::function<void(char* const* buffers, int task, char* scratch)> run;
  std::function<void()> prepare{};  // before every run; may be empty
  const char* kernel = "";          // what a profile calls it
  int value = -1;                   // the output of the operation that it belongs to
};

// What a run spent in the steps of one operation, in microseconds of wall time: work of threads side by side counts once.
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
  std::function<void(Schedule&, const Op&)> plan;
};

class Engine {
 public:
  Engine(Isa isa, int threads);
  ~Engine();

  int input(Shape shape);
  // mean: not null where the output is one number a channel, the mean of its places, finished so.
  // half: weights, `in`, `residual` and the output (but not its mean) are rounded to 16-bit floats.
  int conv(int in, const Window& window, int groups, const float* weight, int rows, ValueKind kind,
           std::vector<float> table, FinishData finish, int residual, const FinishData* mean, bool half = false);
  // The same on byte lanes: signs only; `in`, `residual` and the output (but not its mean) are quantized values.
  int narrow_conv(int in, const Window& window, int groups, const float* weight, int rows, FinishData finish,
                  int residual, Quant output, const FinishData* mean);
  // Signs only, zeros and all in two bits each; `in` is rounded as `quant` says, the output is not.
  int dense_conv(int in, const Window& window, const float* weight, int rows, FinishData finish, int residual,
                 Quant quant);
  void quantize(int value, Quant quant) { quants_.at(value) = quant; }
  int linear(int in, int features, const float* weight, int rows, ValueKind kind, std::vector<float> table,
             FinishData finish);
  // Few whole numbers, as dense codes of two or four bits, signs to look up or, where most are zero, lists of the others;
  // every vector of activations is rounded to 8 bits of its own scale.
  int byte_linear(int in, int features, const float* weight, int rows, FinishData finish);
  // The output may have one row or column more than whole windows fill: its maxima then see fewer places.
  int pool(int in, const Window& window, bool is_max, bool count_padding, Shape output);
  // Maxima of windows side by side over a convolution that nobody else reads: part of it wherever the layout allows.
  int fold_maxima(int conv, const Window& window, Shape output);
  int global_mean(int in, FinishData finish);
  int elementwise(int a, int b, bool multiply, FinishData finish);  // b < 0: none
  int concatenate(const std::vector<int>& inputs);                  // along the channels
  int view(int in, Shape shape);
  // `in` holds 64-bit numbers of rows, as twice as many floats; the caller has checked them.
  int embedding(int in, const float* weight, int rows, int width, std::vector<float> table, std::vector<float> scale);
  int softmax(int in, int count);
  int layer_norm(int in, int count, std::vector<float> weight, std::vector<float> bias, float eps);
  void outputs(const std::vector<int>& values) { outputs_ = values; }

  // `profile`: where to put the times of all steps; null costs nothing.
  void run(int n, const std::vector<const float*>& inputs, const std::vector<float*>& outputs,
           std::vector<StepTime>* profile = nullptr);

  int threads() const { return pool_.threads(); }
  Isa isa() const { return isa_; }
  size_t weight_bytes() const;  // of the packed forms that exist by now
  size_t arena_bytes() const;

 private:
  friend class Schedule;
  int add(std::vector<int> inputs, Shape shape, std::function<void(Schedule&, const Op&)> plan);
  const Schedule& schedule(int n, int threads);
  int portion(int n);
  void run_portions(int count, int portion, const std::vector<const float*>& inputs,
                    const std::vector<float*>& outputs, std::vector<StepTime>* profile);
  void run_together(int n, const std::vector<const float*>& inputs, const std::vector<float*>& outputs,
                    std::vector<StepTime>* profile);
  template <class T>
  std::vector<T*> skip_images(const std::vector<T*>& pointers, const std::vector<int>& values, int images) const;
  // `output`: the size of the image that the weights will make.
  std::shared_ptr<SparseWeights> pack(const DenseWeight& weight, const Window& window, const Shape& output,
                                      ValueKind kind, std::vector<float> table, Lane lane = Lane::Float);

  Isa isa_;
  const Kernels& kernels_;
  Pool pool_;
  std::vector<Shape> shapes_;
  std::vector<Quant> quants_;  // one a value
  std::vector<Op> ops_;
  std::vector<int> inputs_, outputs_;
  std::map<int, int> views_;  // values that are others under another shape
  std::map<std::pair<int, int>, std::unique_ptr<Schedule>> schedules_;  // by batch size and threads
  std::map<int, int> portions_;
  std::vector<AlignedBytes> arenas_, scratch_;  // one a thread
  std::mutex running_;
  std::vector<std::function<size_t()>> weight_sizes_;
};

}  // namespace tersify
