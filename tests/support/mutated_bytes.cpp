#include "support/mutated_bytes.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cstdint>

namespace kintsugi {
namespace {

constexpr std::size_t kLongest = std::size_t{1} << 19;  // bytes of a mutated file

class Mutation {
 public:
  Mutation(std::string& bytes, std::string_view other, std::mt19937_64& random)
      : bytes_(bytes), other_(other), random_(random) {}

  void apply() {
    switch (below(11)) {
      case 0:
      case 1:
        return flip();
      case 2:
        return replace_byte();
      case 3:
        return truncate();
      case 4:
        return drop_range();
      case 5:
        return double_range();
      case 6:
        return splice();
      case 7:
      case 8:
        return edit_length();
      case 9:
        return edit_number();
      default:
        return insert_syntax();
    }
  }

 private:
  std::size_t below(std::size_t n) { return n == 0 ? 0 : random_() % n; }
  std::size_t anywhere() { return below(bytes_.size() + 1); }
  // Mostly short.
  std::size_t range_length(std::size_t at_most) {
    return below(std::min<std::size_t>(at_most, std::size_t{1} << below(16)) + 1);
  }
  template <class T, std::size_t N>
  const T& any(const std::array<T, N>& list) {
    return list[below(N)];
  }

  void flip() {
    if (!bytes_.empty()) bytes_[below(bytes_.size())] ^= static_cast<char>(1 << below(8));
  }
  void replace_byte() {
    if (!bytes_.empty()) bytes_[below(bytes_.size())] = static_cast<char>(below(256));
  }
  void truncate() { bytes_.resize(anywhere()); }
  void drop_range() {
    const std::size_t from = anywhere();
    bytes_.erase(from, range_length(bytes_.size() - from));
  }
  void double_range() {
    const std::size_t from = anywhere();
    const std::string range = bytes_.substr(from, range_length(bytes_.size() - from));
    bytes_.insert(below(2) == 0 ? from : anywhere(), range);
  }
  void splice() {
    const std::size_t from = below(other_.size() + 1);
    const std::string_view range = other_.substr(from, range_length(other_.size() - from));
    const std::size_t at = anywhere();
    bytes_.replace(at, below(2) == 0 ? 0 : std::min(range.size(), bytes_.size() - at), range);
  }
  // Overwrites a little-endian integer, such as a length in a binary header.
  void edit_length() {
    static constexpr std::array<std::uint64_t, 12> kValues = {
        0,          1,          2,           0x7F,           0xFFFF,     0x7FFFFFFF,
        0x80000000, 0xFFFFFFFF, 0x100000000, INT64_MAX - 1u, 1ull << 63, UINT64_MAX};
    const std::size_t width = std::size_t{1} << below(4);
    if (bytes_.size() < width) return;
    // Half of the time in the first 64 bytes, where headers are.
    const std::size_t at =
        below(below(2) == 0 ? std::min<std::size_t>(bytes_.size() - width + 1, 64)
                            : bytes_.size() - width + 1);
    const std::uint64_t value = below(4) == 0 ? bytes_.size() + below(17) - 8 : any(kValues);
    for (std::size_t i = 0; i < width; ++i) bytes_[at + i] = static_cast<char>(value >> (8 * i));
  }
  void edit_number() {
    static constexpr std::array<std::string_view, 16> kNumbers = {"0",
                                                                  "-1",
                                                                  "1",
                                                                  "0.5",
                                                                  "2147483648",
                                                                  "9223372036854775807",
                                                                  "-9223372036854775808",
                                                                  "18446744073709551616",
                                                                  "1e309",
                                                                  "1e-400",
                                                                  ".nan",
                                                                  "NaN",
                                                                  ".inf",
                                                                  "123456789",
                                                                  "65536",
                                                                  "1e18"};
    if (bytes_.empty()) return;
    const auto is_digit = [](char c) { return std::isdigit(static_cast<unsigned char>(c)) != 0; };
    const auto from = std::find_if(
        bytes_.begin() + static_cast<std::ptrdiff_t>(below(bytes_.size())), bytes_.end(), is_digit);
    const auto to = std::find_if_not(from, bytes_.end(), is_digit);
    bytes_.replace(from, to, any(kNumbers));
  }
  void insert_syntax() {
    static constexpr std::array<std::string_view, 26> kSyntax = {"[",
                                                                 "{",
                                                                 "]",
                                                                 "}",
                                                                 "\"",
                                                                 "\\",
                                                                 ",",
                                                                 ":",
                                                                 "\n",
                                                                 "- ",
                                                                 "{\"a\":",
                                                                 "\\ud800",
                                                                 "\\u0000",
                                                                 "&a ",
                                                                 "*a",
                                                                 "!!binary ",
                                                                 "\n---\n",
                                                                 "null",
                                                                 "true",
                                                                 "\xff\xfe",
                                                                 "\xf4\x90\x80\x80",
                                                                 "\xef\xbb\xbf",
                                                                 "../",
                                                                 "(",
                                                                 "[]",
                                                                 "''"};
    const std::size_t times = below(8) == 0 ? below(5000) : 1;
    std::string text;
    const std::string_view one = any(kSyntax);
    for (std::size_t i = 0; i < times; ++i) text += one;
    bytes_.insert(anywhere(), text);
  }

  std::string& bytes_;
  std::string_view other_;
  std::mt19937_64& random_;
};

}  // namespace

std::string mutated_bytes(std::string bytes, std::string_view other, std::mt19937_64& random) {
  Mutation mutation(bytes, other, random);
  do {
    mutation.apply();
    if (bytes.size() > kLongest) bytes.resize(kLongest);
  } while (random() % 2 == 0);
  return bytes;
}

}  // namespace kintsugi
