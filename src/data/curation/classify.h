#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"
#include "data/curation/steps.h"

namespace kintsugi {

// A trained classifier, which is opened outside of this folder: nothing here knows models.
class TextClassifier {
 public:
  virtual ~TextClassifier() = default;
  virtual std::vector<std::string> labels() const = 0;
  // Of each label; empty if the text has no token. The same for the same text, always. Only one
  // thread at a time.
  virtual std::vector<double> probabilities(std::string_view text) = 0;
};

// Documents that a classifier says to have certain labels.
struct Classify {
  std::string model;              // directory
  std::vector<std::string> keep;  // labels; empty: nothing is removed
  double threshold = 0.5;         // the least probability of all these labels together
  std::string member;             // of a record: the likeliest label; with _score: the probability
  std::int64_t max_length = 0;    // tokens that are read, from the beginning; 0: as the model can
};
template <class V>
void describe(V& v, Classify& c) {
  v("model", c.model);
  v("keep", c.keep);
  v("threshold", c.threshold, between(0, 1));
  v("member", c.member);
  v("max_length", c.max_length, at_least(0));
}

using OpenClassifier = std::function<std::unique_ptr<TextClassifier>(const Classify& settings)>;
// Opens a classifier for each thread that needs one. UserError if it has no such label.
std::unique_ptr<DocumentStep> make_step(const Classify& settings, const OpenClassifier& open);

}  // namespace kintsugi
