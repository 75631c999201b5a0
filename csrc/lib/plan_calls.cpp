// The calls of a plan, as an engine takes them.
#include <numeric>

#include "lib/arguments.hpp"

namespace tersify::lib {
namespace {

class Builder {
 public:
  Builder(Engine& engine, const Plan::Weights& weights, int batch)
      : engine_(engine), weights_(weights), batch_(batch) {}

  // Of all values, for as many parts of the batch as an engine has in memory at once.
  double bytes_at_once(int threads) const {
    constexpr int kMaxPortion = 64;  // as in engine.cpp
    double sum = 0;
    int parts = 0;
    for (const int number : made_) {
      const Value& value = engine_.value(number);
      sum += double(value.numel()) * double(value.element_bytes());
      parts = std::gcd(parts, value.items);
    }
    return parts ? sum / parts * std::min<double>(parts, double(kMaxPortion) * threads) : 0;
  }

  void add(Arguments& a) {
    const std::string_view name = a.name();
    if (name == "quantize") {
      const int value = this->value(a);
      const float scale = a.number(), low = a.number(), high = a.number();
      engine_.quantize(value, {scale, low, high});
    } else if (name == "outputs") {
      engine_.outputs(values(a));
    } else {
      made_.push_back(make(name, a));
    }
    a.done();
  }

 private:
  int known(int64_t number) const {
    if (number < 0 || number >= int64_t(made_.size())) bad_file("the plan reads a value that does not exist yet");
    return made_[size_t(number)];
  }
  int value(Arguments& a) const { return known(a.count()); }
  int value_or_none(Arguments& a) const {
    const int number = a.count(-1);
    return number < 0 ? -1 : known(number);
  }
  std::vector<int> values(Arguments& a, bool or_none = false) const {
    std::vector<int> found;
    for (const Json::Value& item : a.next().list("values")) found.push_back(known(item.whole("a value", 0, INT_MAX)));
    if (found.empty() && !or_none) bad_file("a list of values of the plan is empty");
    return found;
  }
  int items(Arguments& a) const {
    const int64_t items = int64_t(a.count(1)) * batch_;
    if (items > INT_MAX) throw TooLarge("the batch is too large for the plan");
    return int(items);
  }
  template <class Wanted>
  std::shared_ptr<Wanted> weight(Arguments& a) const {
    const int64_t number = a.next().whole("the number of a weight", 0, int64_t(weights_.size()) - 1);
    auto found = std::dynamic_pointer_cast<Wanted>(weights_[size_t(number)]);
    if (!found) throw BadFile("the plan gives '" + std::string(a.name()) + "' a weight that is packed otherwise");
    return found;
  }

  int make(std::string_view name, Arguments& a) const {
    if (name == "input") {
      const int count = items(a);
      return engine_.input(count, a.shape());
    }
    if (name == "input_ids") {
      const int count = items(a);
      return engine_.input_ids(count, a.count(1));
    }
    if (name.substr(0, 4) == "conv") return conv(name, a);
    if (name == "linear" || name == "linear_i8") {
      const int in = value(a);
      if (name == "linear") {
        const auto weights = weight<LinearWeights>(a);
        return engine_.linear(in, weights, a.epilogue());
      }
      const auto weights = weight<LinearInt8Weights>(a);
      return engine_.linear_i8(in, weights, a.epilogue());
    }
    if (name == "max_pool" || name == "fold_max_pool" || name == "avg_pool") {
      const int in = value(a);
      const Window window = a.window();
      const std::vector<int> size = a.counts(2);
      if (name == "max_pool") return engine_.max_pool(in, window, size[0], size[1]);
      if (name == "fold_max_pool") return engine_.fold_max_pool(in, window, size[0], size[1]);
      return engine_.avg_pool(in, window, size[0], size[1], a.flag());
    }
    if (name == "global_mean") {
      const int in = value(a);
      return engine_.global_mean(in, a.epilogue());
    }
    if (name == "elementwise") {
      const int in = value(a), other = value_or_none(a);
      const bool multiply = a.flag();
      return engine_.elementwise(in, other, multiply, a.epilogue());
    }
    if (name == "concatenate") return engine_.concatenate(values(a));
    if (name == "view") {
      const int in = value(a), count = items(a);
      return engine_.view(in, count, a.shape());
    }
    if (name == "embedding") {
      const int in = value(a);
      return engine_.embedding(in, weight<EmbeddingWeights>(a));
    }
    if (name == "recurrent" || name == "recurrent_from") {
      const int in = value(a);
      const auto weights = weight<RecurrentWeights>(a);
      const bool backwards = a.flag();
      if (name == "recurrent") return engine_.recurrent(in, weights, backwards);
      const std::vector<int> first = values(a, true);
      return engine_.recurrent(in, weights, backwards, first, a.flag());
    }
    return other(name, a);
  }

  int conv(std::string_view name, Arguments& a) const {
    const int in = value(a);
    if (name == "conv") {
      const auto weights = weight<ConvWeights>(a);
      const Epilogue epilogue = a.epilogue();
      const int residual = value_or_none(a);
      return engine_.conv(in, weights, epilogue, residual, a.mean().get());
    }
    if (name == "conv_dense") {
      const auto weights = weight<ConvDenseWeights>(a);
      const Epilogue epilogue = a.epilogue();
      const int residual = value_or_none(a);
      return engine_.conv_dense(in, weights, epilogue, residual, a.mean().get());
    }
    if (name == "conv_i8") {
      const auto weights = weight<ConvInt8Weights>(a);
      const Epilogue epilogue = a.epilogue();
      const int residual = value_or_none(a);
      const Quant quant = a.quant();
      return engine_.conv_i8(in, weights, epilogue, residual, quant, a.mean().get());
    }
    if (name == "conv_codes") {
      const auto weights = weight<ConvCodesWeights>(a);
      const Epilogue epilogue = a.epilogue();
      const int residual = value_or_none(a);
      return engine_.conv_codes(in, weights, epilogue, residual, a.quant());
    }
    return unknown(name);
  }

  int other(std::string_view name, Arguments& a) const {
    if (name == "attention") return attention(a, false);
    if (name == "attention_masked") return attention(a, true);
    if (name != "softmax" && name != "softmax_along" && name != "layer_norm" && name != "group_norm" && name != "prelu" &&
        name != "curve" && name != "with_constant" && name != "move")
      return unknown(name);
    const int in = value(a);
    if (name == "softmax") return engine_.softmax(in, a.count());
    if (name == "softmax_along") {
      const int count = a.count();
      return engine_.softmax_along(in, count, a.count());
    }
    if (name == "layer_norm" || name == "group_norm") {
      const int count = a.count();
      std::vector<float> weight = a.vector(), bias = a.vector();
      const float eps = a.number();
      if (name == "group_norm") return engine_.group_norm(in, count, std::move(weight), std::move(bias), eps);
      return engine_.layer_norm(in, count, std::move(weight), std::move(bias), eps, a.flag());
    }
    if (name == "prelu") return engine_.prelu(in, a.vector());
    if (name == "curve") {
      static constexpr Curve kCurves[] = {Curve::Exp, Curve::Log, Curve::LogSigmoid, Curve::Root};
      return engine_.curve(in, kCurves[a.next().whole("a curve", 0, 3)]);
    }
    if (name == "with_constant") {
      std::vector<float> constant = a.vector();
      return engine_.with_constant(in, std::move(constant), a.flag());
    }
    const Shape shape = a.shape();
    Move move;
    for (const Json::Value& item : a.next().list("axes")) {
      const auto axis = item.list("an axis");
      if (axis.size() != 4) bad_file("an axis of a move has 4 numbers");
      const auto size = [&](size_t i) { return int(a.whole(axis[i], "an axis", 0, INT_MAX)); };
      move.axes.push_back({size(0), size(1), size(2), a.whole(axis[3], "a stride", INT_MIN, INT_MAX)});
    }
    move.offset = a.wide();
    move.fill = a.number();
    return engine_.move(in, shape, std::move(move));
  }

  int attention(Arguments& a, bool masked) const {
    const std::vector<int> in = values(a), s = a.counts(6);
    const float scale = a.number();
    const bool causal = a.flag();
    const std::vector<bool> first = a.flags(4), mask = a.flags(3);
    return engine_.attention(in, {s[0], s[1], s[2], s[3], s[4], s[5], scale, causal, first[0], first[1], first[2],
                                  first[3], mask[0], mask[1], mask[2]},
                             masked ? a.vector() : std::vector<float>());
  }

  [[noreturn]] static int unknown(std::string_view name) {
    throw BadFile("the plan has the call '" + std::string(name) + "'; a newer library may know it");
  }

  Engine& engine_;
  const Plan::Weights& weights_;
  int batch_;
  std::vector<int> made_;
};

// The ports say what a caller must hand over; they must be what the engine will read and write.
void check_ports(const Plan& plan, const Asked& asked, const Engine& engine, bool outputs) {
  const std::vector<Port>& ports = plan.ports(outputs);
  const size_t count = outputs ? engine.output_number() : engine.input_number();
  if (ports.size() != count) bad_file("the plan names other inputs or outputs than it has");
  for (size_t i = 0; i < count; ++i) {
    const int64_t numbers = outputs ? engine.output_count(i) : engine.input_count(i);
    int64_t product = 1;
    for (const int64_t factor : plan.shape_of(outputs, i, asked)) {
      if (product > numbers / factor) bad_file("a port of the plan has another size than its value");
      product *= factor;
    }
    if (product != numbers || (!outputs && ports[i].ids != engine.input_is_ids(i)))
      bad_file("a port of the plan has another size or type than its value");
  }
}

}  // namespace

std::unique_ptr<Engine> Plan::engine(const Weights& weights, const std::shared_ptr<Workspace>& workspace,
                                     const Asked& wanted, uint64_t max_bytes) const {
  auto made = std::make_unique<Engine>(workspace);
  // Where sizes are polynomials, items are, too.
  Builder builder(*made, weights, batch || free_ ? 1 : int(wanted.batch));
  for (const Json::Value& call : json_->root().find("calls").list("the calls")) {
    Arguments a(*this, call, sizes_of(wanted));
    builder.add(a);
  }
  made->seal();
  if (builder.bytes_at_once(workspace->threads()) > double(max_bytes))
    throw TooLarge("the values of the plan take more than the limit of memory allows");
  check_ports(*this, wanted, *made, false);
  check_ports(*this, wanted, *made, true);
  return made;
}

}  // namespace tersify::lib
