#include "data/provenance/card.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "core/error.h"
#include "core/table.h"
#include "core/units.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

// Text that is given replaces the other.
void merge_text(std::string& to, const std::string& from) {
  if (!from.empty()) to = from;
}

void merge(DocumentSource& to, const DocumentSource& from) {
  if (from.kind != SourceKind::Unknown) to.kind = from.kind;
  merge_text(to.license, from.license);
  merge_text(to.url, from.url);
  merge_text(to.version, from.version);
  merge_text(to.creator, from.creator);
  merge_text(to.description, from.description);
  merge_text(to.date, from.date);
  if (!from.languages.empty()) to.languages = from.languages;
}

std::string joined_names(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ", ") + name;
  return text;
}

// The bins of the template, for text.
std::string size_bin(std::optional<std::int64_t> tokens) {
  if (!tokens) return kToAdd;
  const auto count = static_cast<double>(*tokens);
  return count < 1e9     ? "less than 1 billion tokens"
         : count <= 1e13 ? "1 billion to 10 trillion tokens"
                         : "more than 10 trillion tokens";
}

}  // namespace

std::string or_to_add(const std::string& text) { return text.empty() ? kToAdd : text; }

CardDetails read_card_details(const std::string& text, const std::string& source,
                              const std::vector<std::string>& overrides) {
  const YamlDocument document(text, source, overrides);
  CardDetails details;
  YamlKeys keys;
  describe(keys, details);
  const std::vector<std::string> all = keys.keys();
  YamlReader(document, all).read(details);
  check_sources(details.sources, source, false);
  return details;
}

DataCard make_card(CardDetails details, DataHistory history, const fs::path& output) {
  for (const DocumentSource& more : details.sources) {
    const auto known = std::find_if(history.sources.begin(), history.sources.end(),
                                    [&](const auto& one) { return one.name == more.name; });
    if (known == history.sources.end())
      history.sources.push_back(more);
    else
      merge(*known, more);
  }
  return {.details = std::move(details), .history = std::move(history), .output = output};
}

std::string DataCard::name() const {
  return details.name.empty() ? history.stages[history.last.front()].directory.filename().string()
                              : details.name;
}

CountsByName DataCard::sources() const {
  CountsByName sum;
  for (const std::size_t stage : history.last)
    for (const StageOutput& output : history.stages[stage].outputs) add_counts(sum, output.sources);
  return sum;
}

CountsByName DataCard::domains() const {
  CountsByName sum;
  for (const std::size_t stage : history.last)
    for (const StageOutput& output : history.stages[stage].outputs) add_counts(sum, output.domains);
  return sum;
}

TextCount DataCard::text() const {
  TextCount sum;
  for (const std::size_t stage : history.last) sum.add(history.stages[stage].out);
  return sum;
}

std::optional<std::int64_t> DataCard::tokens() const {
  std::int64_t sum = 0;
  for (const std::size_t stage : history.last) {
    if (history.stages[stage].kind != DataStage::Kind::Store) return std::nullopt;
    sum += history.stages[stage].tokens;
  }
  return sum;
}

const DocumentSource* DataCard::source(const std::string& name) const {
  for (const DocumentSource& one : history.sources)
    if (one.name == name) return &one;
  return nullptr;
}

std::vector<std::string> DataCard::languages() const {
  std::set<std::string> names;
  for (const auto& [name, count] : sources())
    if (const DocumentSource* const one = source(name))
      names.insert(one->languages.begin(), one->languages.end());
  return {names.begin(), names.end()};
}

std::string DataCard::latest_date() const {
  std::string latest;
  for (const auto& [name, count] : sources()) {
    const DocumentSource* const one = source(name);
    if (one == nullptr || one->date.empty()) return "";
    latest = std::max(latest, std::string(last_date(one->date)));
  }
  return latest;
}

std::string DataCard::address_of(const fs::path& file) const {
  const fs::path below = history.stages[history.last.front()].directory.parent_path();
  if (!details.files_url.empty())
    return details.files_url + (details.files_url.ends_with('/') ? "" : "/") +
           file.lexically_relative(below).generic_string();
  return file.lexically_proximate(fs::absolute(output).lexically_normal()).generic_string();
}

std::vector<std::pair<std::string, TextCount>> top_domains(const CountsByName& domains,
                                                           bool small_enterprise) {
  std::vector<std::pair<std::string, TextCount>> sorted(domains.begin(), domains.end());
  std::stable_sort(sorted.begin(), sorted.end(),
                   [](const auto& a, const auto& b) { return a.second.bytes > b.second.bytes; });
  const std::size_t part = small_enterprise ? 20 : 10;
  std::size_t most = (sorted.size() + part - 1) / part;
  if (small_enterprise) most = std::min<std::size_t>(most, 1000);
  sorted.resize(most);
  return sorted;
}

Json training_summary(const DataCard& card) {
  Json rows = Json::array();
  const auto add = [&](const char* section, const char* question, const std::string& answer) {
    rows.push_back({{"section", section}, {"question", question}, {"answer", or_to_add(answer)}});
  };
  const CountsByName sources = card.sources();
  const auto of_kind = [&](SourceKind kind) {
    std::vector<std::string> names;
    for (const auto& [name, count] : sources) {
      const DocumentSource* const one = card.source(name);
      if (one == nullptr || one->kind != kind) continue;
      std::string text = name;
      for (const std::string& more : {one->version, one->url, one->date})
        if (!more.empty()) text += " " + more;
      names.push_back(text);
    }
    return joined_names(names);
  };
  bool kinds_known = true;
  for (const auto& [name, count] : sources) {
    const DocumentSource* const one = card.source(name);
    kinds_known = kinds_known && one != nullptr && one->kind != SourceKind::Unknown;
  }
  // "none" needs the kinds of all sources.
  const auto listed = [&](SourceKind kind) {
    const std::string names = of_kind(kind);
    if (names.empty()) return std::string(kinds_known ? "none" : kToAdd);
    return names + (kinds_known ? "" : std::string("; more ") + kToAdd);
  };
  const char* const general = "1. General information";
  add(general, "provider", card.details.provider);
  add(general, "modalities", "text");
  add(general, "size of the text", size_bin(card.tokens()));
  const TextCount text = card.text();
  add(general, "documents and their text",
      fmt::format("{}, {}", format_number(text.documents, "document"),
                  format_bytes(static_cast<double>(text.bytes))));
  if (card.tokens()) add(general, "tokens", std::to_string(*card.tokens()));
  bool languages_known = true;
  for (const auto& [name, count] : sources)
    languages_known &= card.source(name) != nullptr && !card.source(name)->languages.empty();
  const std::string languages = joined_names(card.languages());
  add(general, "languages",
      languages.empty() || languages_known ? languages : languages + "; more " + kToAdd);
  add(general, "latest date of collection", card.latest_date());
  const char* const list = "2. Sources";
  add(list, "publicly available data sets", listed(SourceKind::Public));
  add(list, "licensed data sets", listed(SourceKind::Licensed));
  add(list, "crawled data", listed(SourceKind::Crawled));
  add(list, "data of users", listed(SourceKind::User));
  add(list, "synthetic data", listed(SourceKind::Synthetic));
  const CountsByName domains = card.domains();
  const bool small = card.details.small_enterprise;
  add(list, small ? "the first 5 % of domains by text, at most 1,000" : "the first 10 % of domains",
      domains.empty()
          ? std::string(kinds_known && of_kind(SourceKind::Crawled).empty() ? "none" : "")
          : fmt::format("{} of {}, in domains.csv", top_domains(domains, small).size(),
                        format_number(std::ssize(domains), "domain")));
  const char* const processing = "3. Processing";
  add(processing, "reservations of rights (opt-outs)", card.details.opt_outs);
  add(processing, "measures against illegal content", card.details.illegal_content);
  return rows;
}

std::string inputs_csv(const DataCard& card) {
  Table table({Column::text("file"), Column::number("bytes"), Column::text("sha256"),
               Column::text("source"), Column::text("state")});
  for (const OriginalFile& file : card.history.originals)
    table.add({file.input.path, file.input.bytes, file.input.sha256, file.input.source,
               file.state.empty() ? std::string("there") : file.state});
  return table.csv();
}

std::string domains_csv(const DataCard& card) {
  Table table({Column::text("domain"), Column::number("documents"), Column::number("bytes")});
  for (const auto& [domain, count] : top_domains(card.domains(), card.details.small_enterprise))
    table.add({domain, count.documents, count.bytes});
  return table.empty() ? "" : table.csv();
}

}  // namespace kintsugi
