#include "data/curation/recipe.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <type_traits>
#include <utility>

#include "core/error.h"
#include "core/yaml_document.h"

namespace kintsugi {
namespace {

// Calls `use` with the name and the settings of the one that is there.
template <class Use>
struct StepVisitor {
  Use& use;
  template <class T>
  void operator()(const char* key, std::optional<T>& settings) {
    if (settings) use(key, *settings);
  }
};
template <class Use>
void visit_step(const RecipeStep& step, Use&& use) {
  StepVisitor<Use> visitor{use};
  describe(visitor, const_cast<RecipeStep&>(step));  // only read
}

// A step that changes texts, and may remove documents.
template <class Settings>
class EditStep : public DocumentStep {
 public:
  explicit EditStep(const Settings& settings) : settings_(settings) {}
  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    std::string edited = document.text;
    const std::string_view rule = settings_.edit(edited);
    if (!rule.empty() || edited == document.text) return rule;
    document.text = std::move(edited);
    document.is_changed = true;
    context.text_changed();
    ++context.notes["changed"];
    return {};
  }

 private:
  Settings settings_;
};

// A step that only looks at texts.
template <class Settings>
class FilterStep : public DocumentStep {
 public:
  explicit FilterStep(const Settings& settings) : settings_(settings) {}
  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    return settings_.removed_by(context.measures(document));
  }

 private:
  Settings settings_;
};

class MaskStep : public DocumentStep {
 public:
  explicit MaskStep(const PersonalData& settings) : settings_(settings) { settings_.check(); }
  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    const std::vector<MaskedSpan> spans = settings_.find(document.text);
    if (spans.empty()) return {};
    settings_.mask(document.text, spans);
    document.is_changed = true;
    context.text_changed();
    for (const MaskedSpan& span : spans) ++context.notes[name_of(span.kind)];
    return {};
  }

 private:
  PersonalData settings_;
};

// Documents get members with what the model says.
class LanguageStep : public DocumentStep {
 public:
  explicit LanguageStep(const LanguageFilter& settings) : settings_(settings) { settings_.open(); }
  std::string_view apply(CuratedDocument& document, StepContext&) const override {
    const LanguageGuess guess = settings_.guess(document.text);
    document.language = guess.label;
    document.members.set("language", nlohmann::json(document.language).dump());
    document.members.set("language_score", fmt::format("{:.4f}", guess.probability));
    return settings_.removed_by(guess);
  }

 private:
  LanguageFilter settings_;
};

class FineWeb2Step : public DocumentStep {
 public:
  explicit FineWeb2Step(const FineWeb2& settings)
      : thresholds_(read_fineweb2_thresholds(settings.thresholds)) {}
  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    const TextMeasures& text = context.measures(document);
    if (const auto rule = thresholds_.repetition.removed_by(text); !rule.empty()) return rule;
    if (const auto rule = thresholds_.fineweb.removed_by(text); !rule.empty()) return rule;
    return thresholds_.quality.removed_by(text);
  }

 private:
  FineWeb2Thresholds thresholds_;
};

template <class Settings>
std::unique_ptr<DocumentStep> step_of(const Settings& settings) {
  if constexpr (requires(const Settings& s, std::string& text) { s.edit(text); }) {
    if constexpr (std::is_same_v<Settings, PersonalData>)
      return std::make_unique<MaskStep>(settings);
    else
      return std::make_unique<EditStep<Settings>>(settings);
  } else if constexpr (std::is_same_v<Settings, LanguageFilter>) {
    return std::make_unique<LanguageStep>(settings);
  } else if constexpr (std::is_same_v<Settings, FineWeb2>) {
    return std::make_unique<FineWeb2Step>(settings);
  } else if constexpr (requires(const TextMeasures& text) { settings.removed_by(text); }) {
    return std::make_unique<FilterStep<Settings>>(settings);
  } else {
    return make_step(settings);
  }
}

}  // namespace

Recipe read_recipe(const std::string& text, const std::string& source) {
  const YamlDocument document(text, source);
  Recipe recipe;
  YamlKeys keys;
  describe(keys, recipe);
  RecipeStep any;
  YamlKeys of_steps;
  describe(of_steps, any);
  const std::vector<std::string> all = keys.keys();
  YamlReader(document, all).read(recipe);
  if (recipe.steps.empty()) user_error("{}: a recipe needs steps", source);
  check_sources(recipe.sources, source);
  for (std::size_t i = 0; i < recipe.steps.size(); ++i) {
    int found = 0;
    visit_step(recipe.steps[i], [&](const char*, const auto&) { ++found; });
    if (found != 1)
      user_error("{}: steps[{}] must have one key, the name of a step, not {}", source, i, found);
  }
  return recipe;
}

std::string to_yaml(const Recipe& recipe) {
  Recipe copy = recipe;
  YamlWriter writer;
  describe(writer, copy);
  return writer.text();
}

namespace {

std::vector<std::filesystem::path> files_of_model(const std::string& directory) {
  if (!std::filesystem::is_directory(directory))
    user_error("classify: the model {} is no directory", directory);
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(directory))
    if (entry.is_regular_file()) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

}  // namespace

std::vector<std::filesystem::path> files_of(const Recipe& recipe) {
  std::vector<std::filesystem::path> files;
  for (const RecipeStep& step : recipe.steps) {
    if (step.urls) files.insert(files.end(), step.urls->block.begin(), step.urls->block.end());
    if (step.language) files.emplace_back(step.language->model);
    if (step.fineweb2) files.emplace_back(step.fineweb2->thresholds);
    if (step.decontaminate)
      files.insert(files.end(), step.decontaminate->texts.begin(), step.decontaminate->texts.end());
    if (step.classify)
      std::ranges::copy(files_of_model(step.classify->model), std::back_inserter(files));
    if (step.c4_bad_words)
      files.insert(files.end(), step.c4_bad_words->lists.begin(), step.c4_bad_words->lists.end());
    if (step.words) files.insert(files.end(), step.words->lists.begin(), step.words->lists.end());
  }
  return files;
}

std::vector<PreparedStep> prepare(const Recipe& recipe, const StepSources& sources) {
  std::vector<PreparedStep> prepared;
  for (const RecipeStep& step : recipe.steps)
    visit_step(step, [&]<class Settings>(const char* name, const Settings& settings) {
      PreparedStep& one =
          prepared.emplace_back(PreparedStep{.name = name, .step = {}, .sample = {}});
      if constexpr (std::is_same_v<Settings, Sample>)
        one.sample = settings;
      else if constexpr (std::is_same_v<Settings, Decontamination>)
        one.step = make_step(settings, sources.read_tasks);
      else if constexpr (std::is_same_v<Settings, Classify>)
        one.step = make_step(settings, sources.open_classifier);
      else
        one.step = step_of(settings);
    });
  return prepared;
}

}  // namespace kintsugi
