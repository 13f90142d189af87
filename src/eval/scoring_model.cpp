#include "eval/scoring_model.h"

#include "core/error.h"

namespace kintsugi {

std::string ScoringModel::decode(std::span<const std::int32_t>) {
  user_error("this model has no tokenizer: it cannot score documents that are stored as tokens");
}

std::vector<std::string> ScoringModel::generate(std::span<const TextRequest>,
                                                const ScoringProgress&) {
  user_error("this model cannot generate texts: tasks of the type generate_until cannot be run");
}

}  // namespace kintsugi
