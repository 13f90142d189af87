#include "core/json_members.h"

#include <fmt/format.h>

#include <array>
#include <charconv>
#include <cstdlib>

namespace kintsugi {
namespace {

constexpr std::size_t kMostDepth = 64;

// An ordered_json searches its members one after the other whenever one is added.
constexpr std::size_t kMostMembers = 2048;

// Why parsing the text would take too much stack or time; empty if it would not.
std::string excess_of(std::string_view text) {
  std::array<std::size_t, kMostDepth + 1> members = {};  // of the open values, by depth
  std::size_t depth = 0;
  bool quoted = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      quoted = c != '"';
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{' || c == '[') {
      if (++depth > kMostDepth)
        return fmt::format("it is nested more than {} levels deep", kMostDepth);
      members[depth] = 0;
    } else if (c == '}' || c == ']') {
      if (depth > 0) --depth;
    } else if (c == ':' && ++members[depth] > kMostMembers) {
      return fmt::format("an object has more than {} members", kMostMembers);
    }
  }
  return {};
}

}  // namespace

JsonMembers::JsonMembers(std::string_view object)
    : at_(object.data()), end_(object.data() + object.size()) {}

void JsonMembers::skip_space() {
  while (at_ < end_ && (*at_ == ' ' || *at_ == '\t' || *at_ == '\n' || *at_ == '\r')) ++at_;
}

bool JsonMembers::take(char c) {
  skip_space();
  if (at_ == end_ || *at_ != c) return false;
  ++at_;
  return true;
}

bool JsonMembers::take_string(std::string_view& text) {
  if (!take('"')) return false;
  const char* begin = at_;
  for (; at_ < end_; ++at_) {
    if (*at_ == '"') {
      text = {begin, static_cast<std::size_t>(at_ - begin)};
      ++at_;
      return true;
    }
    if (*at_ == '\\' && ++at_ == end_) return false;
  }
  return false;
}

// Brackets are counted, not matched: whoever needs the inside parses it.
bool JsonMembers::take_nested() {
  int depth = 0;
  std::string_view ignored;
  while (at_ < end_) {
    const char c = *at_;
    if (c == '"') {
      if (!take_string(ignored)) return false;
      continue;
    }
    ++at_;
    if (c == '{' || c == '[') ++depth;
    if ((c == '}' || c == ']') && --depth == 0) return true;
  }
  return false;
}

bool JsonMembers::take_number(double& number) {
  const char* digits = *at_ == '-' ? at_ + 1 : at_;
  if (digits == end_ || *digits < '0' || *digits > '9') return false;  // not "inf" or "nan"
  const auto [end, error] = std::from_chars(at_, end_, number);
  if (error == std::errc::result_out_of_range)
    number = std::strtod(std::string(at_, end).c_str(), nullptr);  // infinite or 0
  else if (error != std::errc())
    return false;
  at_ = end;
  return true;
}

bool JsonMembers::take_value(JsonMember& member) {
  skip_space();
  if (at_ == end_) return false;
  const char* begin = at_;
  bool taken = false;
  if (*at_ == '"') {
    member.kind = JsonMember::Kind::Text;
    taken = take_string(member.value);
    return taken;
  }
  if (*at_ == '{' || *at_ == '[') {
    member.kind = JsonMember::Kind::Nested;
    taken = take_nested();
  } else if (*at_ == '-' || (*at_ >= '0' && *at_ <= '9')) {
    member.kind = JsonMember::Kind::Number;
    taken = take_number(member.number);
  } else {
    const std::string_view rest(at_, static_cast<std::size_t>(end_ - at_));
    for (const std::string_view word : {"null", "true", "false"})
      if (rest.starts_with(word)) {
        member.kind = word == "null" ? JsonMember::Kind::Null : JsonMember::Kind::Word;
        at_ += word.size();
        taken = true;
      }
  }
  member.value = {begin, static_cast<std::size_t>(at_ - begin)};
  return taken;
}

bool JsonMembers::next(JsonMember& member) {
  if (complete_) return false;
  if (!begun_ && !take('{')) return false;
  if (take('}')) {
    skip_space();
    complete_ = at_ == end_;
    return false;
  }
  if (begun_ && !take(',')) return false;
  begun_ = true;
  return take_string(member.key) && take(':') && take_value(member);
}

std::optional<nlohmann::ordered_json> parse_untrusted_json(std::string_view text,
                                                           std::string* problem) {
  std::string excess = excess_of(text);
  nlohmann::ordered_json json(nlohmann::ordered_json::value_t::discarded);
  if (excess.empty()) json = nlohmann::ordered_json::parse(text, nullptr, false);
  if (!json.is_discarded()) return json;
  if (problem != nullptr) *problem = excess.empty() ? "it is not JSON" : std::move(excess);
  return {};
}

std::string compact_json(const nlohmann::ordered_json& json) {
  return json.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

}  // namespace kintsugi
