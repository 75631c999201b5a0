// What lies in lanes, and how the sums of a convolution pass through its epilogue: as a patch, its maxima or its means.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// A channel's epilogue with everything before the activation folded into sum × a + b + residual × c.
struct Folded {
  float a, b, c;
};

inline Folded fold(const EpilogueView& f, int channel) {
  const float scale = f.scale ? f.scale[channel] : 1.0f, shift = f.shift ? f.shift[channel] : 0.0f;
  if (!f.scale2) return {scale, shift, 1.0f};
  const float scale2 = f.scale2[channel];
  return {scale * scale2, product(shift, scale2) + f.shift2[channel], scale2};
}

// What lies in a lane decides how it is added up and read; all else is the same for every type. The numbers of one
// vector take kParts vectors of float; position() says where among them a lane's lies.
struct Fp32Lanes {
  typedef Vec Sum;
  static constexpr int kParts = 1;
  static int position(int lane) { return lane; }
  // A sign becomes ±1 by arithmetic: the load ports have no time to fetch one.
  static Sum sign(uint32_t entry) { return (Vec)(IntVec{} + int32_t(0x3f800000u | entry << 31)); }
  static Sum weight(float value) { return Vec{} + value; }
  static Sum plus_product(Sum sum, Sum weight, Sum x) { return sum + weight * x; }
  static Vec part(Sum v, int) { return v; }
  static Sum join(const Vec* parts) { return parts[0]; }
};

template <class Lanes>
inline typename Lanes::Sum load_lanes(const char* p) {
  return *reinterpret_cast<const typename Lanes::Sum*>(p);
}

template <class Lanes>
inline void store_lanes(char* p, typename Lanes::Sum v) {
  *reinterpret_cast<typename Lanes::Sum*>(p) = v;
}

template <class Lanes>
struct Numbers {
  Vec of[Lanes::kParts];
};

template <class Lanes>
inline void store_numbers(char* p, const Numbers<Lanes>& numbers) {
  store_lanes<Lanes>(p, Lanes::join(numbers.of));
}

// Lanes narrower than a float move their sums to wide ones now and then, which lie behind those of the whole patch.
template <class Lanes>
inline bool has_wide_sums(const ConvTask& t) {
  return Lanes::kParts > 1 && t.flushes;
}

template <class Lanes>
inline size_t wide_position(const ConvTask& t, size_t position) {
  return (size_t(t.patch.h) * t.patch.w + position * Lanes::kParts) * kBytes;
}

// One position of the patch before its activation; `at` is where its residual lies.
template <class Lanes>
inline Numbers<Lanes> with_affine(const ConvTask& t, const Folded& f, typename Lanes::Sum sum, const char* wide,
                                  size_t at) {
  Numbers<Lanes> out;
  UNROLL
  for (int k = 0; k < Lanes::kParts; ++k) {
    Vec v = Lanes::part(sum, k);
    if (wide) v += load(wide + size_t(k) * kBytes);
    v = product(v, Vec{} + f.a) + f.b;
    if (t.residual) v += product(Lanes::part(load_lanes<Lanes>(t.residual + at), k), Vec{} + f.c);
    out.of[k] = v;
  }
  return out;
}

template <class Lanes>
inline Numbers<Lanes> with_epilogue(const ConvTask& t, const Folded& f, const char* sums, int y, int x, int channel) {
  const size_t position = size_t(y * t.patch.w + x);
  const char* wide = has_wide_sums<Lanes>(t) ? sums + wide_position<Lanes>(t, position) : nullptr;
  const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes;
  Numbers<Lanes> out = with_affine<Lanes>(t, f, load_lanes<Lanes>(sums + position * kBytes), wide, at);
  const EpilogueView epilogue = of_channel(t.epilogue, channel);
  UNROLL
  for (int k = 0; k < Lanes::kParts; ++k) out.of[k] = activate(out.of[k], epilogue);
  return out;
}

template <class Lanes>
void write_patch(const ConvTask& t, const char* sums, int channel) {
  const Folded f = fold(t.epilogue, channel);
  for (int y = t.patch.skip_h; y < t.patch.h; ++y)
    for (int x = t.patch.skip_w; x < t.patch.w; ++x)
      store_numbers<Lanes>(t.output + channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes,
                           with_epilogue<Lanes>(t, f, sums, y, x, channel));
}

inline Vec larger(Vec a, Vec b) { return ((a > b) | (a != a)) ? a : b; }  // NaN stays NaN

template <class Lanes>
void write_maxima(const ConvTask& t, const char* sums, int channel) {
  const Folded f = fold(t.epilogue, channel);
  for (int top = 0; top < t.patch.h; top += t.pool_h)
    for (int left = 0; left < t.patch.w; left += t.pool_w) {
      Numbers<Lanes> most;
      UNROLL
      for (int k = 0; k < Lanes::kParts; ++k) most.of[k] = Vec{} - INFINITY;
      for (int y = top; y < top + t.pool_h; ++y)
        for (int x = left; x < left + t.pool_w; ++x) {
          const Numbers<Lanes> next = with_epilogue<Lanes>(t, f, sums, y, x, channel);
          UNROLL
          for (int k = 0; k < Lanes::kParts; ++k) most.of[k] = larger(next.of[k], most.of[k]);
        }
      store_numbers<Lanes>(t.output + channel * t.pooled_channel_bytes + top / t.pool_h * t.pooled_row_bytes +
                               size_t(left / t.pool_w) * kBytes,
                           most);
    }
}

// Whether a lane of this vector of the patch lies in the image.
inline bool in_image(const MeanView& m, int lane, int y, int x) {
  const int tile = lane % m.grid;
  return tile / m.cols * m.tile_h + m.top + y < m.h && tile % m.cols * m.tile_w + m.left + x < m.w;
}

// Every position of every tile lies in the image.
inline bool tiles_fit(const MeanView& m) { return m.grid / m.cols * m.tile_h == m.h && m.cols * m.tile_w == m.w; }

// The means of each image's neighbouring numbers, `count` of them, a power of two.
inline void store_means(const MeanView& m, float* numbers, int count, int channel) {
  for (int i = 0; i < m.images; ++i, numbers += count) {
    for (int step = count / 2; step > 0; step /= 2)
      for (int l = 0; l < step; ++l) numbers[l] += numbers[l + step];
    float mean = numbers[0] * m.fraction;
    if (m.epilogue.scale) mean = product(mean, m.epilogue.scale[channel]) + m.epilogue.shift[channel];
    m.sums[i * m.image_stride + channel] = activate(mean, m.epilogue);
  }
}

template <class Lanes>
void write_means(const ConvTask& t, const char* sums, int channel) {
  constexpr int kCount = Lanes::kParts * kLanes;
  const Folded f = fold(t.epilogue, channel);
  const bool fit = tiles_fit(t.mean);
  Numbers<Lanes> total{};
  for (int y = t.patch.skip_h; y < t.patch.h; ++y)
    for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
      Numbers<Lanes> next = with_epilogue<Lanes>(t, f, sums, y, x, channel);
      for (int l = 0; l < kCount && !fit; ++l)
        if (!in_image(t.mean, l, y, x)) next.of[Lanes::position(l) / kLanes][Lanes::position(l) % kLanes] = 0;
      UNROLL
      for (int k = 0; k < Lanes::kParts; ++k) total.of[k] += next.of[k];
    }
  float parts[kCount], numbers[kCount];
  memcpy(parts, &total, sizeof parts);
  for (int l = 0; l < kCount; ++l) numbers[l] = parts[Lanes::position(l)];
  store_means(t.mean, numbers, t.mean.grid, channel);
}

typedef void (*WriteFn)(const ConvTask&, const char*, int);
template <class Lanes>
WriteFn write_function(const ConvTask& t) {
  return t.mean.sums ? write_means<Lanes> : t.pool_h * t.pool_w > 1 ? write_maxima<Lanes> : write_patch<Lanes>;
}

template <class Lanes, int H, int W, bool residual>
inline __attribute__((always_inline)) void write_clamped(const ConvTask& t, const typename Lanes::Sum* acc, int channel) {
  const Folded f = fold(t.epilogue, channel);
  const Vec a = Vec{} + f.a, b = Vec{} + f.b, c = Vec{} + f.c;
  const float low = t.epilogue.low, high = t.epilogue.high;
  const size_t at = channel * t.output_channel_bytes, row_bytes = t.output_row_bytes;
  const char* beside = t.residual + at;
  char* output = t.output + at;
  UNROLL
  for (int y = 0; y < H; ++y) {
    UNROLL
    for (int x = 0; x < W; ++x) {
      const size_t position = y * row_bytes + size_t(x) * kBytes;
      Numbers<Lanes> v;
      UNROLL
      for (int k = 0; k < Lanes::kParts; ++k) {
        Vec number = product(Lanes::part(acc[y * W + x], k), a) + b;
        if (residual) number += product(Lanes::part(load_lanes<Lanes>(beside + position), k), c);
        v.of[k] = clamp(number, low, high);
      }
      store_numbers<Lanes>(output + position, v);
    }
  }
}

// A patch straight from the registers, where no curve needs them and the whole patch is written. Whether there is a
// residual is asked once: the products, which must not be fused with additions, keep the compiler from doing so.
template <class Lanes, int H, int W>
inline __attribute__((always_inline)) void write_registers(const ConvTask& t, const typename Lanes::Sum* acc, int channel) {
  if (t.residual)
    write_clamped<Lanes, H, W, true>(t, acc, channel);
  else
    write_clamped<Lanes, H, W, false>(t, acc, channel);
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
