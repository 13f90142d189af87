#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"
#include "data/curation/steps.h"

namespace kintsugi {

// One step of a recipe: exactly one of these.
struct RecipeStep {
  std::optional<Repair> repair;
  std::optional<UrlFilter> urls;
  std::optional<WordFilter> words;
  std::optional<Sample> sample;
};
template <class V>
void describe(V& v, RecipeStep& s) {
  v("repair", s.repair);
  v("urls", s.urls);
  v("words", s.words);
  v("sample", s.sample);
}

// What happens to the documents of a corpus, in this order.
struct Recipe {
  std::string text_key = "text";
  bool origin = true;          // documents get a member with their file and line
  std::int64_t examples = 10;  // of removed and changed documents, per rule
  std::vector<RecipeStep> steps;
};
template <class V>
void describe(V& v, Recipe& r) {
  v("text_key", r.text_key);
  v("origin", r.origin);
  v("examples", r.examples, between(0, 1000));
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
std::vector<PreparedStep> prepare(const Recipe& recipe);

}  // namespace kintsugi
