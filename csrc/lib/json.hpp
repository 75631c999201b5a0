// A small reader of JSON for files that nobody vouches for: strict grammar, bounded depth and number of nodes.
// Numbers that are not whole are kept as such and have no value: no file needs one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "lib/problem.hpp"

namespace tersify::lib {

class Json {
 public:
  // Throws BadFile for what is no JSON, has a key twice, or more than `max_nodes` values.
  Json(std::string_view text, const char* what, size_t max_nodes);

  enum class Kind : uint8_t { Null, Bool, Whole, Fraction, Text, List, Object };

 private:
  struct Node {
    Kind kind = Kind::Null;
    uint32_t first = 0, next = 0;  // of children and of siblings; 0 is the shared null, which is no child
    uint32_t count = 0;            // children
    int64_t number = 0;            // a whole number, a truth value, or where a text lies in texts_
    uint32_t length = 0;           // of a text
    uint32_t key = 0;              // the node of the text that names this child of an object
  };

 public:
  // One value; it must not outlive its Json.
  class Value {
   public:
    Kind kind() const { return node().kind; }
    bool is_null() const { return kind() == Kind::Null; }
    // Each throws BadFile, naming `what`, where the value is of another kind or beyond its ends.
    int64_t whole(const char* what, int64_t low, int64_t high) const;
    bool flag(const char* what) const;
    std::string_view text(const char* what) const;
    std::vector<Value> list(const char* what) const;
    std::vector<std::pair<std::string_view, Value>> object(const char* what) const;
    // The value of a key; null where it is not there.
    Value find(std::string_view key) const;

   private:
    friend class Json;
    Value(const Json* json, uint32_t index) : json_(json), index_(index) {}
    const Node& node() const { return json_->nodes_[index_]; }
    const Json* json_;
    uint32_t index_;
  };

  Value root() const { return {this, root_}; }

 private:
  class Parser;
  std::vector<Node> nodes_;
  std::string texts_;
  uint32_t root_ = 0;
};

}  // namespace tersify::lib
