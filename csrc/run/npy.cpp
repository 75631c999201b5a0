#include <cstdio>
#include <cstring>
#include <memory>

#if !defined(_WIN32)
#include <sys/stat.h>
#endif

#include "run/arrays.hpp"

namespace tersify::run {
namespace {

constexpr size_t kMaxInput = size_t(1) << 30;

struct Closer {
  void operator()(std::FILE* file) const { std::fclose(file); }
};
using File = std::unique_ptr<std::FILE, Closer>;

// What stands behind a key of the header, a Python dictionary of three known keys.
std::string behind(const std::string& header, const std::string& key, const std::string& path) {
  const size_t at = header.find("'" + key + "':");
  if (at == std::string::npos) throw BadInput(path + " is no .npy file: its header has no " + key);
  const size_t begin = header.find_first_not_of(' ', at + key.size() + 3);
  return begin == std::string::npos ? "" : header.substr(begin);
}

}  // namespace

std::vector<uint8_t> read_whole(const std::string& path) {
  const File file(std::fopen(path.c_str(), "rb"));
  if (!file) throw BadInput(path + " cannot be opened");
  std::vector<uint8_t> bytes;
  uint8_t block[1 << 14];
  while (const size_t got = std::fread(block, 1, sizeof block, file.get())) {
    bytes.insert(bytes.end(), block, block + got);
    if (bytes.size() > kMaxInput) throw BadInput(path + " is larger than 1 GiB");
  }
  if (std::ferror(file.get())) throw BadInput(path + " cannot be read");
  return bytes;
}

Array read_npy(const std::string& path) {
  const std::vector<uint8_t> file = read_whole(path);
  if (file.size() < 12 || std::memcmp(file.data(), "\x93NUMPY", 6) != 0) throw BadInput(path + " is no .npy file");
  const bool first = file[6] == 1;
  const size_t begin = first ? 10 : 12;
  size_t length = size_t(file[8]) | size_t(file[9]) << 8;
  if (!first) length |= size_t(file[10]) << 16 | size_t(file[11]) << 24;
  if (length > file.size() - begin) throw BadInput(path + " ends inside its header");
  const std::string header(reinterpret_cast<const char*>(file.data()) + begin, length);
  Array made;
  const std::string type = behind(header, "descr", path);
  size_t width;
  if (type.rfind("'<f4'", 0) == 0)
    made.kind = 'f', width = 4;
  else if (type.rfind("'<i8'", 0) == 0)
    made.kind = 'i', width = 8;
  else if (type.rfind("'|u1'", 0) == 0)
    made.kind = 'u', width = 1;
  else
    throw BadInput(path + " must hold float32, int64 or uint8");
  if (behind(header, "fortran_order", path).rfind("False", 0) != 0)
    throw BadInput(path + " must be in C order; save numpy.ascontiguousarray of it");
  const std::string sizes = behind(header, "shape", path);
  size_t count = 1;
  if (sizes.empty() || sizes[0] != '(') throw BadInput(path + " has no shape");
  for (size_t at = 1; at < sizes.size() && sizes[at] != ')';) {
    if (sizes[at] == ' ' || sizes[at] == ',') {
      ++at;
      continue;
    }
    int64_t size = 0;
    const size_t start = at;
    for (; at < sizes.size() && sizes[at] >= '0' && sizes[at] <= '9' && size < int64_t(kMaxInput); ++at)
      size = size * 10 + (sizes[at] - '0');
    if (at == start || (size && count > kMaxInput / size_t(size))) throw BadInput(path + " has an impossible shape");
    count *= size_t(size);
    made.shape.push_back(size);
  }
  if (file.size() - begin - length != count * width) throw BadInput(path + " has another size than its shape");
  made.bytes.assign(file.begin() + ptrdiff_t(begin + length), file.end());
  return made;
}

void check_replaceable(const std::string& path, const std::vector<std::string>& read) {
#if defined(_WIN32)
  for (const std::string& other : read)
    if (other == path) throw BadInput(path + " is also read, and would be lost; write to another file");
#else
  struct stat own, others;
  if (stat(path.c_str(), &own) != 0) return;
  if (!S_ISREG(own.st_mode)) throw BadInput(path + " is no regular file; write to another place");
  for (const std::string& other : read)
    if (stat(other.c_str(), &others) == 0 && own.st_dev == others.st_dev && own.st_ino == others.st_ino)
      throw BadInput(path + " is also read, and would be lost; write to another file");
#endif
}

void write_npy(const std::string& path, const float* numbers, const std::vector<int64_t>& shape) {
  std::string header = "{'descr': '<f4', 'fortran_order': False, 'shape': (";
  size_t count = 1;
  for (const int64_t size : shape) {
    header += std::to_string(size) + ",";
    count *= size_t(size);
  }
  header += "), }";
  header += std::string(64 - (10 + header.size() + 1) % 64, ' ') + "\n";
  const File file(std::fopen(path.c_str(), "wb"));
  const uint8_t head[10] = {0x93, 'N', 'U', 'M', 'P', 'Y', 1, 0, uint8_t(header.size()), uint8_t(header.size() >> 8)};
  const bool good = file && std::fwrite(head, 1, 10, file.get()) == 10 &&
                    std::fwrite(header.data(), 1, header.size(), file.get()) == header.size() &&
                    std::fwrite(numbers, sizeof(float), count, file.get()) == count && std::fflush(file.get()) == 0;
  if (!good) throw BadInput(path + " cannot be written");
}

}  // namespace tersify::run
