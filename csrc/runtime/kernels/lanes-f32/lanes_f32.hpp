// Between flat tensors and lanes.

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

// Calls `convert` with the lanes inside the image, the flat side of a channel and its vector.
template <class Convert>
void exchange(const LaneView& v, float* flat, char* lanes, int group, int c_begin, int c_end, const Convert& convert) {
  for (int y = 0; y < v.tile_h; ++y)
    for (int x = 0; x < v.tile_w; ++x) {
      const InsideLanes inside = inside_lanes(v, group, y, x);
      for (int c = c_begin; c < c_end; ++c) {
        const size_t vectors = (size_t(group) * v.c + c) * v.channel_vectors + size_t(y) * v.tile_w + x;
        convert(inside, flat + c * v.stride_c, lanes + vectors * kBytes);
      }
    }
}

// Where neighbours of the flat side are neighbouring channels: squares of lanes and channels change sides.
template <bool into_lanes>
void exchange_squares(const LaneView& v, float* flat, char* lanes, int group, int c_begin, int c_end) {
  for (int y = 0; y < v.tile_h; ++y)
    for (int x = 0; x < v.tile_w; ++x) {
      const InsideLanes inside = inside_lanes(v, group, y, x);
      for (int c = c_begin; c < c_end; c += kLanes) {
        const int some = c_end - c < kLanes ? c_end - c : kLanes;
        const size_t apart = size_t(v.channel_vectors) * kBytes;
        char* vector = lanes + (size_t(group) * v.c + c) * apart + (size_t(y) * v.tile_w + x) * kBytes;
        IntVec square[kLanes] = {};
        if (into_lanes) {
          for (int i = 0; i < inside.count; ++i)
            square[inside.lane[i]] = (IntVec)load_some(flat + inside.at[i] + c, some);
          transpose(square);
          for (int i = 0; i < some; ++i) store(vector + i * apart, (Vec)square[i]);
        } else {
          for (int i = 0; i < some; ++i) square[i] = (IntVec)load(vector + i * apart);
          transpose(square);
          for (int i = 0; i < inside.count; ++i) store_some(flat + inside.at[i] + c, (Vec)square[inside.lane[i]], some);
        }
      }
    }
}

void to_lanes(const LaneView& v, const float* flat, char* lanes, int group, int c_begin, int c_end) {
  if (v.stride_c == 1) return exchange_squares<true>(v, const_cast<float*>(flat), lanes, group, c_begin, c_end);
  exchange(v, const_cast<float*>(flat), lanes, group, c_begin, c_end,
           [](const InsideLanes& inside, const float* channel, char* vector) {
             float numbers[kLanes] = {};
             for (int i = 0; i < inside.count; ++i) numbers[inside.lane[i]] = channel[inside.at[i]];
             memcpy(vector, numbers, sizeof numbers);
           });
}

void from_lanes(const LaneView& v, const char* lanes, float* flat, int group, int c_begin, int c_end) {
  if (v.stride_c == 1) return exchange_squares<false>(v, flat, const_cast<char*>(lanes), group, c_begin, c_end);
  exchange(v, flat, const_cast<char*>(lanes), group, c_begin, c_end,
           [](const InsideLanes& inside, float* channel, const char* vector) {
             float numbers[kLanes];
             memcpy(numbers, vector, sizeof numbers);
             for (int i = 0; i < inside.count; ++i) channel[inside.at[i]] = numbers[inside.lane[i]];
           });
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
