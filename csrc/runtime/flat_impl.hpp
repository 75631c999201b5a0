// Between flat tensors and lanes, and what happens number by number.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

struct LaneStart {
  int image, y, x;
};

inline LaneStart lane_start(const LaneView& v, int lane) {
  const int tile = lane % (v.rows * v.cols);
  return {lane / (v.rows * v.cols), tile / v.cols * v.tile_h, tile % v.cols * v.tile_w};
}

// The lanes of one vector that lie in the image, and where the flat side keeps their first channel.
struct InsideLanes {
  int count;
  int lane[kBytes];
  ptrdiff_t at[kBytes];
};

inline InsideLanes inside_lanes(const LaneView& v, int group, int y, int x) {
  InsideLanes found;
  found.count = 0;
  for (int image = group * v.images; image < v.n && image < (group + 1) * v.images; ++image)
    for (int row = 0; row < v.rows && row * v.tile_h + y < v.h; ++row)
      for (int col = 0; col < v.cols && col * v.tile_w + x < v.w; ++col) {
        found.lane[found.count] = (image % v.images * v.rows + row) * v.cols + col;
        found.at[found.count++] =
            image * v.stride_n + (row * v.tile_h + y) * v.stride_y + (col * v.tile_w + x) * v.stride_x;
      }
  return found;
}

// Calls `move` with the lanes inside the image, the flat side of a channel and its vector.
template <class Move>
void exchange(const LaneView& v, float* flat, char* lanes, int group, int c_begin, int c_end, const Move& move) {
  for (int y = 0; y < v.tile_h; ++y)
    for (int x = 0; x < v.tile_w; ++x) {
      const InsideLanes inside = inside_lanes(v, group, y, x);
      for (int c = c_begin; c < c_end; ++c) {
        const size_t vectors = (size_t(group) * v.c + c) * v.channel_vectors + size_t(y) * v.tile_w + x;
        move(inside, flat + c * v.stride_c, lanes + vectors * kBytes);
      }
    }
}

void to_lanes(const LaneView& v, const float* flat, char* lanes, int group, int c_begin, int c_end) {
  exchange(v, const_cast<float*>(flat), lanes, group, c_begin, c_end,
           [](const InsideLanes& inside, const float* channel, char* vector) {
             float numbers[kLanes] = {};
             for (int i = 0; i < inside.count; ++i) numbers[inside.lane[i]] = channel[inside.at[i]];
             memcpy(vector, numbers, sizeof numbers);
           });
}

void from_lanes(const LaneView& v, const char* lanes, float* flat, int group, int c_begin, int c_end) {
  exchange(v, flat, const_cast<char*>(lanes), group, c_begin, c_end,
           [](const InsideLanes& inside, float* channel, const char* vector) {
             float numbers[kLanes];
             memcpy(numbers, vector, sizeof numbers);
             for (int i = 0; i < inside.count; ++i) channel[inside.at[i]] = numbers[inside.lane[i]];
           });
}

void elementwise(float* out, const float* a, const float* b, bool multiply, size_t count, const EpilogueView& f,
                 int channel) {
  const float scale = f.scale ? f.scale[channel] : 1.0f, shift = f.shift ? f.shift[channel] : 0.0f;
  const float scale2 = f.scale2 ? f.scale2[channel] : 1.0f, shift2 = f.scale2 ? f.shift2[channel] : 0.0f;
  for (size_t i = 0; i < count; ++i) {
    float v = a[i] * scale + shift;
    if (b) v = multiply ? v * b[i] : v + b[i];
    out[i] = v * scale2 + shift2;
  }
  if (f.act == Act::Clamp) {
    for (size_t i = 0; i < count; ++i) {
      const float v = out[i] < f.low ? f.low : out[i];
      out[i] = v > f.high ? f.high : v;
    }
  } else {
    for (size_t i = 0; i < count; ++i) out[i] = curve(out[i], f.act);
  }
}

void elementwise_rows(float* out, const float* a, const float* b, bool multiply, int channels, const EpilogueView& f) {
  for (int c = 0; c < channels; ++c) {
    float v = a[c];
    if (f.scale) v = v * f.scale[c] + f.shift[c];
    if (b) v = multiply ? v * b[c] : v + b[c];
    if (f.scale2) v = v * f.scale2[c] + f.shift2[c];
    out[c] = activate(v, f);
  }
}

void global_mean(const LaneView& v, const char* lanes, float* flat, int group, const EpilogueView& f) {
  const int grid = v.rows * v.cols;
  const bool whole = v.rows * v.tile_h == v.h && v.cols * v.tile_w == v.w;
  const float share = 1.0f / (float(v.h) * v.w);
  for (int c = 0; c < v.c; ++c) {
    const char* channel = lanes + (size_t(group) * v.c + c) * v.channel_vectors * kBytes;
    Vec sum{};
    for (int y = 0; y < v.tile_h; ++y)
      for (int x = 0; x < v.tile_w; ++x) {
        Vec next = load(channel + (size_t(y) * v.tile_w + x) * kBytes);
        if (!whole)
          for (int l = 0; l < kLanes; ++l) {
            const LaneStart at = lane_start(v, l);
            if (at.y + y >= v.h || at.x + x >= v.w) next[l] = 0;
          }
        sum += next;
      }
    for (int i = 0; i < v.images && group * v.images + i < v.n; ++i) {
      float total = 0;
      for (int l = 0; l < grid; ++l) total += sum[i * grid + l];
      float mean = total * share;
      if (f.scale) mean = mean * f.scale[c] + f.shift[c];
      flat[size_t(group * v.images + i) * v.c + c] = activate(mean, f);
    }
  }
}

bool all_finite(const float* x, size_t count) {
  constexpr uint32_t kExponent = 0x7f800000;  // all ones in NaN and infinity alone
  uint32_t found = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t bits;
    memcpy(&bits, x + i, sizeof bits);
    found |= (bits & kExponent) == kExponent;
  }
  return !found;
}

void softmax(float* out, const float* in, int count) {
  float top = -INFINITY, sum = 0;
  for (int i = 0; i < count; ++i) top = in[i] > top ? in[i] : top;
  for (int i = 0; i < count; ++i) sum += out[i] = expf(in[i] - top);
  for (int i = 0; i < count; ++i) out[i] /= sum;
}

void layer_norm(float* out, const float* in, int count, const float* weight, const float* bias, float eps) {
  double sum = 0, squares = 0;
  for (int i = 0; i < count; ++i) sum += in[i];
  const float mean = float(sum / count);
  for (int i = 0; i < count; ++i) squares += double(in[i] - mean) * (in[i] - mean);
  const float spread = 1.0f / sqrtf(float(squares / count) + eps);
  for (int i = 0; i < count; ++i) {
    const float v = (in[i] - mean) * spread;
    out[i] = v * (weight ? weight[i] : 1.0f) + (bias ? bias[i] : 0.0f);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
