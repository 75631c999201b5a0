#pragma once

#include "model.h"

namespace tersify {

// What the encoder may know about the meaning of codes; it decides only how small the result is.
struct Hints {
  std::vector<std::vector<uint8_t>> activity;   // per box and code: how far the level is from zero
  std::vector<uint8_t> order;                   // the codes sorted by their level
};

// The smallest of the codings this encoder knows; `lanes_log2` below zero leaves the lanes to it.
std::vector<uint8_t> encode_codes(const uint8_t* codes, const std::vector<Box>& boxes, int levels, const Hints& hints,
                                  int lanes_log2);

// How often each symbol occurs, per context or per box.
using Counts = std::vector<std::vector<uint32_t>>;

struct Choice {
  Model model;
  uint64_t bits = UINT64_MAX;
};

// Chooses the tables of a model from the counts of its contexts; returns about the bits that its stream will take.
uint64_t make_tables(Model& model, const Counts& counts);

// Boxes whose symbols are distributed alike get the same offset, whatever their density is.
std::vector<uint8_t> alike(const Counts& counts);

// A lane costs two bytes, so that small streams have few of them.
int lanes_log2_for(uint64_t bits);

// The table that suits the counts best, of those that can be sent.
Table table_of_counts(const std::vector<uint32_t>& counts);
// What the counted symbols take with a table, in 1/65536 bits.
uint64_t coded_bits(const Table& table, const std::vector<uint32_t>& counts);

// Joins contexts whose symbols are distributed alike, as long as that saves bits: within slices of `slice`
// contexts first, then among all. Integer arithmetic only.
// Returns per context the number of its table (0 where it never occurs) and fills `tables` with counts.
std::vector<uint8_t> cluster(const Counts& counts, size_t slice, int max_tables, Counts& tables);

// log2(value) in 1/65536; value >= 1.
uint32_t log2_fixed(uint32_t value);
// The bits an ideal coder needs for all the counted symbols, in 1/65536.
uint64_t ideal_bits(const uint32_t* counts, size_t size);

}  // namespace tersify
