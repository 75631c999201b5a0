// Vectors that become others by themselves: softmax, and norms by their mean and spread.

namespace tersify {
namespace TERSIFY_NAMESPACE {
namespace {

// Which of the lanes come before `count`.
inline IntVec lanes_before(int count) {
  IntVec numbers;
  for (int l = 0; l < kLanes; ++l) numbers[l] = l;
  return (IntVec)(numbers < IntVec{} + count);
}

// exp_of ends at −87: what lies further below the largest is nothing.
inline Vec exp_below(Vec x) { return x < Vec{} - 87.0f ? Vec{} : exp_of(x); }

void softmax(float* out, const float* in, int count) {
  const int last = count % kLanes ? count / kLanes * kLanes : count;
  const IntVec rest = lanes_before(count - last);
  Vec tops = Vec{} - INFINITY;
  for (int i = 0; i < count; i += kLanes) {
    Vec v = load_some(in + i, count - i);
    if (i == last) v = rest ? v : Vec{} - INFINITY;
    tops = v > tops ? v : tops;
  }
  float top = tops[0];
  for (int l = 1; l < kLanes; ++l) top = tops[l] > top ? tops[l] : top;
  Vec sums = {};
  for (int i = 0; i < count; i += kLanes) {
    Vec e = exp_below(load_some(in + i, count - i) - top);
    if (i == last) e = rest ? e : Vec{};
    sums += e;
    store_some(out + i, e, count - i);
  }
  const float inverse = 1.0f / sum_of(sums);
  for (int i = 0; i < count; i += kLanes) store_some(out + i, load_some(out + i, count - i) * inverse, count - i);
}

// The same of `count` numbers that lie `apart`, side by side for `columns` of them.
void softmax_columns(float* out, const float* in, int count, size_t apart, int columns) {
  for (int c = 0; c < columns; c += kLanes) {
    Vec top = Vec{} - INFINITY, sum = {};
    for (int i = 0; i < count; ++i) {
      const Vec v = load_some(in + i * apart + c, columns - c);
      top = v > top ? v : top;
    }
    for (int i = 0; i < count; ++i) {
      const Vec e = exp_below(load_some(in + i * apart + c, columns - c) - top);
      sum += e;
      store_some(out + i * apart + c, e, columns - c);
    }
    const Vec inverse = 1.0f / sum;
    for (int i = 0; i < count; ++i)
      store_some(out + i * apart + c, load_some(out + i * apart + c, columns - c) * inverse, columns - c);
  }
}

// Sums of many floats keep their digits: a thousand are added in lanes, then those sums in double.
template <class Term>
inline double long_sum(int count, Term term) {
  constexpr int kRun = 64 * kSumLanes;
  double sum = 0;
  for (int begin = 0; begin < count; begin += kRun)
    sum += sum_in_order(count - begin < kRun ? count - begin : kRun,
                        [&](int i, int some) { return term(begin + i, some); });
  return sum;
}

// What a norm takes off every number, and what it multiplies with then. `centred` false: only the latter (RMS norm).
// The mean is taken of distances to the first number: numbers that are all equal lie exactly at it, and become zero.
void moments(const float* in, int count, float eps, bool centred, float* mean, float* factor) {
  const float first = centred ? in[0] : 0.0f;
  const double sum = centred ? long_sum(count,
                                        [&](int i, int some) {
                                          Vec v = load_some(in + i, some) - first;
                                          for (int l = some; l < kLanes; ++l) v[l] = 0;
                                          return v;
                                        })
                             : 0.0;
  const float middle = float(first + sum / count);
  const double squares = long_sum(count, [&](int i, int some) {
    Vec v = load_some(in + i, some) - middle;
    for (int l = some; l < kLanes; ++l) v[l] = 0;
    return product(v, v);
  });
  *mean = middle;
  *factor = 1.0f / sqrtf(float(squares / count) + eps);
}

void layer_norm(float* out, const float* in, int count, const float* weight, const float* bias, float eps,
                bool centred) {
  float mean, factor;
  moments(in, count, eps, centred, &mean, &factor);
  for (int i = 0; i < count; i += kLanes) {
    const int some = count - i < kLanes ? count - i : kLanes;
    Vec v = product(load_some(in + i, some) - mean, Vec{} + factor);
    if (weight) v = product(v, load_some(weight + i, some));
    if (bias) v = v + load_some(bias + i, some);
    store_some(out + i, v, some);
  }
}

}  // namespace
}  // namespace TERSIFY_NAMESPACE
}  // namespace tersify
