#include "lib/source.hpp"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <mutex>

#if !defined(_WIN32)
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#endif

#include "lib/json.hpp"

namespace tersify::lib {
namespace {

constexpr uint64_t kMaxHeader = 1 << 24;
constexpr size_t kMaxHeaderValues = 1 << 20;
constexpr uint64_t kMaxSmall = 1 << 20;

uint32_t number_of(const uint8_t* bytes) {
  return uint32_t(bytes[0]) | uint32_t(bytes[1]) << 8 | uint32_t(bytes[2]) << 16 | uint32_t(bytes[3]) << 24;
}

// Seven bits a byte, the lowest first; the highest bit says that more follow.
uint64_t take_number(const Bytes& data, size_t& at) {
  uint64_t value = 0;
  for (int place = 0; place < 3 && at < data.size(); ++place) {
    const uint8_t byte = data[at++];
    value |= uint64_t(byte & 127) << 7 * place;
    if (byte < 128) return value;
  }
  bad_file("a length in the section 'small' does not end");
}

class InMemory final : public Source {
 public:
  InMemory(const void* data, size_t size)
      : bytes_(static_cast<const uint8_t*>(data), static_cast<const uint8_t*>(data) + size) {}
  uint64_t size() const override { return bytes_.size(); }
  void read(uint64_t at, uint8_t* out, size_t count) const override {
    if (count) std::memcpy(out, bytes_.data() + at, count);
  }

 private:
  const Bytes bytes_;
};

// Read piece by piece: a mapping would end the process where somebody cuts the file short.
class OnDisk final : public Source {
 public:
#if !defined(_WIN32)
  // Without O_NONBLOCK to open a pipe would wait for somebody who writes to it.
  explicit OnDisk(const std::string& path) {
    const int descriptor = open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (descriptor < 0) throw CannotRead(path + " cannot be opened");
    struct stat facts;
    const bool is_file = !fstat(descriptor, &facts) && S_ISREG(facts.st_mode);
    file_ = is_file ? fdopen(descriptor, "rb") : nullptr;
    if (!file_) {
      close(descriptor);
      throw CannotRead(path + (is_file ? " cannot be opened" : " is not a file"));
    }
    size_ = uint64_t(facts.st_size);
#else
  explicit OnDisk(const std::string& path) : file_(std::fopen(path.c_str(), "rb")) {
    if (!file_) throw CannotRead(path + " cannot be opened");
    _fseeki64(file_, 0, SEEK_END);
    size_ = uint64_t(_ftelli64(file_));
#endif
  }
  ~OnDisk() override { std::fclose(file_); }
  OnDisk(const OnDisk&) = delete;
  OnDisk& operator=(const OnDisk&) = delete;
  uint64_t size() const override { return size_; }
  void read(uint64_t at, uint8_t* out, size_t count) const override {
    const std::lock_guard<std::mutex> lock(mutex_);
#if defined(_WIN32)
    const bool there = _fseeki64(file_, int64_t(at), SEEK_SET) == 0;
#else
    const bool there = fseeko(file_, off_t(at), SEEK_SET) == 0;
#endif
    if (!there || std::fread(out, 1, count, file_) != count) bad_file("the file ends too early");
  }

 private:
  std::FILE* file_;
  uint64_t size_ = 0;
  mutable std::mutex mutex_;
};

}  // namespace

std::shared_ptr<const Source> source_of_path(const std::string& path) { return std::make_shared<OnDisk>(path); }

std::shared_ptr<const Source> source_of_memory(const void* data, size_t size) {
  return std::make_shared<InMemory>(data, size);
}

Sections::Sections(std::shared_ptr<const Source> source) : source_(std::move(source)) {
  const uint64_t whole = source_->size();
  if (whole < 8) throw BadFile("a .terse file has at least 8 bytes, got " + std::to_string(whole));
  uint8_t head[8];
  source_->read(0, head, sizeof head);
  uint64_t length = 0;
  for (int i = 7; i >= 0; --i) length = length << 8 | head[i];
  if (length > std::min(kMaxHeader, whole - 8))
    throw BadFile("no .terse file, or one cut short: it claims a header of " + std::to_string(length) + " bytes");
  Bytes text(static_cast<size_t>(length));
  source_->read(8, text.data(), text.size());
  const Json header({reinterpret_cast<const char*>(text.data()), text.size()}, "header", kMaxHeaderValues);
  data_ = 8 + length;
  bool versioned = false;
  for (const auto& [name, entry] : header.root().object("the header")) {
    if (name == "__metadata__") {
      const Json::Value version = entry.find("terse");
      if (version.is_null()) bad_file("not a .terse file: the header has no version");
      const std::string_view major = version.text("the version");
      if (major != "1" && major.substr(0, 2) != "1.")
        throw BadFile("the file has format version " + std::string(major) + ", this library reads 1");
      versioned = true;
      continue;
    }
    const auto offsets = entry.find("data_offsets").list("a section's offsets");
    const auto shape = entry.find("shape").list("a section's shape");
    if (offsets.size() != 2 || shape.size() != 1 || entry.find("dtype").text("a section's dtype") != "U8")
      throw BadFile("section '" + std::string(name) + "' is not a run of bytes");
    const int64_t most = int64_t(std::min<uint64_t>(whole - data_, INT64_MAX));
    const int64_t begin = offsets[0].whole("a section's begin", 0, most);
    const int64_t end = offsets[1].whole("a section's end", begin, most);
    shape[0].whole("a section's size", end - begin, end - begin);
    spans_[std::string(name)] = {uint64_t(begin), uint64_t(end)};
  }
  if (!versioned) bad_file("not a .terse file: the header has no version");
  std::vector<Span> sorted;
  for (const auto& [name, span] : spans_) sorted.push_back(span);
  std::sort(sorted.begin(), sorted.end(), [](const Span& a, const Span& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t at = 0;
  for (const Span& span : sorted) {
    if (span.begin != at) bad_file("sections overlap, or leave a gap");
    at = span.end;
  }
  if (data_ + at != whole) bad_file("the sections do not end where the file does");
  if (has("small")) add_parts_of_small();
}

void Sections::add_parts_of_small() {
  if (has("directory") || size("small") > kMaxSmall) bad_file("a section 'small' is too large, or not alone");
  const uint64_t begin = span("small").begin;
  const Bytes data = read("small");
  size_t at = 4;
  if (data.size() < at || crc32(data.data() + at, data.size() - at) != number_of(data.data()))
    bad_file("the section 'small' is damaged: its checksum does not match");
  std::vector<uint64_t> lengths;
  for (uint64_t left = take_number(data, at); left > 0; --left) lengths.push_back(take_number(data, at));
  uint64_t next = begin + at;
  for (size_t i = 0; i < lengths.size(); ++i) {
    const std::string name = i ? "g" + std::to_string(i - 1) : "directory";
    if (!spans_.emplace(name, Span{next, next + lengths[i]}).second) bad_file("a section is there twice");
    next += lengths[i];
  }
  if (lengths.empty() || next != begin + data.size()) bad_file("the section 'small' does not hold what it says");
}

const Sections::Span& Sections::span(std::string_view name) const {
  const auto found = spans_.find(name);
  if (found == spans_.end()) throw BadFile("the file has no section '" + std::string(name) + "'");
  return found->second;
}

uint64_t Sections::size(std::string_view name) const { return span(name).end - span(name).begin; }

Bytes Sections::read(std::string_view name) const {
  const Span& found = span(name);
  Bytes bytes(static_cast<size_t>(found.end - found.begin));
  source_->read(data_ + found.begin, bytes.data(), bytes.size());
  return bytes;
}

void unzip_into(const uint8_t* data, size_t size, uint8_t* out, size_t out_size, const char* what,
                std::string_view before) {
  const unsigned long long stated = ZSTD_getFrameContentSize(data, size);
  const size_t frame = ZSTD_findFrameCompressedSize(data, size);
  const bool fits = stated == out_size && !ZSTD_isError(frame) && frame == size;
  uint8_t nothing;
  const auto unzipped = [&] {
    const std::unique_ptr<ZSTD_DCtx, size_t (*)(ZSTD_DCtx*)> context(ZSTD_createDCtx(), ZSTD_freeDCtx);
    return context ? ZSTD_decompress_usingDict(context.get(), out_size ? out : &nothing, out_size, data, size,
                                               before.data(), before.size())
                   : size_t(-1);
  };
  if (!fits || unzipped() != out_size) throw BadFile(std::string(what) + " cannot be unpacked");
}

Bytes unzip(const uint8_t* data, size_t size, uint64_t limit, const char* what, std::string_view before) {
  const unsigned long long stated = ZSTD_getFrameContentSize(data, size);
  if (stated == ZSTD_CONTENTSIZE_ERROR || stated == ZSTD_CONTENTSIZE_UNKNOWN)
    throw BadFile(std::string(what) + " is no zstd frame that states its size");
  if (stated > limit)
    throw TooLarge(std::string(what) + " claims " + std::to_string(stated) + " bytes, " + std::to_string(limit) +
                   " are allowed");
  Bytes out(static_cast<size_t>(stated));
  unzip_into(data, size, out.data(), out.size(), what, before);
  return out;
}

uint32_t crc32(const uint8_t* data, size_t size) {
  static const auto table = [] {
    std::array<std::array<uint32_t, 256>, 8> made{};
    uint32_t polynomial = 0xedb88320u;
    asm("" : "+r"(polynomial));  // or compilers make the table themselves, and programs carry its 8 KiB
    for (uint32_t i = 0; i < 256; ++i) {
      uint32_t c = i;
      for (int k = 0; k < 8; ++k) c = c & 1 ? polynomial ^ c >> 1 : c >> 1;
      made[0][i] = c;
    }
    for (int k = 1; k < 8; ++k)
      for (uint32_t i = 0; i < 256; ++i) made[k][i] = made[k - 1][i] >> 8 ^ made[0][made[k - 1][i] & 0xff];
    return made;
  }();
  uint32_t c = ~0u;
  for (; size >= 8; size -= 8, data += 8) {  // eight bytes at a time: a byte at a time would take longer than decoding
    uint32_t low = c;
    for (int i = 0; i < 4; ++i) low ^= uint32_t(data[i]) << 8 * i;
    c = table[7][low & 0xff] ^ table[6][low >> 8 & 0xff] ^ table[5][low >> 16 & 0xff] ^ table[4][low >> 24] ^
        table[3][data[4]] ^ table[2][data[5]] ^ table[1][data[6]] ^ table[0][data[7]];
  }
  for (; size; --size, ++data) c = table[0][(c ^ *data) & 0xff] ^ c >> 8;
  return ~c;
}

}  // namespace tersify::lib
