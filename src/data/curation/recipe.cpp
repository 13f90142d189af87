#include "data/curation/recipe.h"

#include <fmt/format.h>

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

// A step that changes texts and removes none.
template <class Settings>
class EditStep : public DocumentStep {
 public:
  explicit EditStep(const Settings& settings) : settings_(settings) {}
  std::string_view apply(CuratedDocument& document, Notes& notes) const override {
    if (!settings_.edit(document.text)) return {};
    document.is_changed = true;
    ++notes["changed"];
    return {};
  }

 private:
  Settings settings_;
};

std::unique_ptr<DocumentStep> make_step(const Repair& settings) {
  return std::make_unique<EditStep<Repair>>(settings);
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

std::vector<std::filesystem::path> files_of(const Recipe& recipe) {
  std::vector<std::filesystem::path> files;
  for (const RecipeStep& step : recipe.steps) {
    if (step.urls) files.insert(files.end(), step.urls->block.begin(), step.urls->block.end());
    if (step.words) files.insert(files.end(), step.words->lists.begin(), step.words->lists.end());
  }
  return files;
}

std::vector<PreparedStep> prepare(const Recipe& recipe) {
  std::vector<PreparedStep> prepared;
  for (const RecipeStep& step : recipe.steps)
    visit_step(step, [&]<class Settings>(const char* name, const Settings& settings) {
      PreparedStep& one =
          prepared.emplace_back(PreparedStep{.name = name, .step = {}, .sample = {}});
      if constexpr (std::is_same_v<Settings, Sample>)
        one.sample = settings;
      else
        one.step = make_step(settings);
    });
  return prepared;
}

}  // namespace kintsugi
