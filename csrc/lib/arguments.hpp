// The arguments of one call of a plan, taken in order; each is checked before anybody believes it.
#pragma once

#include <climits>

#include "lib/plan.hpp"

namespace tersify::lib {

class Arguments {
 public:
  Arguments(const Plan& plan, const Json::Value& call, const Sizes& sizes = {})
      : numbers_(plan.numbers_),
        sizes_(sizes),
        items_(call.list("a call")),
        what_(items_.empty() ? "" : items_[0].text("a call")) {
    if (items_.empty()) bad_file("a call of the plan has no name");
  }

  std::string_view name() const { return what_; }
  void done() const {
    if (at_ != items_.size()) throw BadFile("the plan gives '" + std::string(what_) + "' too many arguments");
  }

  const Json::Value& next() {
    if (at_ == items_.size()) throw BadFile("the plan gives '" + std::string(what_) + "' too few arguments");
    return items_[at_++];
  }
  int count(int64_t low = INT_MIN) { return int(whole(next(), "an argument", low, INT_MAX)); }
  bool flag() { return next().flag("an argument"); }
  int64_t wide() { return whole(next(), "an argument", -(int64_t(1) << 48), int64_t(1) << 48); }
  float number() { return number_at(next(), false); }
  std::vector<float> vector() { return vector_of(next()); }
  std::vector<int> counts(size_t wanted) { return counts_of(next(), wanted); }
  std::vector<bool> flags(size_t wanted) {
    std::vector<bool> made;
    for (const Json::Value& item : next().list("an argument")) made.push_back(item.flag("an argument"));
    if (made.size() != wanted) bad_file("a list of the plan has another length than it must");
    return made;
  }
  Shape shape() {
    const std::vector<int> v = counts(3);
    return checked_shape(v[0], v[1], v[2]);
  }
  Window window() {
    const std::vector<int> v = counts(8);
    Window w;
    w.kernel_h = v[0], w.kernel_w = v[1], w.stride_h = v[2], w.stride_w = v[3];
    w.pad_h = v[4], w.pad_w = v[5], w.dilation_h = v[6], w.dilation_w = v[7];
    check_window(w);
    return w;
  }
  Quant quant() {
    const std::vector<float> v = vector();
    if (v.size() != 3) bad_file("a quantization has a scale, a low and a high end");
    return {v[0], v[1], v[2]};
  }
  Epilogue epilogue() { return epilogue_of(next()); }
  std::unique_ptr<Epilogue> mean() {
    const Json::Value& value = next();
    return value.is_null() ? nullptr : std::make_unique<Epilogue>(epilogue_of(value));
  }
  std::vector<int> counts_of(const Json::Value& value, size_t wanted) const {
    std::vector<int> made;
    for (const Json::Value& item : value.list("an argument"))
      made.push_back(int(whole(item, "a size", INT_MIN, INT_MAX)));
    if (made.size() != wanted) bad_file("a list of the plan has another length than it must");
    return made;
  }
  // Of a number that may change with the batch and the length.
  int64_t whole(const Json::Value& value, const char* what, int64_t low, int64_t high) const {
    return sizes_.whole(value, what, low, high);
  }
  std::vector<float> vector_of(const Json::Value& value) const {
    const auto ends = value.list("a vector");
    if (ends.size() != 2) bad_file("a vector of the plan is [begin, count]");
    const int64_t all = int64_t(numbers_.size());
    const int64_t begin = ends[0].whole("the begin of a vector", 0, all);
    const int64_t count = whole(ends[1], "the size of a vector", 0, all - begin);
    for (int64_t i = begin; i < begin + count; ++i) check_finite(numbers_[size_t(i)]);
    return {numbers_.begin() + begin, numbers_.begin() + begin + count};
  }

 private:
  static void check_finite(float number) {
    if (!std::isfinite(number)) bad_file("a number of the plan is not finite");
  }
  float number_at(const Json::Value& value, bool is_end) const {
    const float found = numbers_.at(size_t(value.whole("the place of a number", 0, int64_t(numbers_.size()) - 1)));
    if (!is_end || std::isnan(found)) check_finite(found);
    return found;
  }
  Epilogue epilogue_of(const Json::Value& value) const {
    const auto parts = value.list("an epilogue");
    if (parts.size() != 7) bad_file("an epilogue of the plan has 7 parts");
    Epilogue made{vector_of(parts[0]), vector_of(parts[1]), vector_of(parts[2]), vector_of(parts[3])};
    static constexpr Activation kActivations[] = {Activation::Clamp,     Activation::Gelu,    Activation::GeluTanh,
                                                  Activation::Silu,      Activation::Sigmoid, Activation::Tanh,
                                                  Activation::HardSwish, Activation::Leaky};
    made.activation = kActivations[parts[4].whole("an activation", 0, 7)];
    made.low = number_at(parts[5], true);
    made.high = number_at(parts[6], true);
    return made;
  }

  const std::vector<float>& numbers_;
  const Sizes sizes_;
  std::vector<Json::Value> items_;
  std::string_view what_;
  size_t at_ = 1;
};

}  // namespace tersify::lib
