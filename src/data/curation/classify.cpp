#include "data/curation/classify.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <mutex>
#include <nlohmann/json.hpp>
#include <utility>

#include "core/error.h"

namespace kintsugi {
namespace {

class ClassifyStep : public DocumentStep {
 public:
  ClassifyStep(const Classify& settings, const OpenClassifier& open)
      : settings_(settings), open_(open) {
    if (settings.keep.empty() && settings.member.empty())
      user_error("classify: give labels to keep, or a member for the label");
    std::unique_ptr<TextClassifier> classifier = open_(settings_);
    labels_ = classifier->labels();
    for (const std::string& label : settings.keep) {
      const auto at = std::ranges::find(labels_, label);
      if (at == labels_.end())
        user_error("classify: {} has no label '{}': its labels are {}", settings.model, label,
                   fmt::join(labels_, ", "));
      kept_.push_back(static_cast<std::size_t>(at - labels_.begin()));
    }
    idle_.push_back(std::move(classifier));
  }

  std::string_view apply(CuratedDocument& document, StepContext&) const override {
    const std::vector<double> probabilities = probabilities_of(document.text);
    if (probabilities.empty()) return "classify.empty";
    const auto best =
        static_cast<std::size_t>(std::ranges::max_element(probabilities) - probabilities.begin());
    if (!settings_.member.empty()) {
      document.members.set(settings_.member, nlohmann::json(labels_[best]).dump());
      document.members.set(settings_.member + "_score", fmt::format("{:.4f}", probabilities[best]));
    }
    double kept = 0;
    for (const std::size_t label : kept_) kept += probabilities[label];
    return kept_.empty() || kept >= settings_.threshold ? "" : "classify.other";
  }

 private:
  // A classifier for one thread, which the others do not wait for.
  std::vector<double> probabilities_of(std::string_view text) const {
    std::unique_ptr<TextClassifier> classifier;
    {
      const std::lock_guard lock(mutex_);
      if (!idle_.empty()) {
        classifier = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!classifier) classifier = open_(settings_);
    std::vector<double> probabilities = classifier->probabilities(text);
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(classifier));
    return probabilities;
  }

  Classify settings_;
  OpenClassifier open_;
  std::vector<std::string> labels_;
  std::vector<std::size_t> kept_;  // of the labels
  mutable std::mutex mutex_;
  mutable std::vector<std::unique_ptr<TextClassifier>> idle_;
};

}  // namespace

std::unique_ptr<DocumentStep> make_step(const Classify& settings, const OpenClassifier& open) {
  return std::make_unique<ClassifyStep>(settings, open);
}

}  // namespace kintsugi
