#include "data/curation/curation_example.h"

#include <algorithm>
#include <tuple>

#include "core/error.h"
#include "data/tokenizers/unicode.h"

namespace kintsugi {
namespace {

using Json = nlohmann::ordered_json;

constexpr std::size_t kExcerptBytes = 4000;
constexpr std::size_t kBytesBeforeChange = 300;

bool is_in_order(const CurationExample& a, const CurationExample& b) {
  return std::tie(a.order, a.origin) < std::tie(b.order, b.origin);
}

// Where the excerpts of two valid texts begin: at a character that both have there.
std::size_t excerpt_begin(std::string_view before, std::string_view after) {
  const auto changed = std::mismatch(before.begin(), before.end(), after.begin(), after.end());
  const auto same = static_cast<std::size_t>(changed.first - before.begin());
  if (same <= kBytesBeforeChange) return 0;
  std::size_t begin = same - kBytesBeforeChange;
  const auto continues = [&](std::size_t i) {
    return (static_cast<unsigned char>(before[i]) & 0xC0) == 0x80;
  };
  while (begin > 0 && continues(begin)) --begin;
  return begin;
}

}  // namespace

std::string_view excerpt_of(std::string_view text) {
  return text.substr(0, valid_utf8_prefix(text.substr(0, kExcerptBytes)));
}

void set_texts(CurationExample& example, std::string_view before, std::string_view after) {
  const bool is_changed = example.kind == ExampleFate::Changed;
  const std::size_t begin = is_changed ? excerpt_begin(before, after) : 0;
  example.begin = static_cast<std::int64_t>(begin);
  example.bytes_before = std::ssize(before);
  example.bytes_after = std::ssize(after);
  example.before = excerpt_of(before.substr(begin));
  if (is_changed) example.after = excerpt_of(after.substr(begin));
}

bool CurationExamples::has_room_for(ExampleFate kind, const std::string& rule, std::uint64_t order,
                                    std::size_t most) const {
  const auto found = lists_.find({kind, rule});
  return most > 0 && (found == lists_.end() || found->second.size() < most ||
                      order <= found->second.back().order);
}

void CurationExamples::add(CurationExample example, std::size_t most) {
  std::vector<CurationExample>& list = lists_[{example.kind, example.rule}];
  const auto at = std::upper_bound(list.begin(), list.end(), example, is_in_order);
  if (static_cast<std::size_t>(at - list.begin()) >= most) return;
  list.insert(at, std::move(example));
  if (list.size() > most) list.pop_back();
}

void CurationExamples::add(CurationExamples more, std::size_t most) {
  for (auto& [key, list] : more.lists_)
    for (CurationExample& example : list) add(std::move(example), most);
}

Json CurationExamples::json() const {
  Json list = Json::array();
  for (const auto& [key, examples] : lists_)
    for (const CurationExample& one : examples)
      list.push_back({{"kind", YamlScalar<ExampleFate>::format(one.kind)},
                      {"rule", one.rule},
                      {"order", one.order},
                      {"origin", one.origin},
                      {"language", one.language},
                      {"before", one.before},
                      {"after", one.after},
                      {"begin", one.begin},
                      {"bytes_before", one.bytes_before},
                      {"bytes_after", one.bytes_after}});
  return list;
}

CurationExamples CurationExamples::of_json(const Json& json) {
  CurationExamples examples;
  for (const Json& one : json) {
    CurationExample example{
        .order = one.at("order").get<std::uint64_t>(),
        .kind = YamlScalar<ExampleFate>::parse(one.at("kind").get<std::string>()),
        .rule = one.at("rule").get<std::string>(),
        .origin = one.at("origin").get<std::string>(),
        .language = one.at("language").get<std::string>(),
        .before = one.at("before").get<std::string>(),
        .after = one.at("after").get<std::string>(),
        .begin = one.at("begin").get<std::int64_t>(),
        .bytes_before = one.at("bytes_before").get<std::int64_t>(),
        .bytes_after = one.at("bytes_after").get<std::int64_t>()};
    std::vector<CurationExample>& list = examples.lists_[{example.kind, example.rule}];
    list.push_back(std::move(example));
  }
  return examples;
}

}  // namespace kintsugi
