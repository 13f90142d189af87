#include "data/curation/document.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json_members.h"
#include "data/corpora/record_reader.h"

namespace kintsugi {
namespace {

// A JSON string without quotes and escapes; empty for another value.
std::string unescaped(std::string_view json) {
  if (json.size() < 2 || json.front() != '"') return {};
  const std::string_view inner = json.substr(1, json.size() - 2);
  if (inner.find('\\') == std::string_view::npos) return std::string(inner);
  const auto value = nlohmann::json::parse(json, nullptr, false);
  return value.is_string() ? value.get<std::string>() : std::string();
}

std::string json_string(std::string_view text) {
  std::string json;
  append_json_string(json, text);
  return json;
}

}  // namespace

ObjectText::ObjectText(std::string_view object) {
  JsonMembers members(object);
  for (JsonMember member; members.next(member);) {
    const bool is_text = member.kind == JsonMember::Kind::Text;  // of which the value is the inside
    const char* const begin = member.key.data() - 1;
    const char* const value = member.value.data() - (is_text ? 1 : 0);
    const char* const end = value + member.value.size() + (is_text ? 2 : 0);
    members_.push_back({.key = unescaped({begin, member.key.size() + 2}),
                        .text = {begin, static_cast<std::size_t>(end - begin)},
                        .value = {value, static_cast<std::size_t>(end - value)}});
  }
}

std::string_view ObjectText::find(std::string_view key) const {
  for (auto member = members_.rbegin(); member != members_.rend(); ++member)
    if (member->key == key)
      return member->changed.empty() ? member->value : std::string_view(member->changed);
  return {};
}

std::string ObjectText::text_of(std::string_view key) const { return unescaped(find(key)); }

void ObjectText::set(std::string_view key, std::string json) {
  const auto last = std::find_if(members_.rbegin(), members_.rend(),
                                 [&](const Member& member) { return member.key == key; });
  if (last != members_.rend()) {
    last->changed = std::move(json);
    return;
  }
  members_.push_back({.key = std::string(key), .text = {}, .value = {}});
  members_.back().changed = std::move(json);
}

void ObjectText::append_to(std::string& out) const {
  out += '{';
  bool first = true;
  for (const Member& member : members_) {
    if (!std::exchange(first, false)) out += ", ";
    if (member.changed.empty()) {
      out += member.text;
      continue;
    }
    append_json_string(out, member.key);
    out += ": ";
    out += member.changed;
  }
  out += '}';
}

CuratedDocument CuratedDocument::of_object(std::string_view object, const std::string& text_key,
                                           const std::string& file, std::uint64_t line) {
  Document parsed;
  parse_document(object, {.text_key = text_key, .prompt_key = {}}, file, line, parsed);
  CuratedDocument document;
  document.text = std::move(parsed.text);
  document.members = ObjectText(object);
  return document;
}

CuratedDocument CuratedDocument::of_text(std::string_view text, const std::string& text_key) {
  CuratedDocument document;
  document.text = text;
  document.is_changed = true;
  document.members.set(text_key, "\"\"");  // the first member
  return document;
}

void CuratedDocument::append_line(const std::string& text_key, std::string& out) {
  if (is_changed) members.set(text_key, json_string(text));
  members.append_to(out);
  out += '\n';
}

}  // namespace kintsugi
