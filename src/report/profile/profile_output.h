#pragma once

#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>

#include "report/profile/analysis.h"

namespace kintsugi {

// A prediction of the step, to compare with the measured terms.
struct PredictedStep {
  std::string machine = {};
  StepTerms terms = {};
};

// `kintsugi report --profile`: docs/profiling.md describes the text and the JSON.
std::string profile_text(const ProfileAnalysis& analysis);
std::string prediction_text(const ProfileAnalysis& analysis, const PredictedStep& predicted);
std::string diff_text(const ProfileDiff& diff);

nlohmann::ordered_json profile_json(const ProfileAnalysis& analysis);
nlohmann::ordered_json prediction_json(const ProfileAnalysis& analysis,
                                       const PredictedStep& predicted);
nlohmann::ordered_json diff_json(const ProfileDiff& diff);

// profile_json of a file, as text, for a page. UserError if it is no profile, or too large to be
// read while a page waits.
std::string profile_page_json(const std::filesystem::path& path);

}  // namespace kintsugi
