#include "engine/packed_weights.hpp"

#include <algorithm>
#include <climits>
#include <stdexcept>
#include <string>

#include "engine/byte_rows.hpp"
#include "engine/lane_packing.hpp"
#include "threads/in_parts.hpp"

namespace tersify {
namespace {

constexpr Shape kManyRows{1, 1, 256};  // as an image: rows of a matrix product are its positions
constexpr int kGemvLeast = 1 << 14;    // weights: below, packing them twice gains nothing
constexpr double kPicksBelow = 0.5;    // fraction of non-zeros: above, lists are longer than codes
constexpr int kMaxTable = 256;         // a code is a byte
constexpr int kMaxWindow = 1 << 15;
// 32-bit sums: the highest two bits of a byte of codes are summed 64-fold, and levels lie as 1..255.
constexpr int kMaxFeatures2Bit = 1 << 17, kMaxFeatures4Bit = 1 << 16;

int sign(float v) { return (v > 0) - (v < 0); }
size_t per_row(const DenseWeight& w) { return size_t(w.channels / w.groups) * w.taps; }

void check_table(ValueKind kind, const std::vector<float>& table) {
  if (kind == ValueKind::Table && (table.empty() || table.size() > kMaxTable))
    throw std::invalid_argument("a table has 1..256 levels, got " + std::to_string(table.size()));
}

bool is_ternary(const float* weight, size_t count) {
  return std::all_of(weight, weight + count, [](float w) { return w == 0 || w == 1 || w == -1; });
}

// Of each row, what `number` makes of a weight.
template <class Number>
std::vector<int32_t> row_sums_of(const DenseWeight& w, Number number) {
  std::vector<int32_t> sums;
  for (int r = 0; r < w.rows; ++r) {
    const float* row = w.data + r * per_row(w);
    int32_t sum = 0;
    for (size_t i = 0; i < per_row(w); ++i) sum += number(row[i]);
    sums.push_back(sum);
  }
  return sums;
}

std::vector<float> by_pixel(const DenseWeight& w, int pixel_bytes) {
  const bool ternary = is_ternary(w.data, w.rows * per_row(w));
  const int most = ternary ? kMaxFeatures2Bit : kMaxFeatures4Bit;
  if (w.groups != 1 || size_t(w.taps) * pixel_bytes > size_t(most))
    throw std::invalid_argument("a convolution with codes has one group and sums at most " + std::to_string(most) +
                                " products, got " + std::to_string(w.groups) + " and " +
                                std::to_string(size_t(w.taps) * pixel_bytes));
  std::vector<float> moved(size_t(w.rows) * w.taps * pixel_bytes);
  for (int r = 0; r < w.rows; ++r)
    for (int c = 0; c < w.channels; ++c)
      for (int t = 0; t < w.taps; ++t)
        moved[(size_t(r) * w.taps + t) * pixel_bytes + c] = w.data[(size_t(r) * w.channels + c) * w.taps + t];
  return moved;
}

// Of every part of the rows: what there is of weights that are not zero, and of others than signs.
struct ByteFacts {
  size_t nonzeros = 0;
  bool ternary = true;
};

ByteFacts look_at(const ByteRows& weight, int threads) {
  std::vector<ByteFacts> parts(threads_for(size_t(weight.rows) * weight.features, threads));
  in_parts(weight.rows, int(parts.size()), [&](int part, size_t begin, size_t end) {
    std::vector<int8_t> bytes(weight.features);
    for (size_t row = begin; row < end; ++row) {
      weight.read(int(row), bytes.data());
      int zeros = 0, large = 0;
      for (int8_t byte : bytes) {
        zeros += byte == 0;
        large |= byte > 1 || byte < -1;
      }
      parts[part].nonzeros += weight.features - zeros;
      parts[part].ternary &= !large;
    }
  });
  ByteFacts all;
  for (const ByteFacts& part : parts) {
    all.nonzeros += part.nonzeros;
    all.ternary &= part.ternary;
  }
  return all;
}

void check_sizes(const DenseWeight& w) {
  if (w.rows < 1 || w.channels < 1 || w.groups < 1 || w.taps < 1 || w.rows % w.groups || w.channels % w.groups)
    throw std::invalid_argument("weights need at least one row and one channel, and groups that divide the rows; got " +
                                std::to_string(w.rows) + " rows, " + std::to_string(w.channels) + " channels and " +
                                std::to_string(w.groups) + " groups");
  if (per_row(w) > INT_MAX / 8)
    throw std::invalid_argument("a row of " + std::to_string(per_row(w)) + " weights is too long");
}

// Whether a table that has no code to spare must have one for zero, too.
bool has_zeros(const DenseWeight& w, const std::vector<float>& table) {
  const float* end = w.data + w.rows * per_row(w);
  return table.size() < GemvWeights::kLevels || std::find(w.data, end, 0.0f) != end;
}

const DenseWeight& one_group(const DenseWeight& w) {
  check_sizes(w);
  if (w.groups != 1)
    throw std::invalid_argument("a convolution with bits has one group, got " + std::to_string(w.groups));
  return w;
}

int pixel_bytes_of(int channels) { return (channels + 3) / 4 * 4; }

}  // namespace

void check_weights(const DenseWeight& w) {
  check_sizes(w);
  const size_t count = w.rows * per_row(w);
  if (!portable_kernels().all_finite(w.data, count)) throw std::invalid_argument("a weight is not finite");
}

void check_window(const Window& w) {
  auto within = [](int value, int low) { return value >= low && value <= kMaxWindow; };
  const bool good = within(w.kernel_h, 1) && within(w.kernel_w, 1) && within(w.stride_h, 1) && within(w.stride_w, 1) &&
                    within(w.pad_h, 0) && within(w.pad_w, 0) && within(w.dilation_h, 1) && within(w.dilation_w, 1) &&
                    w.kernel_h * w.dilation_h <= kMaxWindow && w.kernel_w * w.dilation_w <= kMaxWindow;
  if (!good)
    throw std::invalid_argument(
        "a window has positive kernels, strides and dilations and no negative padding, none above " +
        std::to_string(kMaxWindow));
}

size_t PackedWeights::resident_bytes() const {
  const auto held = workspace_ ? workspace_->lock() : std::unique_lock<std::mutex>();
  return bytes();
}

namespace {

std::shared_ptr<const PixelWeights> pack_pixels(const Kernels& kernels, const DenseWeight& weight) {
  return std::make_shared<PixelWeights>(weight, kernels.vector_bytes / int(sizeof(float)));
}

}  // namespace

ListConvWeights::ListConvWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window,
                                 Lane lane, std::shared_ptr<LaneWeights> lists)
    : PackedWeights(std::move(workspace)),
      window(window),
      rows(weight.rows),
      channels(weight.channels),
      row_weights(int(per_row(weight))),
      lane(lane),
      lists_(std::move(lists)) {}

ListConvWeights::ListConvWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window,
                                 ValueKind kind, std::vector<float> table, Lane lane, const Shape& output)
    : ListConvWeights(workspace, weight, window, lane,
                      pack_lists(*workspace, weight, window, output, kind, std::move(table), lane)) {}

ConvDenseWeights::ConvDenseWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight,
                                   const Window& window, const Shape& output)
    : ListConvWeights(workspace, (check_weights(weight), check_window(window), weight), window, Lane::F32, nullptr),
      output_(output),
      pixels_(pack_pixels(workspace->kernels(), weight)) {}

std::shared_ptr<LaneWeights> ConvDenseWeights::lists() const {
  if (!lists_) {
    const std::vector<float> all = pixels_->unpack();
    lists_ = pack_dense(workspace_->kernels(), {all.data(), rows, channels, 1, window.taps()}, window, output_);
  }
  return lists_;
}

ConvWeights::ConvWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window,
                         ValueKind kind, std::vector<float> table, Lane lane, const Shape& output)
    : ListConvWeights(std::move(workspace),
                      (check_weights(weight), check_window(window), check_table(kind, table), weight), window, kind,
                      table, lane, output) {}

ConvInt8Weights::ConvInt8Weights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window,
                                 const Shape& output)
    : ListConvWeights(std::move(workspace), (check_weights(weight), check_window(window), weight), window,
                      ValueKind::Sign, {}, Lane::I8, output),
      sign_sums(row_sums_of(weight, sign)) {}

ConvCodesWeights::ConvCodesWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight,
                                   const Window& window)
    : PackedWeights(std::move(workspace)),
      window((check_weights(weight), check_window(window), window)),
      rows(weight.rows),
      channels(weight.channels),
      pixel_bytes(pixel_bytes_of(weight.channels)),
      codes({&workspace_->kernels(), by_pixel(weight, pixel_bytes).data(), rows, weight.taps * pixel_bytes, false},
            workspace_->threads()),
      level_sums(row_sums_of(weight, [](float level) { return int32_t(level); })) {}

LinearWeights::LinearWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features,
                             ValueKind kind, std::vector<float> table, bool dense)
    : PackedWeights(std::move(workspace)),
      rows((check_sizes({weight, rows, features, 1, 1}), check_table(kind, table), rows)),
      features(features),
      kind_(kind),
      table_(std::move(table)),
      dense_(dense) {
  const GemvKind few = kind == ValueKind::Table ? GemvKind::Nibbles : GemvKind::Trits;
  const DenseWeight all{weight, rows, features, 1, 1};
  const bool adds_threes = few == GemvKind::Trits;  // which lists do not, and only some instruction sets do
  if (kind != ValueKind::Float && size_t(rows) * features >= kGemvLeast && !(adds_threes && workspace_->in_order()) &&
      GemvWeights::possible(workspace_->kernels(), few, table_, has_zeros(all, table_))) {
    vectors_ = std::make_shared<GemvWeights>(workspace_->kernels(), all, few, table_, workspace_->threads());
  } else {
    check_weights(all);
    pack_lists(weight);
  }
}

void LinearWeights::pack_lists(const float* weight) {
  const DenseWeight all{weight, rows, features, 1, 1};
  if (dense_)
    pixels_ = pack_pixels(workspace_->kernels(), all);
  else
    lists_ = tersify::pack_lists(*workspace_, all, Window{}, kManyRows, kind_, table_, Lane::F32);
}

const std::shared_ptr<LaneWeights>& LinearWeights::lists() {
  if (!lists_) pack_lists(vectors_->unpack().data());
  return lists_;
}

const std::shared_ptr<const PixelWeights>& LinearWeights::pixels() {
  if (!pixels_) pack_lists(vectors_->unpack().data());
  return pixels_;
}

size_t LinearWeights::bytes() const {
  return (vectors_ ? vectors_->resident_bytes() : 0) + (lists_ ? lists_->resident_bytes() : 0) +
         (pixels_ ? pixels_->resident_bytes() : 0);
}

double LinearInt8Weights::code_cost(int rows, int features, int vectors) {
  return double(rows) * features * (vectors * kCodePerWeight + kCodeRead);
}

// Where there are tiles (AMX), batches need codes as well, and lookups would gain nothing.
LinearInt8Weights::LinearInt8Weights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features,
                                     bool signs)
    : PackedWeights(std::move(workspace)),
      rows((check_sizes({weight, rows, features, 1, 1}), rows)),
      features(features) {
  pack({&workspace_->kernels(), weight, rows, features, signs}, false, true);
}

LinearInt8Weights::LinearInt8Weights(std::shared_ptr<Workspace> workspace, const uint8_t* codes, int rows, int features,
                                     const std::vector<int>& levels, bool smallest)
    : PackedWeights(std::move(workspace)),
      rows((check_sizes({nullptr, rows, features, 1, 1}), rows)),
      features(features) {
  pack({&workspace_->kernels(), nullptr, rows, features, false, codes, byte_levels(levels)}, true, smallest);
}

// `streamed`: reading the weights takes longer than using them, so what counts is their bytes.
void LinearInt8Weights::pack(ByteRows bytes, bool streamed, bool may_look_up) {
  const Isa isa = workspace_->isa();
  const int threads = workspace_->threads();
  HugePages* const pages = streamed ? &workspace_->pages() : nullptr;
  const LookupForm& form = streamed ? kFiveSigns : kFourSigns;
  const ByteFacts facts = look_at(bytes, threads);
  const bool tiles = isa == Isa::Amx, ternary = bytes.signs = facts.ternary;
  const double count = double(rows) * features, nonzeros = double(facts.nonzeros);
  if (features > (ternary ? kMaxFeatures2Bit : kMaxFeatures4Bit))
    throw std::invalid_argument("8-bit products of " + std::to_string(features) + " features overflow their sums");
  double least = streamed ? count / 4 : code_cost(rows, features, 1);
  const double looked_up = streamed ? double(LookupMatrix::code_bytes(form, rows, features))
                                    : LookupMatrix::cost(form, rows, features, 1, threads);
  const bool looks_up = may_look_up && ternary && !tiles && lookup_sums_of(isa) &&
                        LookupMatrix::possible(features) && looked_up < least;
  if (looks_up) least = looked_up;
  const bool sparse = nonzeros < (streamed ? least : kPicksBelow * count);
  if (ternary && sparse && pick_sums_of(isa) && PickMatrix::possible(features)) {
    auto packed = std::make_shared<PickMatrix>(bytes, threads);
    if ((streamed ? double(packed->resident_bytes()) : packed->cost(1)) < least) picks = packed;
  }
  if (looks_up && !picks) lookups = std::make_shared<LookupMatrix>(bytes, threads, form, pages);
  if (ternary && !picks && pair_kernels_of(isa).sums) pairs = std::make_shared<PairMatrix>(bytes, threads);
  if (tiles || (!picks && !lookups && !pairs)) codes = std::make_shared<CodeMatrix>(bytes, threads, pages);
}

size_t LinearInt8Weights::bytes() const {
  return (lookups ? lookups->resident_bytes() : 0) + (pairs ? pairs->resident_bytes() : 0) +
         (picks ? picks->resident_bytes() : 0) + (codes ? codes->resident_bytes() : 0);
}

BitWeights::BitWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features)
    : PackedWeights(std::move(workspace)),
      features((check_sizes({weight, rows, features, 1, 1}), features)),
      matrix({&workspace_->kernels(), weight, rows, features, true}, {}, features, workspace_->threads()) {}

ConvBitWeights::ConvBitWeights(std::shared_ptr<Workspace> workspace, const DenseWeight& weight, const Window& window)
    : PackedWeights(std::move(workspace)),
      window((check_window(window), window)),
      channels(one_group(weight).channels),
      pixel_bytes((channels + 7) / 8),
      features(int(per_row(weight))),
      matrix({&workspace_->kernels(), weight.data, weight.rows, features, true}, bit_places(weight.channels, weight.taps, pixel_bytes),
             8 * weight.taps * pixel_bytes, workspace_->threads()) {}

RowWeights::RowWeights(std::shared_ptr<Workspace> workspace, const float* weight, int rows, int features)
    : PackedWeights(std::move(workspace)),
      matrix((check_sizes({weight, rows, features, 1, 1}), weight), rows, features, workspace_->threads()) {}

RowWeights::RowWeights(std::shared_ptr<Workspace> workspace, const uint8_t* codes, int rows, int features,
                       std::vector<float> levels)
    : PackedWeights(std::move(workspace)),
      matrix((check_sizes({nullptr, rows, features, 1, 1}), codes), rows, features, std::move(levels),
             workspace_->threads()) {}

EmbeddingWeights::EmbeddingWeights(const float* weight, int rows, int width, std::vector<float> levels,
                                   std::vector<float> scale)
    : PackedWeights(nullptr),
      rows((check_weights({weight, rows, width, 1, 1}), rows)),
      width(width),
      table(weight, rows, width, std::move(levels), std::move(scale)) {}

}  // namespace tersify
