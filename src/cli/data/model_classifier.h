#pragma once

#include <memory>

#include "data/curation/classify.h"

namespace kintsugi {

// Opens a model directory as the classifier of a recipe: on one core, so that threads can have one
// each.
std::unique_ptr<TextClassifier> open_classifier(const Classify& settings);

}  // namespace kintsugi
