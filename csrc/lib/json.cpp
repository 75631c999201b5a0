#include "lib/json.hpp"

#include <algorithm>

namespace tersify::lib {

void bad_file(const char* sentence) { throw BadFile(sentence); }

namespace {

constexpr int kMaxDepth = 64;

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// Bytes of the character that begins here, or 0 where it is no UTF-8.
size_t utf8_length(std::string_view s, size_t at) {
  const auto byte = [&](size_t i) { return at + i < s.size() ? uint8_t(s[at + i]) : 0; };
  const auto follows = [&](size_t i) { return (byte(i) & 0xc0) == 0x80; };
  const uint8_t first = byte(0);
  if (first < 0x80) return 1;
  if (first >= 0xc2 && first < 0xe0) return follows(1) ? 2 : 0;
  if (first >= 0xe0 && first < 0xf0) {
    const bool fits = first == 0xe0 ? byte(1) >= 0xa0 : first == 0xed ? byte(1) < 0xa0 : true;
    return follows(1) && follows(2) && fits ? 3 : 0;
  }
  if (first >= 0xf0 && first < 0xf5) {
    const bool fits = first == 0xf0 ? byte(1) >= 0x90 : first == 0xf4 ? byte(1) < 0x90 : true;
    return follows(1) && follows(2) && follows(3) && fits ? 4 : 0;
  }
  return 0;
}

}  // namespace

class Json::Parser {
 public:
  Parser(Json& json, std::string_view text, const char* what, size_t max_nodes)
      : json_(json), text_(text), what_(what), max_nodes_(std::min<size_t>(max_nodes, UINT32_MAX - 1)) {}

  uint32_t whole_text() {
    new_node();  // number 0: the null that stands for what is missing
    const uint32_t root = value(0);
    skip_spaces();
    require(at_ == text_.size(), "has more behind its end");
    return root;
  }

 private:
  void require(bool fine, const char* rule) const {
    if (!fine) throw BadFile(std::string("the ") + what_ + " is not valid JSON: it " + rule);
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  void skip_spaces() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n' || text_[at_] == '\r' || text_[at_] == '\t'))
      ++at_;
  }
  bool took(char c) {
    skip_spaces();
    if (peek() != c || at_ >= text_.size()) return false;
    ++at_;
    return true;
  }
  void word(const char* rest) {
    const std::string_view wanted(rest);
    require(text_.substr(at_, wanted.size()) == wanted, "has a word that is none");
    at_ += wanted.size();
  }
  uint32_t new_node() {
    if (json_.nodes_.size() >= max_nodes_)
      throw TooLarge(std::string("the ") + what_ + " has more values than the limit of memory allows");
    json_.nodes_.emplace_back();
    return uint32_t(json_.nodes_.size() - 1);
  }
  Node& node(uint32_t index) { return json_.nodes_[index]; }

  uint32_t value(int depth) {
    require(depth < kMaxDepth, "is nested too deep");
    skip_spaces();
    const uint32_t made = new_node();
    switch (peek()) {
      case '{':
        object(made, depth);
        break;
      case '[':
        list(made, depth);
        break;
      case '"':
        text(made);
        break;
      case 't':
        word("true");
        node(made).kind = Kind::Bool, node(made).number = 1;
        break;
      case 'f':
        word("false");
        node(made).kind = Kind::Bool;
        break;
      case 'n':
        word("null");
        break;
      default:
        number(made);
    }
    return made;
  }

  void list(uint32_t made, int depth) {
    node(made).kind = Kind::List;
    ++at_;
    if (took(']')) return;
    uint32_t last = 0;
    do last = append(made, last, value(depth + 1));
    while (took(','));
    require(took(']'), "has a list without an end");
  }

  void object(uint32_t made, int depth) {
    node(made).kind = Kind::Object;
    ++at_;
    if (took('}')) return;
    uint32_t last = 0;
    do {
      skip_spaces();
      require(peek() == '"', "has a key that is no text");
      const uint32_t key = new_node();
      text(key);
      require(took(':'), "has a key without a value");
      const uint32_t child = value(depth + 1);
      node(child).key = key;
      last = append(made, last, child);
    } while (took(','));
    require(took('}'), "has an object without an end");
    check_keys(made);
  }

  uint32_t append(uint32_t parent, uint32_t last, uint32_t child) {
    (last ? node(last).next : node(parent).first) = child;
    ++node(parent).count;
    return child;
  }

  void check_keys(uint32_t made) {
    std::vector<std::string_view> keys;
    for (uint32_t child = node(made).first; child; child = node(child).next) {
      const Node& key = node(node(child).key);
      keys.push_back(std::string_view(json_.texts_).substr(size_t(key.number), key.length));
    }
    std::sort(keys.begin(), keys.end());
    require(std::adjacent_find(keys.begin(), keys.end()) == keys.end(), "has a key twice");
  }

  void number(uint32_t made) {
    const bool minus = peek() == '-';
    if (minus) ++at_;
    require(is_digit(peek()), "has a value that is none");
    const bool zero = peek() == '0';
    int64_t sum = 0;
    bool fits = true;
    size_t digits = 0;
    for (; is_digit(peek()); ++at_, ++digits) {
      const int digit = peek() - '0';
      fits = fits && sum <= (INT64_MAX - digit) / 10;
      if (fits) sum = sum * 10 + digit;
    }
    require(!zero || digits == 1, "has a number that begins with 0");
    bool whole = fits;
    if (peek() == '.') {
      whole = false;
      ++at_;
      require(is_digit(peek()), "has a number that ends in a point");
      while (is_digit(peek())) ++at_;
    }
    if (peek() == 'e' || peek() == 'E') {
      whole = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      require(is_digit(peek()), "has a number without its exponent");
      while (is_digit(peek())) ++at_;
    }
    node(made).kind = whole ? Kind::Whole : Kind::Fraction;
    node(made).number = minus ? -sum : sum;
  }

  uint32_t hex4() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i, ++at_) {
      const char c = peek();
      const int digit = is_digit(c) ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
      require(digit >= 0, "has a text with a character that is none");
      code = code * 16 + uint32_t(digit);
    }
    return code;
  }

  void put_character(uint32_t code) {
    std::string& out = json_.texts_;
    if (code < 0x80) {
      out += char(code);
      return;
    }
    const int more = code < 0x800 ? 1 : code < 0x10000 ? 2 : 3;
    out += char((more == 1 ? 0xc0 : more == 2 ? 0xe0 : 0xf0) | code >> 6 * more);
    for (int i = more - 1; i >= 0; --i) out += char(0x80 | (code >> 6 * i & 0x3f));
  }

  void escaped() {
    const char c = peek();
    ++at_;
    switch (c) {
      case '"':
      case '\\':
      case '/':
        json_.texts_ += c;
        return;
      case 'b':
        json_.texts_ += '\b';
        return;
      case 'f':
        json_.texts_ += '\f';
        return;
      case 'n':
        json_.texts_ += '\n';
        return;
      case 'r':
        json_.texts_ += '\r';
        return;
      case 't':
        json_.texts_ += '\t';
        return;
      case 'u':
        break;
      default:
        require(false, "has a text with a character that is none");
    }
    uint32_t code = hex4();
    require(code < 0xdc00 || code > 0xdfff, "has half a pair of surrogates");
    if (code >= 0xd800 && code <= 0xdbff) {
      require(peek() == '\\' && at_ + 1 < text_.size() && text_[at_ + 1] == 'u', "has half a pair of surrogates");
      at_ += 2;
      const uint32_t low = hex4();
      require(low >= 0xdc00 && low <= 0xdfff, "has half a pair of surrogates");
      code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
    }
    put_character(code);
  }

  void text(uint32_t made) {
    const size_t begin = json_.texts_.size();
    for (++at_; peek() != '"';) {
      require(at_ < text_.size() && uint8_t(peek()) >= 0x20, "has a text without an end");
      if (peek() == '\\') {
        ++at_;
        escaped();
        continue;
      }
      const size_t length = utf8_length(text_, at_);
      require(length > 0, "is no UTF-8");
      json_.texts_.append(text_, at_, length);
      at_ += length;
    }
    ++at_;
    Node& n = node(made);
    n.kind = Kind::Text;
    n.number = int64_t(begin);
    n.length = uint32_t(json_.texts_.size() - begin);
  }

  Json& json_;
  std::string_view text_;
  size_t at_ = 0;
  const char* what_;
  size_t max_nodes_;
};

Json::Json(std::string_view text, const char* what, size_t max_nodes) {
  root_ = Parser(*this, text, what, max_nodes).whole_text();
}

int64_t Json::Value::whole(const char* what, int64_t low, int64_t high) const {
  if (kind() != Kind::Whole || node().number < low || node().number > high)
    throw BadFile(std::string(what) + " must be a whole number of " + std::to_string(low) + ".." +
                  std::to_string(high));
  return node().number;
}

bool Json::Value::flag(const char* what) const {
  if (kind() != Kind::Bool) throw BadFile(std::string(what) + " must be true or false");
  return node().number != 0;
}

std::string_view Json::Value::text(const char* what) const {
  if (kind() != Kind::Text) throw BadFile(std::string(what) + " must be a text");
  return std::string_view(json_->texts_).substr(size_t(node().number), node().length);
}

std::vector<Json::Value> Json::Value::list(const char* what) const {
  if (kind() != Kind::List) throw BadFile(std::string(what) + " must be a list");
  std::vector<Value> items;
  items.reserve(node().count);
  for (uint32_t child = node().first; child; child = json_->nodes_[child].next) items.push_back({json_, child});
  return items;
}

std::vector<std::pair<std::string_view, Json::Value>> Json::Value::object(const char* what) const {
  if (kind() != Kind::Object) throw BadFile(std::string(what) + " must be an object");
  std::vector<std::pair<std::string_view, Value>> items;
  items.reserve(node().count);
  for (uint32_t child = node().first; child; child = json_->nodes_[child].next)
    items.push_back({Value(json_, json_->nodes_[child].key).text("a key"), {json_, child}});
  return items;
}

Json::Value Json::Value::find(std::string_view key) const {
  for (const auto& [name, value] : object("what has keys"))
    if (name == key) return value;
  return {json_, 0};
}

}  // namespace tersify::lib
