// A convolution as a step: its weights, geometry and buffers, and the tasks it falls into.
#pragma once

#include <memory>
#include <vector>

#include "engine/schedule.hpp"

namespace tersify {

constexpr int kTasksPerThread = 1;  // more would read the input more often

struct ConvStep {
  const Kernels* kernels = nullptr;
  Geometry geometry;
  std::shared_ptr<LaneWeights> weights;
  std::shared_ptr<const Epilogue> epilogue;
  Image in, out;
  Layout from, to;
  int source = -1, target = -1, residual = -1;  // buffers; residual −1: none
  std::vector<int> splits;                      // first chunk of each range, and the end
  Lane lane = Lane::F32;
  Quant input_quant, residual_quant, output_quant;
  int pool_h = 1, pool_w = 1;                      // of the windows whose maxima are all that is wanted
  std::shared_ptr<Epilogue> mean{};                // of the means that are all that is wanted; null: none
  std::vector<ByteEpilogue> byte_epilogues{};      // byte lanes that are written as bytes
  std::vector<float> mean_steps{};                 // byte lanes: of the sums that become means
  std::shared_ptr<const PositionedLists> lists{};  // during a run

  ConvTask task(char* const* buffers, int number, char* scratch) const;
  void split(int groups, int threads);
  int patch_limit(const Schedule& schedule) const;
};

void add_conv(Schedule& schedule, ConvStep step, const Window& window);
// Only the means of the channels, as rows [image][channel].
void add_mean_conv(Schedule& schedule, ConvStep step, const Window& window, const Epilogue& mean);
void add_mean_conv_i8(Schedule& schedule, ConvStep step, const Window& window, const Epilogue& mean);

}  // namespace tersify
