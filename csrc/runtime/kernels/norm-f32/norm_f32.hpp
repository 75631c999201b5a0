// Vectors that become others by themselves: softmax and layer norm.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

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
