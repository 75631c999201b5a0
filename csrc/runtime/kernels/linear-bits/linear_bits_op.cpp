// Matrix products of signs with activations of two or three levels, as steps.
#include <algorithm>
#include <memory>

#include "engine/schedule.hpp"
#include "kernels/linear-2bit-i8/code_matrix.hpp"

namespace tersify {

void check_bit_levels(const Quant& levels) {
  check_levels(levels);
  if (levels.scale != 0 && (levels.low < -1 || levels.high - levels.low > 2))
    throw std::invalid_argument("bits hold signs or the levels -1..1, 0..1 and 0..2, got " +
                                std::to_string(int(levels.low)) + ".." + std::to_string(int(levels.high)));
}

int middle_level(const Quant& levels) { return levels.high > 1 ? 1 : 0; }

namespace {

struct LinearBits {
  std::shared_ptr<const BitWeights> weights;
  Epilogue epilogue;
  Quant levels;
  std::vector<int32_t> starts;
  bool zeros_x;
  float scale;  // of a sum

  int planes() const { return zeros_x ? 2 : 1; }
  int words() const { return weights->matrix.words(); }
  // The vectors as planes, and of each what its sums lack: how many of its numbers are not zero, unless the weights
  // have zeros, too.
  int32_t lacking(int32_t nonzeros) const {
    if (weights->matrix.zeros()) return 0;
    return zeros_x ? nonzeros : weights->features;
  }
};

void add_linear_bits(Schedule& s, std::shared_ptr<const LinearBits> d, BitSums sums_of, int source, int target,
                     int count) {
  const Kernels* k = &s.kernels();
  const BitMatrix& matrix = d->weights->matrix;
  const size_t vector_words = size_t(d->words()) * d->planes();
  const int planes = s.temporary(vector_words * count * sizeof(uint64_t)), lacks = s.temporary(sizeof(int32_t) * count);
  Step lay(matrix.kernel_name());
  lay.tasks = count;
  lay.reads = {source};
  lay.writes = {planes, lacks};
  lay.run = [=](char* const* b, int v, char*) {
    const float* x = reinterpret_cast<const float*>(b[source]) + size_t(v) * d->weights->features;
    uint64_t* signs = reinterpret_cast<uint64_t*>(b[planes]) + vector_words * v;
    const int32_t nonzeros =
        k->bit_vector(x, d->weights->features, d->levels, signs, d->zeros_x ? signs + d->words() : nullptr);
    reinterpret_cast<int32_t*>(b[lacks])[v] = d->lacking(nonzeros);
  };
  s.add(std::move(lay));
  const int tiles = (count + kBitVectors - 1) / kBitVectors, units = matrix.groups() * tiles;
  const int tasks = std::min(units, kCodeTasksPerThread * s.threads());
  Step multiply(matrix.kernel_name());
  multiply.tasks = tasks;
  multiply.reads = {planes, lacks};
  multiply.writes = {target};
  multiply.run = [=](char* const* b, int task, char*) {
    const BitMatrix& own = d->weights->matrix;
    for (int unit = int(size_t(units) * task / tasks); unit < int(size_t(units) * (task + 1) / tasks); ++unit) {
      const int group = unit / tiles, first = unit % tiles * kBitVectors, row = group * kBitRows;
      alignas(64) int32_t sums[kBitVectors * kBitRows];
      BitsTask t = own.task(group, d->starts);
      t.signs = reinterpret_cast<const uint64_t*>(b[planes]) + vector_words * first;
      t.used = d->zeros_x ? t.signs + d->words() : nullptr;
      t.vector_words = ptrdiff_t(vector_words);
      t.vectors = std::min(kBitVectors, count - first);
      t.sums = sums;
      sums_of(t);
      for (int v = 0; v < t.vectors; ++v) {
        float* out = reinterpret_cast<float*>(b[target]) + size_t(first + v) * own.rows() + row;
        const int32_t lacking = reinterpret_cast<const int32_t*>(b[lacks])[first + v];
        k->write_vector(sums + v * kBitRows, -lacking, d->scale, row, own.rows_of(group), out, d->epilogue.view());
      }
    }
  };
  s.add(std::move(multiply));
  s.add_cost(matrix.cost(count));
}

}  // namespace

int Engine::linear_bits(int in, std::shared_ptr<const BitWeights> weights, Epilogue epilogue, Quant levels) {
  use(weights, "linear layer");
  check_bit_levels(levels);
  const int per_item = vectors_of(in, weights->features);
  const bool zeros_x = levels.scale != 0;
  auto d = std::make_shared<LinearBits>(LinearBits{
      .weights = weights,
      .epilogue = epilogue.checked(weights->matrix.rows()).folded(),
      .levels = levels,
      .starts = weights->matrix.starts(zeros_x, middle_level(levels)),
      .zeros_x = zeros_x,
      .scale = zeros_x ? levels.scale : 1.0f,
  });
  const BitSums sums_of = bit_sums_of(workspace_->isa());
  return add({in}, checked_shape(1, per_item, weights->matrix.rows()), [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    add_linear_bits(s, d, sums_of, source, target, s.items(in) * per_item);
  });
}

}  // namespace tersify
