// Which form the weights of a layer over lanes take.
#pragma once

#include <memory>
#include <vector>

#include "engine/shape.hpp"
#include "engine/workspace.hpp"
#include "kernels/conv-dense-f32/dense_weights.hpp"
#include "layout/window.hpp"

namespace tersify {

// `output`: the usual size of what the weights will make. Signs go by pairs of rows where that takes fewer entries.
std::shared_ptr<LaneWeights> pack_lists(const Workspace& workspace, const DenseWeight& weight, const Window& window,
                                        const Shape& output, ValueKind kind, std::vector<float> table, Lane lane);
std::shared_ptr<DenseLaneWeights> pack_dense(const Kernels& kernels, const DenseWeight& weight, const Window& window,
                                             const Shape& output);

}  // namespace tersify
