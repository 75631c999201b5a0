#include "engine/lane_packing.hpp"

#include <algorithm>
#include <utility>

#include "kernels/conv-lists-f32/list_weights.hpp"
#include "kernels/conv-pairs-f32/pair_weights.hpp"
#include "layout/patch_geometry.hpp"

namespace tersify {
namespace {

// Of the lists' entries those that pairs of rows need: above, the lists' larger patches gain as much.
constexpr double kPairsBelow = 0.95;

// WebAssembly has no kernel for pairs, and a module that is fetched before it runs carries no code that packs them.
#if defined(__wasm__)
constexpr bool kPacksPairs = false;
#else
constexpr bool kPacksPairs = true;
#endif

// Input channels that are taken together. The block must suit every batch size; a few images in the lanes are the usual
// portion.
int usual_block(const Kernels& kernels, const DenseWeight& weight, const Window& window, const Shape& output, Lane lane,
                int patch_limit) {
  const int lanes = kernels.vector_bytes / int(lane), images = std::max(1, lanes / 8);
  const Layout usual = choose_layout({images, output.c, output.h, output.w}, lanes, patch_limit);
  return choose_block(window, weight.channels, kernels.vector_bytes, choose_patch(usual, patch_limit),
                      lane == Lane::I8);
}

// Signs go by pairs of rows where enough of what two rows have is the same; null where it is not.
std::shared_ptr<LaneWeights> pack_pairs(const Workspace& workspace, const DenseWeight& weight, const Window& window,
                                        const Shape& output) {
  const Kernels& kernels = workspace.kernels();
  const int block = usual_block(kernels, weight, window, output, Lane::F32, kernels.patch_limit / 2);
  auto pairs = std::make_shared<PairWeights>(weight, block, workspace.threads());
  return double(pairs->products()) < kPairsBelow * double(pairs->nonzeros()) ? pairs : nullptr;
}

}  // namespace

std::shared_ptr<LaneWeights> pack_lists(const Workspace& workspace, const DenseWeight& weight, const Window& window,
                                        const Shape& output, ValueKind kind, std::vector<float> table, Lane lane) {
  const Kernels& kernels = workspace.kernels();
  // Pairs add in another order, and only instruction sets with many registers have them.
  if constexpr (kPacksPairs)
    if (kind == ValueKind::Sign && lane == Lane::F32 && kernels.conv_pairs_f32 && !workspace.in_order())
      if (auto pairs = pack_pairs(workspace, weight, window, output)) return pairs;
  const bool int8 = lane == Lane::I8;
  int block = usual_block(kernels, weight, window, output, lane, kernels.patch_limit / (int8 ? 2 : 1));
  if (int8) block = int8_block(weight, block);
  return std::make_shared<ListWeights>(weight, kind, std::move(table), block, lane, workspace.threads());
}

std::shared_ptr<DenseLaneWeights> pack_dense(const Kernels& kernels, const DenseWeight& weight, const Window& window,
                                             const Shape& output) {
  const int limit = std::min(kDensePatch, kernels.patch_limit);
  return std::make_shared<DenseLaneWeights>(weight, usual_block(kernels, weight, window, output, Lane::F32, limit));
}

}  // namespace tersify
