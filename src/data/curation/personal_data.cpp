#include "data/curation/personal_data.h"

#include <algorithm>
#include <initializer_list>
#include <span>

#include "core/error.h"
#include "core/hash.h"

namespace kintsugi {
namespace personal {
namespace {

// ---- characters

enum : std::uint8_t { kDigit = 1, kUpper = 2, kLower = 4, kHex = 8, kStop = 16, kLocal = 32 };

constexpr std::array<std::uint8_t, 256> make_classes() {
  std::array<std::uint8_t, 256> classes{};
  for (unsigned c = '0'; c <= '9'; ++c) classes[c] = kDigit | kHex | kStop | kLocal;
  for (unsigned i = 0; i < 26; ++i) {
    classes['A' + i] = static_cast<std::uint8_t>(kUpper | kLocal | (i < 6 ? kHex : 0));
    classes['a' + i] = static_cast<std::uint8_t>(kLower | kLocal | (i < 6 ? kHex : 0));
  }
  for (const unsigned char c : {'.', '_', '%', '+', '-'}) classes[c] = kLocal;
  classes['@'] = kStop;
  return classes;
}
constexpr std::array<std::uint8_t, 256> kClasses = make_classes();

bool is(char c, unsigned classes) {
  return (kClasses[static_cast<unsigned char>(c)] & classes) != 0;
}
bool is_alphanumeric(char c) { return is(c, kDigit | kUpper | kLower); }
bool is_word(char c) { return is_alphanumeric(c) || c == '_'; }
bool is_one_of(char c, std::string_view set) { return set.find(c) != std::string_view::npos; }
// Of a character in a word: bytes of other letters count, too.
bool is_letter(char c) { return is(c, kUpper | kLower) || static_cast<unsigned char>(c) >= 0x80; }
char lower(char c) { return is(c, kUpper) ? static_cast<char>(c + 32) : c; }

// What the scanners read: a text, of which every byte outside is 0.
struct View {
  std::string_view text;
  char operator[](std::size_t i) const { return i < text.size() ? text[i] : '\0'; }
  // The byte `back` before i.
  char before(std::size_t i, std::size_t back = 1) const { return i >= back ? text[i - back] : 0; }
  std::size_t size() const { return text.size(); }
};

// The bytes of a separator within a number at i, 0: none. A space (also U+00A0 and U+202F), a dot,
// a hyphen (also U+2011).
std::size_t separator(View text, std::size_t i) {
  const char c = text[i];
  if (c == ' ' || c == '.' || c == '-') return 1;
  if (c == '\xC2' && text[i + 1] == '\xA0') return 2;
  if (c == '\xE2' && text[i + 1] == '\x80' && (text[i + 2] == '\xAF' || text[i + 2] == '\x91'))
    return 3;
  return 0;
}

// A number does not begin inside a word, a decimal number, or something with hyphens such as a
// UUID.
bool may_begin(View text, std::size_t i) {
  const char c = text.before(i), previous = text.before(i, 2);
  if (is_word(c) || c == '+') return false;
  if (is_one_of(c, ".,/") && is(previous, kDigit)) return false;
  return c != '-' || !is_word(previous);
}

bool may_end(View text, std::size_t i) {
  const char c = text[i], next = text[i + 1];
  if (is_word(c)) return false;
  if (is_one_of(c, ".,/") && is(next, kDigit)) return false;
  return c != '-' || !is_word(next);
}

// Whether one of the words is within `before` bytes before or `after` bytes behind a span.
bool has_context(View text, std::size_t begin, std::size_t end, std::size_t before,
                 std::size_t after, std::span<const std::string_view> words) {
  const auto contains = [&](std::size_t from, std::size_t to) {
    for (std::size_t i = from; i < to; ++i) {
      if (is_letter(text.before(i)) || !is_letter(text[i])) continue;
      for (const std::string_view word : words) {
        if (i + word.size() > to || is_letter(text[i + word.size()])) continue;
        if (std::equal(word.begin(), word.end(), text.text.begin() + static_cast<long>(i),
                       [](char a, char b) { return a == lower(b); }))
          return true;
      }
    }
    return false;
  };
  return contains(begin > before ? begin - before : 0, begin) ||
         contains(end, std::min(end + after, text.size()));
}

using Match = std::optional<MaskedSpan>;

// ---- e-mail

constexpr std::size_t kLongestLocal = 64, kLongestDomain = 253;

// Endings of files that are no top-level domains: icon@2x.png.
bool is_file_ending(std::string_view label) {
  static constexpr std::array<std::string_view, 11> kEndings = {
      "png", "jpg", "jpeg", "gif", "svg", "webp", "html", "php", "js", "css", "pdf"};
  return std::any_of(kEndings.begin(), kEndings.end(), [&](std::string_view ending) {
    return std::equal(ending.begin(), ending.end(), label.begin(), label.end(),
                      [](char a, char b) { return a == lower(b); });
  });
}

// The end of the longest domain at i: labels with dots between, the last one of two letters or
// more. 0: there is none. Other labels may have letters that are not ASCII.
std::size_t domain_end(View text, std::size_t i) {
  const std::size_t begin = i, limit = std::min(text.size(), begin + kLongestDomain);
  std::size_t found = 0;
  for (std::size_t label = begin; label < limit && text[label] != '-';) {
    while (i < limit && is(text[i], kUpper | kLower)) ++i;
    std::size_t end = i;
    if (text.text.substr(label).starts_with("xn--"))
      while (end < limit && (is_alphanumeric(text[end]) || text[end] == '-')) ++end;
    if (label > begin && end >= label + 2 && !is_word(text[end]) &&
        !is_file_ending(text.text.substr(label, end - label)))
      found = end;
    while (i < limit && (is_alphanumeric(text[i]) || text[i] == '-' ||
                         static_cast<unsigned char>(text[i]) >= 0x80))
      ++i;
    if (i == label || text[i - 1] == '-' || text[i] != '.') break;
    label = ++i;
  }
  return found;
}

Match find_email(View text, std::size_t at) {
  if (!is(text.before(at), kLocal) || text.before(at) == '.') return {};
  std::size_t begin = at;
  while (begin > 0 && is(text.before(begin), kLocal)) {
    if (at - begin == kLongestLocal) return {};
    if (text.before(begin) == '.' && text[begin] == '.') break;
    --begin;
  }
  while (begin < at && !is_word(text[begin])) ++begin;
  const std::size_t end = begin < at ? domain_end(text, at + 1) : 0;
  if (end == 0) return {};
  return MaskedSpan{PersonalDataKind::Email, begin, end};
}

// ---- IP addresses

// Reads four decimal numbers below 256 at i, and returns the end; 0: there is something else.
std::size_t read_ipv4(View text, std::size_t i, std::uint32_t& address) {
  address = 0;
  for (int part = 0; part < 4; ++part) {
    if (part > 0 && text[i++] != '.') return 0;
    std::size_t digits = 0;
    std::uint32_t value = 0;
    for (; is(text[i], kDigit); ++i, ++digits)
      if (digits < 4) value = 10 * value + static_cast<std::uint32_t>(text[i] - '0');
    if (digits == 0 || digits > 3 || value > 255) return 0;
    if (digits > 1 && text.before(i, digits) == '0') return 0;
    address = address << 8 | value;
  }
  return i;
}

// Not of the special-purpose blocks of IANA's registry, and no multicast.
bool is_global_ipv4(std::uint32_t address) {
  struct Block {
    std::uint32_t base;
    int bits;
  };
  static constexpr std::initializer_list<Block> kSpecial = {
      {0x00000000, 8},  {0x0A000000, 8},  {0x64400000, 10}, {0x7F000000, 8},  {0xA9FE0000, 16},
      {0xAC100000, 12}, {0xC0000000, 24}, {0xC0000200, 24}, {0xC0A80000, 16}, {0xC6120000, 15},
      {0xC6336400, 24}, {0xCB007100, 24}, {0xE0000000, 3}};
  return std::none_of(kSpecial.begin(), kSpecial.end(), [&](Block block) {
    return (address ^ block.base) >> (32 - block.bits) == 0;
  });
}

// Whether the word before i says that a number is a version: "version 1.2.3.4", "(v 1.2.3.4".
bool is_version(View text, std::size_t i) {
  static constexpr std::array<std::string_view, 16> kWords = {
      "v",   "ver",   "vers",    "version", "versie", "versione", "rel",   "release",
      "rev", "build", "chapter", "section", "sec",    "revision", "table", "fig"};
  std::size_t end = i;
  while (end > 0 && i - end < 3 && is_one_of(text.before(end), " .:=\"'(")) --end;
  std::size_t begin = end;
  while (begin > 0 && end - begin < 9 && is_letter(text.before(begin))) --begin;
  return std::any_of(kWords.begin(), kWords.end(), [&](std::string_view word) {
    const std::string_view found = text.text.substr(begin, end - begin);
    return std::equal(word.begin(), word.end(), found.begin(), found.end(),
                      [](char a, char b) { return a == lower(b); });
  });
}

Match find_ipv4(View text, std::size_t i) {
  const char c = text.before(i), previous = text.before(i, 2);
  if (is_word(c) || is_one_of(c, ".~^")) return {};
  if (is_one_of(c, "-+") && (is_letter(previous) || previous == '_')) return {};
  if (c == '=' && is_one_of(previous, "=<>~!^")) return {};  // package>=1.2.3.4
  std::uint32_t address = 0, other = 0;
  const std::size_t end = read_ipv4(text, i, address);
  if (end == 0 || !is_global_ipv4(address) || is_word(text[end])) return {};
  if (is_one_of(text[end], ".-+~") && is_alphanumeric(text[end + 1]) &&
      !(text[end] == '-' && read_ipv4(text, end + 1, other) > 0))
    return {};
  if (is_version(text, i)) return {};
  return MaskedSpan{PersonalDataKind::Ip, i, end};
}

// All of 2000::/3 but 2001::/23, 2001:db8::/32, 2002::/16 and 3fff::/20, so that an address begins
// with 2 or 3 and four digits.
bool is_global_ipv6(std::uint32_t first, std::uint32_t second) {
  if (first >> 13 != 1) return false;
  if (first == 0x2001 && (second < 0x200 || second == 0xDB8)) return false;
  return first != 0x2002 && !(first == 0x3FFF && second < 0x1000);
}

Match find_ipv6(View text, std::size_t i) {
  if (is_word(text.before(i)) || is_one_of(text.before(i), ":.")) return {};
  std::size_t end = i;
  while (end - i < 41 && (is(text[end], kHex) || text[end] == ':')) ++end;
  if (text.before(end) == ':' && text.before(end, 2) != ':') --end;
  if (is_word(text[end]) || (text[end] == '.' && is(text[end + 1], kDigit))) return {};
  std::array<std::uint32_t, 8> groups{};
  std::size_t count = 0, digits = 0, gap = 9;  // gap: the group before which "::" is
  for (std::size_t at = i; at < end; ++at) {
    if (text[at] != ':') {
      if (digits == 0 && ++count > 8) return {};
      if (++digits > 4) return {};
      const char c = lower(text[at]);
      groups[count - 1] =
          groups[count - 1] << 4 | static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
    } else if (digits == 0) {
      if (gap != 9) return {};
      gap = count;
    } else {
      digits = 0;
    }
  }
  if (gap == 9 ? count != 8 : count < 2 || count > 7) return {};
  if (!is_global_ipv6(groups[0], gap == 1 ? 0 : groups[1])) return {};
  return MaskedSpan{PersonalDataKind::Ip, i, end};
}

// ---- IBAN

// The length of each country's IBAN, from SWIFT's registry.
std::size_t iban_length(char first, char second) {
  static constexpr std::string_view kLengths =
      "AD24AE23AL28AT20AZ28BA20BE16BG22BH22BI27BR29BY28CH21CR22CY28CZ24DE22DJ27DK18DO28EE20EG29"
      "ES24FI18FK18FO18FR27GB22GE22GI23GL18GR27GT28HN28HR21HU28IE22IL23IQ23IS26IT27JO30KW30KZ20"
      "LB28LC32LI21LT20LU20LV21LY25MC27MD24ME22MK19MN20MR27MT31MU30NI28NL18NO15OM23PK24PL28PS29"
      "PT25QA29RO24RS22RU33SA24SC31SD18SE24SI19SK24SM27SO23ST25SV28TL23TN24TR26UA29VA22VG24XK20"
      "YE30";
  for (std::size_t i = 0; i < kLengths.size(); i += 4)
    if (kLengths[i] == first && kLengths[i + 1] == second)
      return static_cast<std::size_t>(10 * (kLengths[i + 2] - '0') + kLengths[i + 3] - '0');
  return 0;
}

// Remainder by 97 of a number with letters, A = 10 to Z = 35, that follows one with `remainder`.
unsigned add_mod97(unsigned remainder, char c) {
  if (is(c, kDigit)) return (10 * remainder + static_cast<unsigned>(c - '0')) % 97;
  return (100 * remainder + static_cast<unsigned>(c - 'A' + 10)) % 97;
}

// i is the first check digit, behind the country and perhaps a space.
Match find_iban(View text, std::size_t i) {
  const std::size_t begin = i - (text.before(i) == ' ' ? 3 : 2);
  if (i < 2 || begin > i || !is(text[begin], kUpper) || !is(text[begin + 1], kUpper)) return {};
  const std::size_t length = iban_length(text[begin], text[begin + 1]);
  if (length == 0 || !is(text[i + 1], kDigit) || !may_begin(text, begin)) return {};
  unsigned remainder = 0;
  std::size_t at = i + 2;
  for (std::size_t count = 4; count < length; ++count, ++at) {
    if (!is(text[at], kDigit | kUpper)) at += text[at] == '.' ? 0 : separator(text, at);
    if (!is(text[at], kDigit | kUpper)) return {};
    remainder = add_mod97(remainder, text[at]);
  }
  for (const std::size_t k : {begin, begin + 1, i, i + 1})
    remainder = add_mod97(remainder, text[k]);
  const int check = 10 * (text[i] - '0') + text[i + 1] - '0';
  if (remainder != 1 || check < 2 || check > 98 || !may_end(text, at)) return {};
  return MaskedSpan{PersonalDataKind::Iban, begin, at};
}

// ---- numbers of a fixed form

// The digits and letters of a number, without separators.
using Digits = std::string_view;

unsigned digit(Digits digits, std::size_t i) { return static_cast<unsigned>(digits[i] - '0'); }
unsigned two(Digits digits, std::size_t i) { return 10 * digit(digits, i) + digit(digits, i + 1); }
std::uint64_t number(Digits digits) {
  std::uint64_t value = 0;
  for (const char c : digits) value = 10 * value + static_cast<std::uint64_t>(c - '0');
  return value;
}

bool luhn(Digits digits) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < digits.size(); ++i) {
    const unsigned value = digit(digits, digits.size() - 1 - i) * (i % 2 == 1 ? 2 : 1);
    sum += value > 9 ? value - 9 : value;
  }
  return sum % 10 == 0;
}

// Weights as digits: sum of weight times digit.
unsigned weighted(Digits digits, std::string_view weights) {
  unsigned sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) sum += digit(digits, i) * digit(weights, i);
  return sum;
}

// In a leap year, as the century may be unknown.
bool is_date(unsigned day, unsigned month) {
  static constexpr std::array<unsigned, 12> kDays = {31, 29, 31, 30, 31, 30,
                                                     31, 31, 30, 31, 30, 31};
  return month >= 1 && month <= 12 && day >= 1 && day <= kDays[month - 1];
}

// Issuers by their first digits, and the lengths of their numbers.
bool is_card(Digits digits) {
  const std::size_t length = digits.size();
  const auto prefix = static_cast<unsigned>(number(digits.substr(0, 4)));
  const auto in = [&](unsigned low, unsigned high) { return prefix >= low && prefix <= high; };
  const bool issued =
      length == 16 ? in(4000, 4999) || in(5100, 5599) || in(2221, 2720) || in(6011, 6011) ||
                         in(6440, 6599) || in(3528, 3589) || in(6200, 6299) || in(6759, 6763)
      : length == 15 ? in(3400, 3499) || in(3700, 3799)
      : length == 14 ? in(3000, 3059) || in(3600, 3699) || in(3800, 3999)
      : length == 13
          ? in(4000, 4999)
          : length == 19 && (in(4000, 4999) || in(6011, 6011) || in(6440, 6599) || in(6200, 6299));
  return issued && luhn(digits);
}

bool is_dutch(Digits digits) {
  const unsigned sum = weighted(digits, "98765432");
  return number(digits) > 0 && sum % 11 == digit(digits, 8);
}
bool is_finnish(Digits digits) {
  const Digits individual = digits.substr(7, 3);
  if (!is_date(two(digits, 0), two(digits, 2))) return false;
  if (number(individual) < 2 || number(individual) >= 900) return false;
  const std::uint64_t value = 1000 * number(digits.substr(0, 6)) + number(individual);
  return digits.back() == std::string_view("0123456789ABCDEFHJKLMNPRSTUVWXY")[value % 31];
}
bool is_swedish(Digits digits) {
  const Digits ten = digits.substr(digits.size() - 10);
  if (digits.size() == 12 && (two(digits, 0) < 18 || two(digits, 0) > 20)) return false;
  const unsigned day = two(ten, 4);
  return is_date(day > 60 ? day - 60 : day, two(ten, 2)) && luhn(ten);
}
bool is_belgian(Digits digits) {
  const std::uint64_t value = number(digits.substr(0, 9)), check = two(digits, 9);
  if (!is_date(two(digits, 4), two(digits, 2))) return false;
  return 97 - value % 97 == check || 97 - (2'000'000'000 + value) % 97 == check;
}
bool is_french(Digits digits) {
  const unsigned month = two(digits, 3);
  if (!is_one_of(digits[0], "123478")) return false;
  if (month < 1 || (month > 12 && month < 20) || (month > 42 && month < 50)) return false;
  std::string plain(digits);
  if (!is(plain[6], kDigit)) {  // Corsica
    if (plain[5] != '2') return false;
    plain.replace(5, 2, plain[6] == 'A' ? "19" : "18");
  }
  return 97 - number(plain.substr(0, 13)) % 97 == two(plain, 13);
}
bool is_polish(Digits digits) {
  return is_date(two(digits, 4), two(digits, 2) % 20) &&
         (weighted(digits, "1379137913") + digit(digits, 10)) % 10 == 0;
}
bool is_spanish(Digits digits) {  // an initial X, Y or Z counts as 0, 1 or 2
  std::string plain(digits.substr(0, 8));
  if (!is(plain[0], kDigit)) plain[0] = static_cast<char>('0' + plain[0] - 'X');
  return digits.back() == std::string_view("TRWAGMYFPDXBNJZSQVHLCKE")[number(plain) % 23];
}
bool is_norwegian(Digits digits) {
  const unsigned day = two(digits, 0) > 40 ? two(digits, 0) - 40 : two(digits, 0);
  if (!is_date(day, two(digits, 2))) return false;
  return (weighted(digits, "376189452") + digit(digits, 9)) % 11 == 0 &&
         (weighted(digits, "5432765432") + digit(digits, 10)) % 11 == 0;
}

// Shapes: 9 a digit, A an upper case letter, K a digit, A or B, _ a separator, X one of X, Y and Z,
// C the sign of a century, + a plus or a minus sign; any other character is itself.
struct NationalNumber {
  std::string_view country;
  std::vector<std::string_view> shapes;
  bool (*is_valid)(Digits);
  // Words one of which must be near, where one in ten random numbers is valid.
  std::span<const std::string_view> context;
};

constexpr std::array<std::string_view, 5> kDutchWords = {"bsn", "burgerservicenummer", "sofinummer",
                                                         "sofi-nummer", "citizen service number"};
constexpr std::array<std::string_view, 6> kSwedishWords = {
    "personnummer",   "personnr", "pnr", "samordningsnummer", "personal identity number",
    "personal number"};
constexpr std::array<std::string_view, 1> kPolishWords = {"pesel"};

std::span<const NationalNumber> national_numbers() {
  static const std::array<NationalNumber, 8> all = {{
      {"NL", {"999999999", "9999_99_999", "999_999_999"}, is_dutch, kDutchWords},
      {"FI", {"999999C9999", "999999C999A"}, is_finnish, {}},
      {"SE",
       {"999999+9999", "99999999+9999", "9999999999", "999999999999"},
       is_swedish,
       kSwedishWords},
      {"BE", {"99999999999", "99_99_99_999_99", "999999_999_99"}, is_belgian, {}},
      {"FR", {"999999K99999999", "9_99_99_9K_999_999_99", "999999K999999_99"}, is_french, {}},
      {"PL", {"99999999999"}, is_polish, kPolishWords},
      {"ES",
       {"99999999A", "99999999-A", "99_999_999-A", "X9999999A", "X-9999999-A", "X9999999-A"},
       is_spanish,
       {}},
      {"NO", {"99999999999", "999999_99999"}, is_norwegian, {}},
  }};
  return all;
}

constexpr std::array<std::string_view, 11> kCardShapes = {
    "9999999999999",           "99999999999999",      "999999999999999",    "9999999999999999",
    "9999999999999999999",     "9999_9999_9999_9999", "9999_999999_99999",  "9999_999999_9999",
    "9999_9999_9999_9999_999", "99999999_99999999",   "9999_9999_99999_999"};

// The end of what has this shape at i, with its digits and letters, signs of centuries among them;
// 0: it has another one.
std::size_t match_shape(View text, std::size_t i, std::string_view shape, std::string& digits) {
  digits.clear();
  for (const char part : shape) {
    const char c = text[i];
    if (part == '_') {
      const std::size_t bytes = separator(text, i);
      if (bytes == 0) return 0;
      i += bytes;
      continue;
    }
    const bool fits = part == '9'   ? is(c, kDigit)
                      : part == 'A' ? is(c, kUpper)
                      : part == 'K' ? is(c, kDigit) || c == 'A' || c == 'B'
                      : part == 'X' ? c == 'X' || c == 'Y' || c == 'Z'
                      : part == 'C' ? c != 0 && is_one_of(c, "+-ABCDEFUVWXY")
                      : part == '+' ? c == '+' || c == '-'
                                    : c == part;
    if (!fits) return 0;
    if (part != '+' && part != '-') digits += c;
    ++i;
  }
  return may_end(text, i) ? i : 0;
}

Match find_card(View text, std::size_t i) {
  std::string digits;
  for (const std::string_view shape : kCardShapes)
    if (const std::size_t end = match_shape(text, i, shape, digits); end > 0 && is_card(digits))
      return MaskedSpan{PersonalDataKind::Card, i, end};
  return {};
}

Match find_national(View text, std::size_t begin, const NationalNumber& kind) {
  std::string digits;
  for (const std::string_view shape : kind.shapes) {
    const std::size_t end = match_shape(text, begin, shape, digits);
    if (end == 0 || !kind.is_valid(digits)) continue;
    if (kind.context.empty() || has_context(text, begin, end, 48, 24, kind.context))
      return MaskedSpan{PersonalDataKind::National, begin, end};
  }
  return {};
}

// ---- telephone numbers

struct PhonePlan {
  std::string_view country, code;
  std::size_t fewest, most;  // digits behind the country code
  std::string_view first;    // of a number within the country; "0": a 0 and no second one
  std::size_t local_fewest, local_most;  // its digits
};

// Numbering plans as published by ITU-T: what most numbers of a country have.
constexpr std::array<PhonePlan, 38> kPhonePlans = {{
    {"US", "1", 10, 10, "23456789", 10, 10},
    {"GR", "30", 10, 10, "26", 10, 10},
    {"NL", "31", 9, 9, "0", 10, 10},
    {"BE", "32", 8, 9, "0", 9, 10},
    {"FR", "33", 9, 9, "0", 10, 10},
    {"ES", "34", 9, 9, "6789", 9, 9},
    {"PT", "351", 9, 9, "29", 9, 9},
    {"LU", "352", 6, 9, "", 0, 0},
    {"IE", "353", 7, 9, "0", 8, 10},
    {"IS", "354", 7, 7, "", 0, 0},
    {"MT", "356", 8, 8, "", 0, 0},
    {"CY", "357", 8, 8, "", 0, 0},
    {"FI", "358", 6, 10, "0", 7, 11},
    {"BG", "359", 8, 9, "0", 9, 10},
    {"HU", "36", 8, 9, "", 0, 0},
    {"LT", "370", 8, 8, "", 0, 0},
    {"LV", "371", 8, 8, "", 0, 0},
    {"EE", "372", 7, 8, "", 0, 0},
    {"UA", "380", 9, 9, "0", 10, 10},
    {"RS", "381", 8, 9, "0", 9, 10},
    {"ME", "382", 8, 8, "", 0, 0},
    {"HR", "385", 8, 9, "0", 9, 10},
    {"SI", "386", 8, 8, "0", 9, 9},
    {"BA", "387", 8, 8, "0", 9, 9},
    {"MK", "389", 8, 8, "0", 9, 9},
    {"IT", "39", 8, 11, "3", 9, 10},
    {"RO", "40", 9, 9, "0", 10, 10},
    {"CH", "41", 9, 9, "0", 10, 10},
    {"CZ", "420", 9, 9, "234567", 9, 9},
    {"SK", "421", 9, 9, "0", 10, 10},
    {"AT", "43", 7, 12, "0", 8, 12},
    {"GB", "44", 9, 10, "0", 10, 11},
    {"DK", "45", 8, 8, "23456789", 8, 8},
    {"SE", "46", 7, 9, "0", 8, 10},
    {"NO", "47", 8, 8, "23456789", 8, 8},
    {"PL", "48", 9, 9, "23456789", 9, 9},
    {"DE", "49", 7, 11, "0", 8, 12},
    {"TR", "90", 10, 10, "0", 11, 11},
}};

constexpr std::array<std::string_view, 33> kPhoneWords = {
    "tel",       "telephone",    "telefon",      "telefoon",      "telefono",
    "teléfono",  "telefone",     "téléphone",    "tél",           "phone",
    "mobile",    "mobiel",       "mobil",        "móvil",         "portable",
    "gsm",       "fax",          "tlf",          "tfn",           "puhelin",
    "puh",       "matkapuhelin", "mobiltelefon", "telefonnummer", "telefoonnummer",
    "rufnummer", "mobielnummer", "mobilnummer",  "puhelinnumero", "cellulare",
    "whatsapp",  "phone number", "faks"};

// The digits at i, with up to two separators or parentheses between their groups; "(0)" is left
// out once. `ends` has where each group ends, and how many digits there are up to it.
struct PhoneDigits {
  struct End {
    std::size_t at, digits;
  };
  std::string digits = {};
  std::vector<End> ends = {};
};

std::size_t phone_separator(View text, std::size_t i) {
  return is_one_of(text[i], "()/") && i < text.size() ? 1 : separator(text, i);
}

PhoneDigits phone_digits(View text, std::size_t i) {
  PhoneDigits phone;
  bool left_out = false;
  while (phone.digits.size() < 17) {
    std::size_t at = i;
    for (int count = 0; count < 2 && !phone.digits.empty() && !is(text[at], kDigit); ++count) {
      if (!left_out && text[at] == '(' && text[at + 1] == '0' && text[at + 2] == ')') break;
      at += phone_separator(text, at);
    }
    if (!left_out && text[at] == '(' && text[at + 1] == '0' && text[at + 2] == ')') {
      left_out = true;
      at += 3;
      at += separator(text, at);
    }
    if (!is(text[at], kDigit)) break;
    for (; is(text[at], kDigit) && phone.digits.size() < 17; ++at) phone.digits += text[at];
    if (!is_word(text[at])) phone.ends.push_back({at, phone.digits.size()});
    i = at;
  }
  return phone;
}

// The last group with which the number has so many digits; 0: none.
std::size_t phone_end(const PhoneDigits& phone, std::size_t fewest, std::size_t most) {
  std::size_t end = 0;
  for (const PhoneDigits::End& group : phone.ends)
    if (group.digits >= fewest && group.digits <= most) end = group.at;
  return end;
}

// 2023-01-15 and 15.01.2023 have as many digits as a number.
bool is_date_shape(const PhoneDigits& phone, std::size_t end) {
  const auto groups = [&](std::size_t first, std::size_t second) {
    return phone.ends.size() >= 3 && phone.ends[0].digits == first &&
           phone.ends[1].digits == second && phone.ends[2].digits == 8 && phone.ends[2].at == end;
  };
  return groups(4, 6) || groups(2, 4);
}

bool begins_local(std::string_view digits, std::string_view first) {
  if (first == "0") return digits[0] == '0' && digits[1] != '0';
  return is_one_of(digits[0], first);
}

bool may_begin_phone(View text, std::size_t i) {
  const char c = text.before(i);
  if (is_word(c) || is_one_of(c, "+.,")) return false;
  return !is_one_of(c, "-/ )") || !is(text.before(i, 2), kDigit);
}

// (212) 555-0123 needs no word, as no other number is written so.
std::size_t american_end(View text, std::size_t i) {
  if (text.before(i) != '(' || is_word(text.before(i, 2))) return 0;
  std::string digits;
  for (const std::string_view shape : {"999)_999_9999", "999)999_9999"}) {
    const std::size_t end = match_shape(text, i, shape, digits);
    if (end > 0 && digits[0] >= '2' && digits[4] >= '2')
      return end;  // digits[3] is the parenthesis
  }
  return 0;
}

template <class Wanted>
Match find_phone(View text, std::size_t i, const Wanted& is_wanted) {
  const bool international = text.before(i) == '+';
  if (international ? is_alphanumeric(text.before(i, 2)) || text.before(i, 2) == '+'
                    : !may_begin_phone(text, i))
    return {};
  if (const std::size_t end = american_end(text, i); end > 0 && is_wanted("US"))
    return MaskedSpan{PersonalDataKind::Phone, i - 1, end};
  const PhoneDigits phone = phone_digits(text, i);
  if (phone.digits.size() < 8) return {};
  const std::size_t zeros = international ? 0 : phone.digits.starts_with("00") ? 2 : 9;
  std::size_t end = 0;
  for (const PhonePlan& plan : kPhonePlans) {
    const std::size_t code = zeros + plan.code.size();
    std::size_t found = 0;
    if (zeros < 9) {
      if (std::string_view(phone.digits).substr(zeros).starts_with(plan.code))
        found = phone_end(phone, code + plan.fewest, code + plan.most);
    } else if (plan.local_most > 0 && begins_local(phone.digits, plan.first)) {
      found = phone_end(phone, plan.local_fewest, plan.local_most);
      if (is_date_shape(phone, found)) found = 0;
    }
    if (found > end && is_wanted(plan.country)) end = found;
  }
  if (end == 0) return {};
  const bool parenthesis = text.before(i) == '(' && !international;
  const std::size_t begin = i - (international || parenthesis ? 1 : 0);
  if (!international && !has_context(text, begin, end, 24, 0, kPhoneWords)) return {};
  return MaskedSpan{PersonalDataKind::Phone, begin, end};
}

// ---- all of them

// An upper bound for the digits of a number that begins at i, to pass years and prices quickly.
bool has_seven_digits(View text, std::size_t i) {
  int digits = 0;
  for (const std::size_t limit = i + 40; i < limit && digits < 7; ++i) {
    const char c = text[i];
    if (is(c, kDigit))
      ++digits;
    else if (!is_one_of(c, " .-/()+ABCDEFUVWXY") && static_cast<unsigned char>(c) < 0x80)
      break;
  }
  return digits >= 7;
}

class Finder {
 public:
  Finder(const PersonalData& settings, std::string_view text) : settings_(settings), text_{text} {}

  std::vector<MaskedSpan> run() {
    const std::size_t size = text_.size();
    for (std::size_t i = 0; i < size;) {
      if (!is(text_.text[i], kStop)) {
        ++i;
        continue;
      }
      const Match found = text_.text[i] == '@' ? email(i) : number_at(i);
      if (found) add(*found);
      if (found && found->end > i) {
        i = found->end;
      } else {
        ++i;
        if (text_.before(i) != '@')
          while (i < size && is(text_.text[i], kDigit)) ++i;
      }
    }
    return std::move(spans_);
  }

 private:
  bool wants(PersonalDataKind kind) const { return settings_.marker(kind).has_value(); }
  bool wants(std::string_view country) const {
    const auto& chosen = settings_.countries;
    return chosen.empty() || std::find(chosen.begin(), chosen.end(), country) != chosen.end();
  }

  Match email(std::size_t at) const {
    if (!wants(PersonalDataKind::Email)) return {};
    return find_email(text_, at);
  }

  // The longest match of all kinds; of equally long ones the first kind.
  Match number_at(std::size_t i) const {
    Match best;
    const auto consider = [&](PersonalDataKind kind, auto&& find) {
      if (!wants(kind)) return;
      const Match found = find();
      if (found && (!best || found->end - found->begin > best->end - best->begin)) best = found;
    };
    const char c = text_[i];
    if (text_[i + 1] == '.' || text_[i + 2] == '.' || text_[i + 3] == '.')
      consider(PersonalDataKind::Ip, [&] { return find_ipv4(text_, i); });
    if (text_[i + 4] == ':' && (c == '2' || c == '3'))
      consider(PersonalDataKind::Ip, [&] { return find_ipv6(text_, i); });
    const char before = text_.before(i);
    if (is(before, kUpper) || (before == ' ' && is(text_.before(i, 2), kUpper)))
      consider(PersonalDataKind::Iban, [&] { return find_iban(text_, i); });
    if (!has_seven_digits(text_, i)) return best;
    if (may_begin(text_, i)) consider(PersonalDataKind::Card, [&] { return find_card(text_, i); });
    consider(PersonalDataKind::National, [&] { return national(i); });
    consider(PersonalDataKind::Phone, [&] {
      return find_phone(text_, i, [&](std::string_view country) { return wants(country); });
    });
    return best;
  }

  Match national(std::size_t i) const {
    // A Spanish one may begin with a letter.
    std::size_t begin = i;
    const std::size_t dash = text_.before(i) == '-' ? 1 : 0;
    const char letter = text_.before(i, dash + 1);
    if (letter >= 'X' && letter <= 'Z') begin = i - dash - 1;
    if (!may_begin(text_, begin)) return {};
    for (const NationalNumber& kind : national_numbers())
      if (wants(kind.country))
        if (const Match found = find_national(text_, begin, kind)) return found;
    return {};
  }

  // Spans arrive in the order of their ends, but an address may begin inside the one before.
  void add(MaskedSpan span) {
    while (!spans_.empty() && spans_.back().end > span.begin) {
      const MaskedSpan& other = spans_.back();
      if (other.end - other.begin > span.end - span.begin) span.kind = other.kind;
      span.begin = std::min(span.begin, other.begin);
      span.end = std::max(span.end, other.end);
      spans_.pop_back();
    }
    spans_.push_back(span);
  }

  const PersonalData& settings_;
  const View text_;
  std::vector<MaskedSpan> spans_;
};

// Other letters and digits, a function of the state (SplitMix64).
void append_shape(std::string& masked, std::string_view text, std::uint64_t state) {
  for (const char c : text) {
    state += 0x9E3779B97F4A7C15;
    std::uint64_t bits = (state ^ state >> 30) * 0xBF58476D1CE4E5B9;
    bits = (bits ^ bits >> 27) * 0x94D049BB133111EB;
    bits = (bits ^ bits >> 31) >> 32;
    masked += is(c, kDigit)   ? static_cast<char>('0' + bits * 10 / 0x100000000)
              : is(c, kUpper) ? static_cast<char>('A' + bits * 26 / 0x100000000)
              : is(c, kLower) ? static_cast<char>('a' + bits * 26 / 0x100000000)
                              : c;
  }
}

}  // namespace
}  // namespace personal

std::string_view name_of(PersonalDataKind kind) {
  return enum_name(kind, {"email", "ip", "iban", "card", "national", "phone"});
}

const std::optional<std::string>& PersonalData::marker(PersonalDataKind kind) const {
  switch (kind) {
    case PersonalDataKind::Email:
      return email;
    case PersonalDataKind::Ip:
      return ip;
    case PersonalDataKind::Iban:
      return iban;
    case PersonalDataKind::Card:
      return card;
    case PersonalDataKind::National:
      return national;
    case PersonalDataKind::Phone:
      break;
  }
  return phone;
}

void PersonalData::check() const {
  std::vector<std::string_view> known;
  for (const personal::PhonePlan& plan : personal::kPhonePlans) known.push_back(plan.country);
  for (const personal::NationalNumber& kind : personal::national_numbers())
    known.push_back(kind.country);
  for (const std::string& country : countries)
    if (std::find(known.begin(), known.end(), country) == known.end())
      user_error("no number of the country '{}' is known; countries are two letters, such as NL",
                 country);
}

std::vector<MaskedSpan> PersonalData::find(std::string_view text) const {
  return personal::Finder(*this, text).run();
}

void PersonalData::mask(std::string& text, const std::vector<MaskedSpan>& spans) const {
  if (spans.empty()) return;
  const std::uint64_t state = hash64(text.data(), text.size(), seed);
  std::string masked;
  masked.reserve(text.size());
  std::size_t done = 0;
  for (const MaskedSpan& span : spans) {
    masked.append(text, done, span.begin - done);
    const std::string_view found = std::string_view(text).substr(span.begin, span.end - span.begin);
    if (style == MaskStyle::Shape)
      personal::append_shape(masked, found, state + span.begin);
    else
      masked += marker(span.kind).value_or("");
    done = span.end;
  }
  masked.append(text, done);
  text = std::move(masked);
}

std::string_view PersonalData::edit(std::string& text) const {
  mask(text, find(text));
  return {};
}

}  // namespace kintsugi
