// Matrix products with 8-bit activations, as steps: with codes of two or four bits, by lookup where rows are many, or
// with picked activations where most weights are zero.
#include <algorithm>
#include <cstring>
#include <memory>

#include "engine/schedule.hpp"
#include "kernels/linear-2bit-i8/code_matrix.hpp"
#include "kernels/linear-lookup-i8/lookup_matrix.hpp"
#include "kernels/linear-lookup-i8/pair_matrix.hpp"
#include "kernels/linear-picks-i8/pick_matrix.hpp"

namespace tersify {
namespace {

constexpr int kPickBlocks = 8;  // that are finished together

struct VectorScale {
  float scale;
  int32_t total;
};

// Buffers of vectors rounded to 8 bits, each of its own scale.
struct Rounded {
  size_t bytes;  // from one vector to the next
  int steps, scales;
};

// Into `bytes` steps, each plus `zero`, zeros behind the last.
VectorScale round_vector(const Kernels& k, const float* x, int features, int zero, char* steps, size_t bytes) {
  VectorScale scale;
  scale.scale = k.quantize_vector(x, features, zero, reinterpret_cast<uint8_t*>(steps), &scale.total);
  std::memset(steps + features, zero, bytes - features);
  return scale;
}

Rounded add_rounding(Schedule& s, int features, size_t vector_bytes, int zero, int source, int count,
                     const char* kernel) {
  const Kernels* k = &s.kernels();
  const size_t bytes = AlignedBytes::rounded(vector_bytes);
  const Rounded to{bytes, s.temporary(bytes * count + 64), s.temporary(sizeof(VectorScale) * count)};
  Step round(kernel);
  round.tasks = count;
  round.reads = {source};
  round.writes = {to.steps, to.scales};
  round.run = [=](char* const* b, int v, char*) {
    const float* x = reinterpret_cast<const float*>(b[source]) + size_t(v) * features;
    reinterpret_cast<VectorScale*>(b[to.scales])[v] =
        round_vector(*k, x, features, zero, b[to.steps] + bytes * v, bytes);
  };
  s.add(std::move(round));
  return to;
}

// The products of rounded vectors with `units` parts of the weights, shared among tasks; `part` makes those of a range.
template <class Part>
void add_products(Schedule& s, const Rounded& x, const char* kernel, int units, int target, size_t scratch_bytes,
                  Part part) {
  const int tasks = std::min(units, kCodeTasksPerThread * s.threads());
  Step multiply(kernel);
  multiply.tasks = tasks;
  multiply.scratch_bytes = scratch_bytes;
  multiply.reads = {x.steps, x.scales};
  multiply.writes = {target};
  multiply.run = [=](char* const* b, int task, char* scratch) {
    part(b, int(size_t(units) * task / tasks), int(size_t(units) * (task + 1) / tasks), scratch);
  };
  s.add(std::move(multiply));
}

// Groups of rows meet tiles of vectors.
void add_codes(Schedule& s, std::shared_ptr<const CodeMatrix> weights, std::shared_ptr<Epilogue> epilogue, int features,
               int source, int target, int count) {
  const Kernels* k = &s.kernels();
  const Rounded x = add_rounding(s, features, weights->vector_bytes(), 0, source, count, weights->kernel_name());
  const int tiles = (count + kCodeVectors - 1) / kCodeVectors, units = weights->groups() * tiles;
  const size_t unpacked_bytes = weights->unpacked_bytes(count);
  auto part = [=](char* const* b, int begin, int end, char* scratch) {
    for (int unit = begin; unit < end; ++unit) {
      const int group = unit / tiles, first = unit % tiles * kCodeVectors, row = group * kCodeRows;
      if (unpacked_bytes && (unit == begin || first == 0)) weights->unpack(*k, group, scratch);
      alignas(64) int32_t sums[kCodeVectors * kCodeRows];
      const int32_t from_start = 0;
      CodesTask t{};
      t.x = reinterpret_cast<const int8_t*>(b[x.steps] + x.bytes * first);
      t.vector_bytes = ptrdiff_t(x.bytes);
      t.vectors = std::min(kCodeVectors, count - first);
      t.runs = &from_start;
      t.run_count = 1;
      t.run_steps = weights->steps();
      t.sums = sums;
      weights->multiply(*k, t, group, unpacked_bytes ? scratch : nullptr);
      for (int v = 0; v < t.vectors; ++v) {
        const VectorScale& scale = reinterpret_cast<const VectorScale*>(b[x.scales])[first + v];
        float* out = reinterpret_cast<float*>(b[target]) + size_t(first + v) * weights->rows() + row;
        k->write_vector(sums + v * kCodeRows, scale.total * weights->zero(), scale.scale, row, weights->rows_of(group),
                        out, epilogue->view());
      }
    }
  };
  add_products(s, x, weights->kernel_name(), units, target, unpacked_bytes, part);
  s.add_cost(LinearInt8Weights::code_cost(weights->rows(), features, count));
}

// Blocks of rows meet one vector after the other.
void add_picks(Schedule& s, PickSums sums_of, std::shared_ptr<const PickMatrix> weights,
               std::shared_ptr<Epilogue> epilogue, int features, int source, int target, int count) {
  const Kernels* k = &s.kernels();
  const Rounded x =
      add_rounding(s, features, weights->vector_bytes(), kByteZero, source, count, weights->kernel_name());
  add_products(s, x, weights->kernel_name(), weights->blocks(), target, 0,
               [=](char* const* b, int begin, int end, char*) {
                 for (int first = begin; first < end; first += kPickBlocks) {
                   const int last = std::min(end, first + kPickBlocks), row = first * kPickRows;
                   for (int v = 0; v < count; ++v) {
                     alignas(64) int32_t sums[kPickBlocks * kPickRows];
                     for (int block = first; block < last; ++block) {
                       PickTask t = weights->task(block);
                       t.x = reinterpret_cast<const uint8_t*>(b[x.steps] + x.bytes * v);
                       t.sums = sums + (block - first) * kPickRows;
                       sums_of(t);
                     }
                     float* out = reinterpret_cast<float*>(b[target]) + size_t(v) * weights->rows() + row;
                     const float scale = reinterpret_cast<const VectorScale*>(b[x.scales])[v].scale;
                     const int rows = std::min(last * kPickRows, weights->rows()) - row;
                     k->write_vector(sums, 0, scale, row, rows, out, epilogue->view());
                   }
                 }
               });
  s.add_cost(weights->cost(count));
}

// Parts of the rows, or all where there are vectors enough, meet one vector; every task rounds it for itself, which
// takes less time than waiting for another thread.
void add_lookups(Schedule& s, LookupSums sums_of, std::shared_ptr<const LookupMatrix> weights,
                 std::shared_ptr<Epilogue> epilogue, int features, int source, int target, int count) {
  const Kernels* k = &s.kernels();
  const bool few_vectors = count < s.threads() * kCodeTasksPerThread;
  const int parts_per_task = few_vectors ? 1 : weights->parts(), tasks_per_vector = weights->parts() / parts_per_task;
  const size_t tables_bytes = weights->tables_bytes(), steps_bytes = AlignedBytes::rounded(weights->vector_bytes());
  size_t rows_at_most = 0;
  for (int part = 0; part < weights->parts(); part += parts_per_task)
    rows_at_most = std::max(rows_at_most, size_t(weights->padded_rows(part, part + parts_per_task)));
  Step multiply(weights->kernel_name());
  multiply.tasks = tasks_per_vector * count;
  multiply.scratch_bytes = tables_bytes + steps_bytes + (sizeof(uint16_t) + sizeof(int32_t)) * rows_at_most;
  multiply.reads = {source};
  multiply.writes = {target};
  multiply.run = [=](char* const* b, int task, char* scratch) {
    const int first = task / count * parts_per_task, v = task % count;
    char* steps = scratch + tables_bytes;
    const float* x = reinterpret_cast<const float*>(b[source]) + size_t(v) * features;
    const VectorScale scale = round_vector(*k, x, features, kByteZero, steps, steps_bytes);
    LookupTask t = weights->task(first, first + parts_per_task);
    t.x = reinterpret_cast<const uint8_t*>(steps);
    t.tables = reinterpret_cast<uint8_t*>(scratch);
    t.words = reinterpret_cast<uint16_t*>(steps + steps_bytes);
    t.sums = reinterpret_cast<int32_t*>(t.words + rows_at_most);
    sums_of(t);
    const int row = weights->first_row(first), rows = weights->first_row(first + parts_per_task) - row;
    float* out = reinterpret_cast<float*>(b[target]) + size_t(v) * weights->rows() + row;
    k->write_vector(t.sums, 0, scale.scale, row, rows, out, epilogue->view());
  };
  s.add(std::move(multiply));
  s.add_cost(weights->cost(features, count, tasks_per_vector));
}

// The same with pairs of signs: tables of all activations, then one block of rows after the other.
void add_pairs(Schedule& s, const PairKernels& pairs, std::shared_ptr<const PairMatrix> weights,
               std::shared_ptr<Epilogue> epilogue, int features, int source, int target, int count) {
  const Kernels* k = &s.kernels();
  const bool few_vectors = count < s.threads() * kCodeTasksPerThread;
  const int blocks = weights->blocks(), parts = few_vectors ? std::min(blocks, s.threads()) : 1;
  const size_t tables_bytes = weights->tables_bytes(), steps_bytes = AlignedBytes::rounded(weights->vector_bytes());
  Step multiply(weights->kernel_name());
  multiply.tasks = parts * count;
  multiply.scratch_bytes = tables_bytes + steps_bytes;
  multiply.reads = {source};
  multiply.writes = {target};
  multiply.run = [=](char* const* b, int task, char* scratch) {
    const int part = task / count, v = task % count;
    auto* tables = reinterpret_cast<uint8_t*>(scratch);
    char* steps = scratch + tables_bytes;
    const float* x = reinterpret_cast<const float*>(b[source]) + size_t(v) * features;
    const float scale = round_vector(*k, x, features, 0, steps, steps_bytes).scale;
    pairs.tables(reinterpret_cast<const int8_t*>(steps), weights->rounds(), tables);
    for (int block = blocks * part / parts; block < blocks * (part + 1) / parts; ++block) {
      alignas(64) int32_t sums[kPairRows];
      PairsTask t = weights->task(block);
      t.tables = tables;
      t.sums = sums;
      pairs.sums(t);
      const int row = block * kPairRows;
      float* out = reinterpret_cast<float*>(b[target]) + size_t(v) * weights->rows() + row;
      k->write_vector(sums, 0, scale, row, weights->rows_of(block), out, epilogue->view());
    }
  };
  s.add(std::move(multiply));
  s.add_cost(LinearInt8Weights::code_cost(weights->rows(), features, count));
}

}  // namespace

int Engine::linear_i8(int in, std::shared_ptr<const LinearInt8Weights> weights, Epilogue epilogue) {
  use(weights, "linear layer");
  const int features = weights->features, per_item = vectors_of(in, features);
  const Isa isa = workspace_->isa();
  auto constants = std::make_shared<Epilogue>(epilogue.checked(weights->rows).folded());
  return add({in}, checked_shape(1, per_item, weights->rows), [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {}), count = s.items(in) * per_item;
    if (weights->lookups)
      add_lookups(s, lookup_sums_of(isa), weights->lookups, constants, features, source, target, count);
    else if (weights->pairs)
      add_pairs(s, pair_kernels_of(isa), weights->pairs, constants, features, source, target, count);
    else if (weights->picks && (!weights->codes || count < kLeastTileVectors))
      add_picks(s, pick_sums_of(isa), weights->picks, constants, features, source, target, count);
    else
      add_codes(s, weights->codes, constants, features, source, target, count);
  });
}

}  // namespace tersify
