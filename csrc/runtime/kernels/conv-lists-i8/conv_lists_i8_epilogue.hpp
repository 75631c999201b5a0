// How the sums of byte lanes are finished and written: a patch, its maxima or its means.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Plain: no curve and no wide sums.
template <bool plain, bool adds>
inline __attribute__((always_inline)) IntVec position_i8(const ConvTask& t, const ByteEpilogue& n, const char* sums,
                                                         const char* wides, size_t at) {
  const bool curved = t.epilogue.activation != Activation::Clamp;
  const float inverse = 1.0f / t.output_quant.scale;
  const ByteSums bytes = byte_sums(sums);
  const IntVec other = adds ? (IntVec)load_words_i8(t.residual + at) : IntVec{};
  Vec numbers[kWides];
  UNROLL
  for (int k = 0; k < kWides; ++k) {
    const IntVec sum = plain || !t.flushes ? bytes.of[k] : bytes.of[k] + (IntVec)load(wides + k * kBytes);
    Vec v = product(__builtin_convertvector(sum, Vec), Vec{} + n.a) + n.b;
    if (adds) v += product(__builtin_convertvector((other >> 8 * k) & 0xff, Vec), Vec{} + n.c);
    if (!plain && curved) v = product(activate(v, t.epilogue), Vec{} + inverse) + byte_zero(t.output_quant);
    numbers[k] = v;
  }
  return rounded_bytes(numbers, n.low, n.high);
}

template <bool plain, bool adds>
void write_patch_i8(const ConvTask& t, const char* sums, int channel) {
  const ByteEpilogue n = t.byte_epilogues[channel];
  const char* wides = sums + size_t(t.patch.h) * t.patch.w * kSums * kBytes;
  for (int y = t.patch.skip_h; y < t.patch.h; ++y) {
    const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes;
    for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
      const size_t position = size_t(y * t.patch.w + x);
      const size_t target = at + size_t(x) * kBytes;
      const IntVec out =
          position_i8<plain, adds>(t, n, sums + position * kSums * kBytes, wides + position * kWides * kBytes, target);
      store_words_i8(t.output + target, (WordVec)out);
    }
  }
}

template <bool adds>
void write_maxima_i8(const ConvTask& t, const char* sums, int channel) {
  const ByteEpilogue n = t.byte_epilogues[channel];
  const char* wides = sums + size_t(t.patch.h) * t.patch.w * kSums * kBytes;
  for (int top = 0; top < t.patch.h; top += t.pool_h)
    for (int left = 0; left < t.patch.w; left += t.pool_w) {
      ByteVec most{};
      for (int y = top; y < top + t.pool_h; ++y)
        for (int x = left; x < left + t.pool_w; ++x) {
          const size_t position = size_t(y * t.patch.w + x);
          const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes;
          const ByteVec next = (ByteVec)position_i8<false, adds>(t, n, sums + position * kSums * kBytes,
                                                                 wides + position * kWides * kBytes, at);
          most = next > most ? next : most;
        }
      store_words_i8(t.output + channel * t.pooled_channel_bytes + top / t.pool_h * t.pooled_row_bytes +
                         size_t(left / t.pool_w) * kBytes,
                     (WordVec)most);
    }
}

// A whole vector is one image's usually, and the compiler likes to know.
inline int32_t sum_of(const int32_t* numbers, int count) {
  int32_t sum = 0;
  if (count == kLanes)
    for (int l = 0; l < kLanes; ++l) sum += numbers[l];
  else
    for (int l = 0; l < count; ++l) sum += numbers[l];
  return sum;
}

// The numbers themselves, not steps of an output. They are added as whole multiples of a step so small that float could
// not tell the difference: whole numbers have the same sum in any order, and each vector width has its own. The lowest
// 16 bits are added apart, so that nothing overflows.
void write_means_i8(const ConvTask& t, const char* sums, int channel) {
  Folded f = fold(t.epilogue, channel);
  f.c *= t.residual_quant.scale;
  f.b -= product(f.c, byte_zero(t.residual_quant));
  const bool fit = tiles_fit(t.mean);
  const size_t positions = size_t(t.patch.h) * t.patch.w;
  const float steps = t.mean.steps[channel];
  IntVec lows[kWides] = {}, highs[kWides] = {};
  for (int y = t.patch.skip_h; y < t.patch.h; ++y)
    for (int x = t.patch.skip_w; x < t.patch.w; ++x) {
      const size_t position = size_t(y * t.patch.w + x);
      const ByteSums bytes = byte_sums(sums + position * kSums * kBytes);
      const size_t at = channel * t.output_channel_bytes + y * t.output_row_bytes + size_t(x) * kBytes;
      const IntVec other = t.residual ? (IntVec)load_words_i8(t.residual + at) : IntVec{};
      for (int k = 0; k < kWides; ++k) {
        IntVec sum = bytes.of[k];
        if (t.flushes) sum += (IntVec)load(sums + (positions * kSums + position * kWides + k) * kBytes);
        Vec v = product(__builtin_convertvector(sum, Vec), Vec{} + f.a) + f.b;
        if (t.residual) v += product(__builtin_convertvector((other >> 8 * k) & 0xff, Vec), Vec{} + f.c);
        v = activate(v, t.epilogue);
        for (int l = 0; l < kLanes && !fit; ++l)
          if (!in_image(t.mean, l * kWides + k, y, x)) v[l] = 0;
        const IntVec whole = __builtin_convertvector(v * steps, IntVec);
        lows[k] += whole & 0xffff;
        highs[k] += whole >> 16;
      }
    }
  int32_t low[kBytes], high[kBytes];
  const bool together = t.mean.grid >= kWides;  // the four bytes of 32 bits belong to one image
  const int count = together ? t.mean.grid / kWides : t.mean.grid;
  if (together) {
    const IntVec all_lows = lows[0] + lows[1] + lows[2] + lows[3], all_highs = highs[0] + highs[1] + highs[2] + highs[3];
    memcpy(low, &all_lows, sizeof all_lows);
    memcpy(high, &all_highs, sizeof all_highs);
  } else {
    for (int b = 0; b < kBytes; ++b) low[b] = lows[b % kWides][b / kWides], high[b] = highs[b % kWides][b / kWides];
  }
  for (int i = 0; i < t.mean.images; ++i)
    t.mean.totals[i * t.mean.image_stride + channel] =
        int64_t(sum_of(high + i * count, count)) * 65536 + sum_of(low + i * count, count);
}

WriteFn write_function_i8(const ConvTask& t) {
  if (t.mean.totals) return write_means_i8;
  if (t.pool_h * t.pool_w > 1) return t.residual ? write_maxima_i8<true> : write_maxima_i8<false>;
  const bool plain = t.epilogue.activation == Activation::Clamp && !t.flushes;
  if (plain) return t.residual ? write_patch_i8<true, true> : write_patch_i8<true, false>;
  return t.residual ? write_patch_i8<false, true> : write_patch_i8<false, false>;
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
