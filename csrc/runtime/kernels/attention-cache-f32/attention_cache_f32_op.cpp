// Attention over a cache, as steps: the tokens of a run enter the cache, then every head attends.
#include <algorithm>
#include <cmath>
#include <memory>
#include <stdexcept>

#include "engine/schedule.hpp"

namespace tersify {
namespace {

// The rows of a run that one task attends for: neighbours of one sequence.
struct Tile {
  int first, count;
};

std::vector<Tile> tiles_of(const std::vector<CacheRow>& rows, int group) {
  const int most = std::max(1, kCacheQueries / group);
  std::vector<Tile> tiles;
  for (int i = 0; i < int(rows.size()); ++i) {
    if (!tiles.empty() && tiles.back().count < most && rows[i].slot == rows[tiles.back().first].slot)
      ++tiles.back().count;
    else
      tiles.push_back({i, 1});
  }
  return tiles;
}

void check(const CachedAttention& a, const KeyCache& cache, const Shape& shape) {
  const int64_t width = int64_t(a.heads + 2 * cache.key_heads()) * cache.width();
  if (a.heads < 1 || a.heads % cache.key_heads() || a.layer < 0 || a.layer >= cache.layers() || a.window < 0)
    throw std::invalid_argument("attention over a cache needs a layer of it, and heads that are a multiple of its own");
  if (shape.w != width || (!a.query_norm.empty() && a.query_norm.size() != size_t(cache.width())) ||
      (!a.key_norm.empty() && a.key_norm.size() != size_t(cache.width())))
    throw std::invalid_argument("attention over a cache reads " + std::to_string(width) + " numbers a token, got " +
                                to_string(shape));
}

CacheHeads heads_at(const CachedAttention& a, const KeyCache& cache, const float* row, int position, bool keys) {
  const std::vector<float>& norm = keys ? a.key_norm : a.query_norm;
  const bool turned = a.rotated && cache.pairs();
  return {row + (keys ? size_t(a.heads) * cache.width() : 0),
          keys ? cache.key_heads() : a.heads,
          cache.width(),
          norm.empty() ? nullptr : norm.data(),
          a.eps,
          turned ? cache.cosines(position) : nullptr,
          turned ? cache.sines(position) : nullptr,
          turned ? cache.pairs() : 0};
}

}  // namespace

int Engine::cached_attention(int in, std::shared_ptr<KeyCache> cache, CachedAttention attention) {
  if (!cache) throw std::invalid_argument("attention over a cache needs one");
  check(attention, *cache, at(in).shape);
  if (at(in).items != 1) throw std::invalid_argument("attention over a cache takes all tokens as one item");
  const Shape shape = at(in).shape;
  const int tokens = shape.c * shape.h, heads = attention.heads, key_heads = cache->key_heads(), width = cache->width();
  auto a = std::make_shared<CachedAttention>(std::move(attention));
  return add({in}, checked_shape(1, tokens, int64_t(heads) * width), [=](Schedule& s, const Op& op) {
    const Kernels* k = &s.kernels();
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    const int queries = s.temporary(size_t(tokens) * heads * width * sizeof(float));
    auto tiles = std::make_shared<std::vector<Tile>>();
    Step enter("cache");
    enter.tasks = tokens;
    enter.reads = {source};
    enter.writes = {queries};
    enter.scratch_bytes = size_t(key_heads) * width * sizeof(float);
    enter.run = [=](char* const* b, int token, char* scratch) {
      const CacheRow& row = cache->rows()[token];
      const float* from = reinterpret_cast<const float*>(b[source]) + size_t(token) * (heads + 2 * key_heads) * width;
      float* turned = reinterpret_cast<float*>(scratch);
      k->prepare_heads(heads_at(*a, *cache, from, row.position, false),
                       reinterpret_cast<float*>(b[queries]) + size_t(token) * heads * width);
      k->prepare_heads(heads_at(*a, *cache, from, row.position, true), turned);
      for (int head = 0; head < key_heads; ++head)
        k->store_cached(turned + size_t(head) * width, from + size_t(heads + key_heads + head) * width, width,
                        row.position, cache->half(), cache->keys(a->layer, row.slot, head),
                        cache->values(a->layer, row.slot, head));
    };
    enter.prepare = [=] {
      if (int(cache->rows().size()) != tokens)
        throw std::invalid_argument("the cache was told of " + std::to_string(cache->rows().size()) +
                                    " tokens and the run has " + std::to_string(tokens));
      *tiles = tiles_of(cache->rows(), heads / key_heads);
    };
    s.add(std::move(enter));
    const int group = heads / key_heads, padded = (width + kCacheVectors - 1) / kCacheVectors * kCacheVectors;
    Step attend("attention");
    attend.tasks = tokens * key_heads;  // as many as there can be tiles: those without one do nothing
    attend.reads = {queries};
    attend.writes = {target};
    attend.scratch_bytes = size_t(kCacheQueries) * (kCacheChunk + padded) * sizeof(float);
    attend.run = [=](char* const* b, int task, char* scratch) {
      const int number = task / key_heads, head = task % key_heads;
      if (number >= int(tiles->size())) return;
      const Tile tile = (*tiles)[number];
      const int slot = cache->rows()[tile.first].slot;
      CacheTask t{};
      t.keys = cache->keys(a->layer, slot, head);
      t.values = cache->values(a->layer, slot, head);
      t.half = cache->half();
      t.width = width;
      t.padded_width = padded;
      t.scale = a->scale;
      t.scratch = scratch;
      auto flush = [&] {
        if (t.count) k->attention_cache(t);
        t.count = 0;
      };
      for (int row = tile.first; row < tile.first + tile.count; ++row)
        for (int i = 0; i < group; ++i) {
          const size_t at = (size_t(row) * heads + size_t(head) * group + i) * width;
          const int last = cache->rows()[row].position;
          const int first = a->window ? std::max(0, last - a->window + 1) : 0;
          t.queries[t.count++] = {reinterpret_cast<const float*>(b[queries]) + at, first, last,
                                  reinterpret_cast<float*>(b[target]) + at};
          if (t.count == kCacheQueries) flush();
        }
      flush();
    };
    s.add(std::move(attend));
  });
}

// The rows of a run whose results are wanted.
int Engine::wanted_rows(int in, std::shared_ptr<KeyCache> cache, int count) {
  if (!cache) throw std::invalid_argument("rows are chosen by a cache");
  const Shape shape = at(in).shape;
  const int width = shape.w;
  if (count < 1 || at(in).items != 1) throw std::invalid_argument("at least one row of one item is wanted");
  return add({in}, checked_shape(1, count, width), [=](Schedule& s, const Op& op) {
    const int source = s.buffer_of(in, {}), target = s.new_buffer_for(op.output, {});
    Step step("rows");
    step.tasks = 1;
    step.reads = {source};
    step.writes = {target};
    step.prepare = [=] {
      if (int(cache->wanted().size()) != count)
        throw std::invalid_argument("the cache was told of " + std::to_string(cache->wanted().size()) +
                                    " wanted rows and the run has " + std::to_string(count));
    };
    step.run = [=](char* const* b, int, char*) {
      for (int i = 0; i < count; ++i)
        std::copy_n(reinterpret_cast<const float*>(b[source]) + size_t(cache->wanted()[i]) * width, width,
                    reinterpret_cast<float*>(b[target]) + size_t(i) * width);
    };
    s.add(std::move(step));
  });
}

}  // namespace tersify
