// The encoder's choices about side information: density classes, and classes of neighbouring symbols.
#pragma once

#include "encode.h"

namespace tersify {

// All symbols of a box in stream order: unit after unit, row after row.
using Symbols = std::vector<uint8_t>;

Symbols symbols_of_box(const uint8_t* codes, const Box& box, const Cut& cut, int levels, int arity);

// The class of a filter, channel or box that is `part / whole` as dense as what it is compared with.
int density_class(uint64_t part, uint64_t whole);

// Density classes of the filters and channels of a box, where they save more than they cost.
BoxClasses classes_of_box(const uint8_t* codes, const Box& box, const Cut& cut, const Symbols& symbols, int symbol_count,
                          int arity, const std::vector<uint8_t>& activity, uint64_t group_activity,
                          uint64_t group_weights);

// Moves the density classes of boxes without rows to where symbols and classes together cost less.
void refine_classes(std::vector<BoxClasses>& classes, const std::vector<Box>& boxes, const std::vector<Cut>& cuts,
                    const std::vector<Symbols>& symbols, int symbol_count);

// Fills in the neighbour classes of a model, from the symbols that occur.
void choose_neighbours(Model& model, const std::vector<Symbols>& symbols, const Hints& hints);

}  // namespace tersify
