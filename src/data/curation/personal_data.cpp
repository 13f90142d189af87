#include "data/curation/personal_data.h"

#include <algorithm>
#include <initializer_list>

#include "core/error.h"
#include "core/hash.h"
#include "data/curation/personal_scanners.h"

namespace kintsugi {
namespace personal {
namespace {

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

// ---- all of them

// An upper bound for the digits of a number that begins at i, to pass years and prices quickly.
bool has_seven_digits(View text, std::size_t i) {
  int digits = 0;
  for (const std::size_t limit = i + 40; i < limit && digits < 7; ++i) {
    const char c = text[i];
    if (is(c, kDigit))
      ++digits;
    else if (!is(c, kNumber))
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
    const auto& countries = settings_.countries;
    if (text_[i + 1] == '.' || text_[i + 2] == '.' || text_[i + 3] == '.')
      consider(PersonalDataKind::Ip, [&] { return find_ipv4(text_, i); });
    if (text_[i + 4] == ':' && (c == '2' || c == '3'))
      consider(PersonalDataKind::Ip, [&] { return find_ipv6(text_, i); });
    const char before = text_.before(i);
    if (is(before, kUpper) || (before == ' ' && is(text_.before(i, 2), kUpper)))
      consider(PersonalDataKind::Iban, [&] { return find_iban(text_, i); });
    if (!has_seven_digits(text_, i)) return best;
    if (may_begin(text_, i)) consider(PersonalDataKind::Card, [&] { return find_card(text_, i); });
    consider(PersonalDataKind::National, [&] { return find_national(text_, i, countries); });
    consider(PersonalDataKind::Phone, [&] { return find_phone(text_, i, countries); });
    return best;
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
  const std::vector<std::string_view> known = personal::known_countries();
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
