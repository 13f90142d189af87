#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"
#include "data/curation/classify.h"
#include "data/curation/decontamination.h"
#include "data/curation/language_id.h"
#include "data/curation/personal_data.h"
#include "data/curation/steps.h"
#include "data/curation/text_filters.h"
#include "data/curation/web_filters.h"
#include "data/provenance/sources.h"

namespace kintsugi {

// The three filters of FineWeb-2 with the thresholds of one language.
struct FineWeb2 {
  std::string thresholds;  // a file of that project, such as configs/fin_Latn.yml
};
template <class V>
void describe(V& v, FineWeb2& f) {
  v("thresholds", f.thresholds);
}

// One step of a recipe: exactly one of these.
struct RecipeStep {
  std::optional<Repair> repair;
  std::optional<LanguageFilter> language;
  std::optional<UrlFilter> urls;
  std::optional<WordFilter> words;
  std::optional<GopherQuality> gopher_quality;
  std::optional<GopherRepetition> gopher_repetition;
  std::optional<C4Lines> c4;
  std::optional<C4Paragraphs> c4_paragraphs;
  std::optional<C4BadWords> c4_bad_words;
  std::optional<RefinedWebLines> refinedweb_lines;
  std::optional<FineWebQuality> fineweb_quality;
  std::optional<FineWeb2> fineweb2;
  std::optional<Classify> classify;
  std::optional<PersonalData> personal_data;
  std::optional<Decontamination> decontaminate;
  std::optional<Sample> sample;
};
template <class V>
void describe(V& v, RecipeStep& s) {
  v("repair", s.repair);
  v("language", s.language);
  v("urls", s.urls);
  v("words", s.words);
  v("gopher_quality", s.gopher_quality);
  v("gopher_repetition", s.gopher_repetition);
  v("c4", s.c4);
  v("c4_paragraphs", s.c4_paragraphs);
  v("c4_bad_words", s.c4_bad_words);
  v("refinedweb_lines", s.refinedweb_lines);
  v("fineweb_quality", s.fineweb_quality);
  v("fineweb2", s.fineweb2);
  v("classify", s.classify);
  v("personal_data", s.personal_data);
  v("decontaminate", s.decontaminate);
  v("sample", s.sample);
}

// What happens to the documents of a corpus, in this order.
struct Recipe {
  std::string text_key = "text", url_key = "url";
  WordMode word_mode = WordMode::Tokens;
  bool origin = true;                   // documents get a member with their file and line
  std::int64_t examples = 10;           // of removed and changed documents, per rule
  std::vector<DocumentSource> sources;  // of the inputs
  std::vector<RecipeStep> steps;
};
template <class V>
void describe(V& v, Recipe& r) {
  v("text_key", r.text_key);
  v("url_key", r.url_key);
  v("word_mode", r.word_mode);
  v("origin", r.origin);
  v("examples", r.examples, between(0, 1000));
  v("sources", r.sources);
  v("steps", r.steps);
}

// UserError with file and line.
Recipe read_recipe(const std::string& text, const std::string& source);
// With all keys, as YAML.
std::string to_yaml(const Recipe& recipe);
// The files that the steps read.
std::vector<std::filesystem::path> files_of(const Recipe& recipe);

// A step that is ready to work. Of a sample `step` is empty.
struct PreparedStep {
  std::string name;
  std::unique_ptr<DocumentStep> step;
  std::optional<Sample> sample;
};
// What steps are given from outside of this folder.
struct StepSources {
  ReadReferences read_tasks = {};
  OpenClassifier open_classifier = {};
};
std::vector<PreparedStep> prepare(const Recipe& recipe, const StepSources& sources);

}  // namespace kintsugi
