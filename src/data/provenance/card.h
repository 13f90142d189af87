#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/yaml_reader.h"
#include "data/provenance/stages.h"

namespace kintsugi {

// What only people know about a data set. Empty: unknown.
struct CardDetails {
  std::string name, description, license, url, creator, date_published, version, citation;
  std::string provider;         // of the model that is trained on it
  std::string opt_outs;         // how reservations of rights were respected
  std::string illegal_content;  // measures against it
  std::string files_url;        // where the files are published, before their names
  bool small_enterprise = false;
  std::vector<DocumentSource> sources;  // more about those of recipes, by name; and others
};
template <class V>
void describe(V& v, CardDetails& d) {
  v("name", d.name);
  v("description", d.description);
  v("license", d.license);
  v("url", d.url);
  v("creator", d.creator);
  v("date_published", d.date_published);
  v("version", d.version);
  v("citation", d.citation);
  v("provider", d.provider);
  v("opt_outs", d.opt_outs);
  v("illegal_content", d.illegal_content);
  v("files_url", d.files_url);
  v("small_enterprise", d.small_enterprise);
  v("sources", d.sources);
}
// UserError with file and line. `overrides`: "license=CC0-1.0".
CardDetails read_card_details(const std::string& text, const std::string& source,
                              const std::vector<std::string>& overrides);

inline constexpr const char* kToAdd = "to be added";
std::string or_to_add(const std::string& text);  // if it is empty

// A data set with what its stages and people say.
struct DataCard {
  CardDetails details;
  DataHistory history;
  std::filesystem::path output;  // the directory of the card, to which file names are relative

  std::string name() const;
  CountsByName sources() const;  // text of the last stages, by source
  CountsByName domains() const;
  TextCount text() const;
  std::optional<std::int64_t> tokens() const;
  std::vector<std::string> languages() const;
  std::string latest_date() const;  // of collection; empty: a source has none
  const DocumentSource* source(const std::string& name) const;
  // The name of a file in the card, relative to it or below files_url.
  std::string address_of(const std::filesystem::path& file) const;
};
// Merges what the details say into the sources of the recipes.
DataCard make_card(CardDetails details, DataHistory history, const std::filesystem::path& output);

// The largest by text: the first tenth of all, or for a small enterprise the first twentieth, at
// most 1,000.
std::vector<std::pair<std::string, TextCount>> top_domains(const CountsByName& domains,
                                                           bool small_enterprise);

// The rows of the EU's public summary of training content: {"section", "question", "answer"}.
nlohmann::ordered_json training_summary(const DataCard& card);

// JSON-LD of Croissant 1.1.
nlohmann::ordered_json croissant(const DataCard& card);

struct CardPage {
  std::string html, markdown;
};
CardPage card_page(const DataCard& card);
std::string inputs_csv(const DataCard& card);
std::string domains_csv(const DataCard& card);  // top_domains(); empty: no document has an address

}  // namespace kintsugi
