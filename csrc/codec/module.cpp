// The Python face of the coders: flat numpy arrays in and out, the interpreter free while they work.
#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "decode.h"
#include "encode.h"
#include "levels.h"
#include "planes.h"

namespace nb = nanobind;
using namespace tersify;

namespace {

using Codes = nb::ndarray<const uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Output = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Sizes = nb::ndarray<const int64_t, nb::shape<-1, 4>, nb::c_contig, nb::device::cpu>;
using Activity = nb::ndarray<const uint8_t, nb::ndim<2>, nb::c_contig, nb::device::cpu>;

std::vector<Box> boxes_of(const Sizes& sizes, size_t codes) {
  std::vector<Box> boxes;
  for (size_t i = 0; i < sizes.shape(0); ++i)
    boxes.push_back({sizes(i, 0), sizes(i, 1), sizes(i, 2), sizes(i, 3)});
  check_boxes(boxes);
  size_t total = 0;
  for (const Box& box : boxes) total += static_cast<size_t>(box.weights());
  require(total == codes, "the boxes do not hold as many codes as the array");
  return boxes;
}

void check_levels(int levels) { require(levels >= 1 && levels <= 256, "levels must be 1 to 256"); }

nb::bytes encode(Codes codes, Sizes sizes, int levels, Activity activity, Codes order, int lanes_log2) {
  check_levels(levels);
  require(lanes_log2 <= 5, "at most 32 lanes");
  const std::vector<Box> boxes = boxes_of(sizes, codes.size());
  require(activity.shape(0) == boxes.size() && activity.shape(1) == static_cast<size_t>(levels) &&
              order.size() == static_cast<size_t>(levels),
          "activity needs a row per box and, like order, an entry per level");
  uint8_t largest = 0;
  for (const uint8_t *at = codes.data(), *end = at + codes.size(); at != end; ++at) largest = std::max(largest, *at);
  require(largest < levels, "a code is outside the levels");
  for (size_t i = 0; i < order.size(); ++i) require(order(i) < levels, "order is not a permutation of the levels");
  Hints hints;
  for (size_t b = 0; b < boxes.size(); ++b)
    hints.activity.emplace_back(&activity(b, 0), &activity(b, 0) + levels);
  hints.order.assign(order.data(), order.data() + order.size());
  std::vector<uint8_t> out;
  {
    nb::gil_scoped_release free;
    out = encode_codes(codes.data(), boxes, levels, hints, lanes_log2);
  }
  return nb::bytes(out.data(), out.size());
}

void decode(nb::bytes data, Sizes sizes, int levels, Output out, const std::string& path) {
  check_levels(levels);
  const std::vector<Box> boxes = boxes_of(sizes, out.size());
  const std::string chosen = path.empty() ? paths().front() : path;
  const RowDecoder decoder = path_named(chosen);
  const uint8_t* begin = static_cast<const uint8_t*>(data.data());
  const size_t size = data.size();
  nb::gil_scoped_release free;
  if (decode_flat(begin, size, boxes, levels, out.data(), chosen)) return;
  decode_codes(begin, size, boxes, levels, out.data(), decoder);
}

void check_width(int width) {
  require(width == 1 || width == 2 || width == 4 || width == 8, "an element has 1, 2, 4 or 8 bytes");
}

using Planes = std::vector<Output>;

std::vector<std::vector<uint64_t>> split(Codes data, int width, bool is_float, Planes planes) {
  check_width(width);
  require(planes.size() == plane_bits(width, is_float).size(), "elements have another number of planes");
  uint8_t* outs[kMaxPlanes];
  for (size_t p = 0; p < planes.size(); ++p) {
    require(planes[p].size() * static_cast<size_t>(width) == data.size(), "a plane has one code per element");
    outs[p] = planes[p].data();
  }
  std::vector<std::vector<uint64_t>> counts;
  nb::gil_scoped_release free;
  split_planes(data.data(), data.size() / static_cast<size_t>(width), width, is_float, outs, counts);
  return counts;
}

void join(const std::vector<int>& methods, const std::vector<Codes>& data, Sizes sizes, int width, bool is_float,
          Output out, const std::string& path) {
  check_width(width);
  require(methods.size() == data.size() && out.size() % static_cast<size_t>(width) == 0, "a plane lacks its method");
  const std::vector<Box> boxes = boxes_of(sizes, out.size() / static_cast<size_t>(width));
  std::vector<CodedPlane> planes;
  for (size_t p = 0; p < methods.size(); ++p) {
    require(methods[p] >= 0 && methods[p] <= 2, "a plane has an unknown method");
    planes.push_back({static_cast<Coding>(methods[p]), data[p].data(), data[p].size()});
  }
  const std::string chosen = path.empty() ? paths().front() : path;
  nb::gil_scoped_release free;
  join_planes(planes, boxes, width, is_float, out.data(), chosen);
}

void check_bits(int bits, size_t codes, size_t bytes) {
  require(bits >= 1 && bits <= 8, "codes have 1 to 8 bits");
  require(bytes == (codes * static_cast<size_t>(bits) + 7) / 8, "packed codes do not fill their bytes");
}

void pack(Codes codes, int bits, Output out) {
  check_bits(bits, codes.size(), out.size());
  nb::gil_scoped_release free;
  pack_codes(codes.data(), codes.size(), bits, out.data());
}

void unpack(Codes data, int bits, Output codes) {
  check_bits(bits, codes.size(), data.size());
  nb::gil_scoped_release free;
  unpack_codes(data.data(), data.size(), codes.size(), bits, codes.data());
}

using Found = std::tuple<std::vector<uint64_t>, std::vector<uint64_t>, std::vector<uint32_t>>;

std::optional<Found> levels_of(Codes data, int width, size_t rows, size_t limit, Output codes) {
  check_width(width);
  require(limit >= 1 && limit <= 256, "codes have 1 to 256 levels");
  require(rows >= 1 && codes.size() % rows == 0 && data.size() == codes.size() * static_cast<size_t>(width),
          "the rows do not fill the array");
  Levels found;
  bool few;
  {
    nb::gil_scoped_release free;
    few = find_levels(data.data(), width, rows, codes.size() / rows, limit, codes.data(), found);
  }
  if (!few) return std::nullopt;
  return Found(std::move(found.patterns), std::move(found.counts), std::move(found.per_row));
}

// Exchanges codes by their frequent levels, and each mark by the next of the levels set aside.
void merge_split(Output codes, Codes frequent, Codes aside) {
  const size_t mark = frequent.size(), count = codes.size(), rare = aside.size();
  const uint8_t* const known = frequent.data();
  const uint8_t* next = aside.data();
  uint8_t* const out = codes.data();
  size_t left = rare;
  for (size_t i = 0; i < count; ++i) {
    if (out[i] < mark) {
      out[i] = known[out[i]];
    } else {
      require(out[i] == mark && left > 0, "split codes have other marks than codes set aside");
      --left;
      out[i] = *next++;
    }
  }
  require(left == 0, "split codes have other marks than codes set aside");
}

void relabel_codes(Output codes, Activity table) {
  require(table.shape(1) == 256 && table.shape(0) >= 1 && codes.size() % table.shape(0) == 0,
          "a table has 256 entries a row");
  nb::gil_scoped_release free;
  relabel(codes.data(), table.shape(0), codes.size() / table.shape(0), table.data());
}

}  // namespace

NB_MODULE(_codec, m) {
  nb::exception<Malformed>(m, "Malformed", PyExc_ValueError);
  m.def("encode_codes", &encode, nb::arg("codes"), nb::arg("boxes"), nb::arg("levels"), nb::arg("activity"),
        nb::arg("order"), nb::arg("lanes_log2") = -1);
  m.def("decode_codes", &decode, nb::arg("data"), nb::arg("boxes"), nb::arg("levels"), nb::arg("out"),
        nb::arg("path") = "");
  m.def("find_levels", &levels_of, nb::arg("data"), nb::arg("width"), nb::arg("rows"), nb::arg("limit"),
        nb::arg("codes"));
  m.def("split_planes", &split, nb::arg("data"), nb::arg("width"), nb::arg("is_float"), nb::arg("planes"));
  m.def("join_planes", &join, nb::arg("methods"), nb::arg("data"), nb::arg("boxes"), nb::arg("width"),
        nb::arg("is_float"), nb::arg("out"), nb::arg("path") = "");
  m.def("pack_codes", &pack, nb::arg("codes"), nb::arg("bits"), nb::arg("out"));
  m.def("unpack_codes", &unpack, nb::arg("data"), nb::arg("bits"), nb::arg("codes"));
  m.def("merge_split", &merge_split, nb::arg("codes"), nb::arg("frequent"), nb::arg("aside"));
  m.def("relabel", &relabel_codes, nb::arg("codes"), nb::arg("table"));
  m.def("paths", &paths);
}
