// A group of a file decoded: codes, or the bytes of arrays. Every codec of docs/reference/format.md.
#pragma once

#include "lib/entries.hpp"
#include "lib/source.hpp"

namespace tersify::lib {

// One byte a code, or the bytes of all arrays one after the other; throws BadFile.
Bytes decode_group(const Group& group, const Bytes& data);

}  // namespace tersify::lib
