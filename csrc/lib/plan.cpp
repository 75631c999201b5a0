#include "lib/plan.hpp"

#include <algorithm>
#include <cstring>

#include "lib/arguments.hpp"

namespace tersify::lib {
namespace {

constexpr uint64_t kMaxPlan = 1 << 26, kMinPlan = 1 << 20;
constexpr uint64_t kBytesPerValue = 64;  // of parsed text
constexpr int64_t kMaxSize = int64_t(1) << 31;
constexpr size_t kMaxRank = 32;
constexpr int64_t kMaxBatch = 1 << 24, kMaxLength = int64_t(1) << 31;

std::vector<Port> ports_of(const Json::Value& value, bool fixed, bool free, uint64_t max_bytes) {
  std::vector<Port> ports;
  for (const Json::Value& item : value.list("the ports of the plan")) {
    const auto parts = item.list("a port");
    if (parts.size() != 3) bad_file("a port of the plan has a name, a shape and a dtype");
    Port port;
    port.name = std::string(parts[0].text("the name of a port"));
    const std::string_view dtype = parts[2].text("the dtype of a port");
    port.ids = dtype == "int64";
    if (!port.ids && dtype != "float32") bad_file("a port of the plan is of float32 or int64");
    for (const Json::Value& size : parts[1].list("the shape of a port")) {
      if (size.is_null() && (fixed || !port.shape.empty())) bad_file("the batch is the first axis of a port");
      if (free && size.kind() == Json::Kind::Object) {
        port.shape.push_back(-2);
        continue;
      }
      port.shape.push_back(size.is_null() ? -1 : size.whole("a size", 1, kMaxSize));
    }
    if (port.shape.size() > kMaxRank) bad_file("a port of the plan has too many axes");
    uint64_t bytes = port.ids ? sizeof(int64_t) : sizeof(float);
    for (const int64_t size : port.shape) {
      if (size > 0 && bytes > max_bytes / uint64_t(size))
        throw TooLarge("'" + port.name + "' is larger than the limit of memory allows");
      bytes *= uint64_t(size > 0 ? size : 1);
    }
    ports.push_back(std::move(port));
  }
  return ports;
}

// The weight of a transposed convolution, [channels][outputs][height][width], as the plain one that makes each phase of
// its strides in a row of its own: taps in reverse, zeros where other phases have more.
std::vector<float> with_phases(const std::vector<float>& numbers, const std::vector<int64_t>& own,
                               const std::vector<int>& strides, const std::vector<int>& shape) {
  if (own.size() < 3 || own.size() > 4 || shape.size() != 4) bad_file("a weight of the plan has no phases");
  const int64_t outputs = own[1], height = own.size() == 4 ? own[2] : 1, width = own.back();
  const int64_t step_h = strides[0], step_w = strides[1], taps_h = shape[2], taps_w = shape[3];
  if (step_h < 1 || step_w < 1 || shape[1] != own[0] || outputs < 1 || shape[0] % outputs ||
      shape[0] / outputs != step_h * step_w || taps_h * step_h < height || taps_w * step_w < width)
    bad_file("the phases of a weight of the plan do not fit its tensor");
  std::vector<float> made;
  made.reserve(size_t(shape[0]) * size_t(shape[1]) * size_t(taps_h * taps_w));
  for (int64_t row = 0; row < shape[0]; ++row)
    for (int64_t c = 0; c < own[0]; ++c)
      for (int64_t i = taps_h - 1; i >= 0; --i)
        for (int64_t j = taps_w - 1; j >= 0; --j) {
          const int64_t y = i * step_h + row / step_w % step_h, x = j * step_w + row % step_w;
          const int64_t plane = c * outputs + row / (step_h * step_w);
          made.push_back(y < height && x < width ? numbers[size_t((plane * height + y) * width + x)] : 0.0f);
        }
  return made;
}

// What a weight of the plan stands for, and its shape.
std::vector<float> weight_of(const TerseFile& file, const Arguments& args, const Json::Value& value,
                             std::vector<int>& shape, size_t rank) {
  const auto parts = value.list("a weight");
  if (parts.size() < 3) bad_file("a weight of the plan has too few parts");
  const std::string_view how = parts[0].text("a weight");
  const bool own = how == "numbers", coded = how == "codes";
  if (!own && !coded && how != "tensor" && how != "signs") bad_file("the plan has a weight of an unknown kind");
  if (parts.size() != (own ? 3u : coded ? 5u : 4u)) bad_file("a weight of the plan has too many or too few parts");
  shape = args.counts_of(parts.back(), rank);
  uint64_t elements = 1;
  for (const int size : shape) {
    if (size < 1 || elements > file.max_bytes() / sizeof(float) / uint64_t(size))
      throw TooLarge("a weight of the plan is larger than the limit of memory allows, or empty");
    elements *= uint64_t(size);
  }
  std::vector<float> numbers;
  if (own) {
    numbers = args.vector_of(parts[1]);
    if (numbers.size() != elements) bad_file("a weight of the plan has another size than its shape");
    return numbers;
  }
  const std::string_view name = parts[1].text("the name of a tensor");
  const Entry& entry = file.entry(name);
  const bool phases = parts[2].kind() == Json::Kind::List;
  if (!phases && uint64_t(entry.elements) != elements) bad_file("a weight of the plan has another size than its tensor");
  if (coded) {
    const std::vector<float> table = args.vector_of(parts[3]);
    const Entry& content = file.content(entry);
    if (!content.codebook || table.size() != size_t(content.levels))
      bad_file("a table of the plan must have a number for each level of its tensor");
    const Bytes codes = file.codes(name);
    numbers.resize(codes.size());
    for (size_t i = 0; i < codes.size(); ++i) numbers[i] = table[codes[i]];
  } else {
    numbers = file.floats(name);
    if (how == "signs")
      for (float& number : numbers) number = number > 0 ? 1.0f : number < 0 ? -1.0f : 0.0f;
  }
  if (phases) return with_phases(numbers, entry.shape, args.counts_of(parts[2], 2), shape);
  if (!parts[2].flag("whether a weight is turned")) return numbers;
  if (rank != 2 || entry.shape.size() != 2) bad_file("only matrices are turned");
  const size_t rows = size_t(entry.shape[1]), columns = size_t(entry.shape[0]);
  std::vector<float> turned(numbers.size());
  for (size_t r = 0; r < rows; ++r)
    for (size_t c = 0; c < columns; ++c) turned[r * columns + c] = numbers[c * rows + r];
  return turned;
}

DenseWeight dense_weight(const std::vector<float>& numbers, const std::vector<int>& shape, const Window& window,
                         int groups) {
  if (groups < 1 || shape[2] != window.kernel_h || shape[3] != window.kernel_w)
    bad_file("a weight of the plan does not fit its window or groups");
  if (int64_t(shape[1]) * groups > INT_MAX) bad_file("a weight of the plan has too many channels");
  return {numbers.data(), shape[0], shape[1] * groups, groups, window.taps()};
}

ValueKind kind_of(int number) {
  return number == 0 ? ValueKind::Sign : number == 1 ? ValueKind::Table : ValueKind::Float;
}

}  // namespace

Plan::Plan(const TerseFile& file) {
  if (!file.sections().has("plan"))
    throw NoPlan("the file has no plan, so that only Python can run it; `tersify plan FILE --out OUT` adds one");
  const Bytes zipped = file.sections().read("plan");
  const uint64_t limit = std::min(kMaxPlan, std::max(kMinPlan, file.max_bytes() / 16));
  const Bytes whole = unzip(zipped.data(), zipped.size(), limit, "the plan");
  if (whole.size() < 8) bad_file("the plan ends inside its first 8 bytes");
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | whole[size_t(i)];
  if (length > whole.size() - 8 || (whole.size() - 8 - length) % sizeof(float))
    bad_file("the plan claims more text than it has");
  json_ = std::make_unique<const Json>(
      std::string_view(reinterpret_cast<const char*>(whole.data()) + 8, size_t(length)), "plan",
      size_t(std::max(kMinPlan / kBytesPerValue, std::min(file.max_bytes() / kBytesPerValue, kMaxPlan))));
  numbers_.resize((whole.size() - 8 - size_t(length)) / sizeof(float));
  if (!numbers_.empty()) std::memcpy(numbers_.data(), whole.data() + 8 + length, numbers_.size() * sizeof(float));
  const Json::Value root = json_->root();
  precision = std::string(root.find("precision").text("the precision"));
  if (precision != "fp32" && precision != "int8")
    throw BadFile("the plan has the precision '" + precision + "'; a newer library may know it");
  const Json::Value only = root.find("batch");
  batch = only.is_null() ? 0 : int(only.whole("the batch", 1, INT_MAX));
  if (const Json::Value free = root.find("free"); !free.is_null()) read_lengths(free);
  inputs = ports_of(root.find("inputs"), batch > 0, free_, file.max_bytes());
  outputs = ports_of(root.find("outputs"), batch > 0, free_, file.max_bytes());
  for (const Port& port : outputs)
    if (port.ids) bad_file("an output of a plan is of float32");
  root.find("weights").list("the weights");
  root.find("calls").list("the calls");
  if (const Json::Value names = root.find("labels"); !names.is_null())
    for (const Json::Value& name : names.list("the labels")) labels.emplace_back(name.text("a label"));
  if (const Json::Value image = root.find("image"); !image.is_null()) {
    const std::vector<Json::Value> calls = root.find("calls").list("the calls");
    const auto parts = image.list("what is known of images");
    if (parts.size() != 2 || calls.empty()) bad_file("the plan has a mean and a spread of images");
    const Arguments reader(*this, calls[0]);
    mean = reader.vector_of(parts[0]);
    std = reader.vector_of(parts[1]);
    for (const float spread : std)
      if (!(spread > 0)) bad_file("the spread of an image is above 0");
    if (mean.size() != std.size()) bad_file("the plan has another number of means than of spreads");
  }
}

void Plan::read_lengths(const Json::Value& given) {
  free_ = true;
  const Json::Value value = given.find("length");
  if (value.is_null()) return;
  const auto parts = value.list("the lengths");
  if (parts.size() != 3) bad_file("the lengths of the plan are a least, a step and a most");
  lengths.least = parts[0].whole("the least length", 1, kMaxLength);
  lengths.step = parts[1].whole("the step of lengths", 1, kMaxLength);
  lengths.most = parts[2].is_null() ? kMaxLength : parts[2].whole("the most length", lengths.least, kMaxLength);
}

void Plan::check(const Asked& asked) const {
  if (asked.batch < 1 || asked.batch > kMaxBatch || (batch && asked.batch != batch))
    throw std::invalid_argument("the plan runs a batch of " +
                                (batch ? std::to_string(batch) : "1 to " + std::to_string(kMaxBatch)) + ", got " +
                                std::to_string(asked.batch));
  if (!lengths.step) return;
  if (asked.length < lengths.least || asked.length > lengths.most || (asked.length - lengths.least) % lengths.step)
    throw std::invalid_argument("the plan runs lengths of " + std::to_string(lengths.least) + " to " +
                                std::to_string(lengths.most) + " in steps of " + std::to_string(lengths.step) +
                                ", got " + std::to_string(asked.length));
}

std::vector<int64_t> Plan::shape_of(bool output, size_t number, const Asked& asked) const {
  std::vector<int64_t> made = ports(output)[number].shape;
  const auto parts = json_->root().find(output ? "outputs" : "inputs").list("ports")[number].list("a port");
  const auto sizes = parts[1].list("the shape of a port");
  for (size_t i = 0; i < made.size(); ++i)
    made[i] = sizes[i].is_null() ? asked.batch : sizes_of(asked).whole(sizes[i], "a size", 1, kMaxSize);
  return made;
}

Plan::Weights Plan::pack(const TerseFile& file, const std::shared_ptr<Workspace>& workspace) const {
  Weights made;
  for (const Json::Value& item : json_->root().find("weights").list("the weights")) {
    Arguments a(*this, item);
    const std::string_view how = a.name();
    const bool conv = how.substr(0, 4) == "conv";
    std::vector<int> shape;
    const std::vector<float> numbers = weight_of(file, a, a.next(), shape, conv ? 4 : 2);
    const auto usual = [&] {
      const std::vector<int> size = a.counts(2);
      return checked_shape(shape[0], size[0], size[1]);
    };
    if (how == "conv") {
      const Window window = a.window();
      const DenseWeight dense = dense_weight(numbers, shape, window, a.count());
      const ValueKind kind = kind_of(int(a.next().whole("a kind of weights", 0, 2)));
      std::vector<float> table = a.vector();
      a.next().whole("the kind of lanes", 0, 0);
      made.push_back(
          std::make_shared<ConvWeights>(workspace, dense, window, kind, std::move(table), Lane::F32, usual()));
    } else if (how == "conv_dense") {
      const Window window = a.window();
      made.push_back(
          std::make_shared<ConvDenseWeights>(workspace, dense_weight(numbers, shape, window, 1), window, usual()));
    } else if (how == "conv_i8") {
      const Window window = a.window();
      const DenseWeight dense = dense_weight(numbers, shape, window, a.count());
      made.push_back(std::make_shared<ConvInt8Weights>(workspace, dense, window, usual()));
    } else if (how == "conv_codes") {
      const Window window = a.window();
      made.push_back(std::make_shared<ConvCodesWeights>(workspace, dense_weight(numbers, shape, window, 1), window));
    } else if (how == "linear") {
      const ValueKind kind = kind_of(int(a.next().whole("a kind of weights", 0, 2)));
      std::vector<float> table = a.vector();
      made.push_back(std::make_shared<LinearWeights>(workspace, numbers.data(), shape[0], shape[1], kind,
                                                     std::move(table), a.flag()));
    } else if (how == "linear_i8") {
      made.push_back(std::make_shared<LinearInt8Weights>(workspace, numbers.data(), shape[0], shape[1], a.flag()));
    } else if (how == "recurrent") {
      const Cell cell = a.flag() ? Cell::Gru : Cell::Lstm;
      made.push_back(
          std::make_shared<RecurrentWeights>(workspace, numbers.data(), shape[0], shape[1], cell, a.vector()));
    } else if (how == "embedding") {
      std::vector<float> levels = a.vector(), scale = a.vector();
      made.push_back(
          std::make_shared<EmbeddingWeights>(numbers.data(), shape[0], shape[1], std::move(levels), std::move(scale)));
    } else {
      throw BadFile("the plan packs a weight as '" + std::string(how) + "'; a newer library may know it");
    }
    a.done();
  }
  file.forget();
  return made;
}

}  // namespace tersify::lib
