// What a run does only for classifiers: class weights, and the scores of validations.
#include <fmt/format.h>

#include "core/file.h"
#include "core/log.h"
#include "train/trainer.h"

namespace kintsugi {

std::span<const float> Trainer::target_weights(std::span<const std::int32_t> targets) {
  const std::vector<float>& weights = data_->class_weights();
  if (weights.empty()) return {};
  target_weights_.clear();
  for (const std::int32_t target : targets)
    target_weights_.push_back(target < 0 ? 0.0F : weights[static_cast<std::size_t>(target)]);
  return target_weights_;
}

StepRecord::Valid Trainer::valid_record(const std::string& name, const Score& score) const {
  StepRecord::Valid record{name, score.loss(), score.bits_per_byte()};
  if (config_.model.is_classifier()) {
    record.accuracy = score.matrix.accuracy();
    record.macro_f1 = score.matrix.macro_f1();
  }
  return record;
}

void Trainer::show_score(const std::string& set, const Score& score) const {
  if (config_.model.is_classifier())
    return log_info(
        "step {:>6}  held-out{} loss {:.4f} nats per document, accuracy {:.4f}, macro F1 {:.4f}, "
        "micro F1 {:.4f}",
        state_.step, set, score.loss(), score.matrix.accuracy(), score.matrix.macro_f1(),
        score.matrix.accuracy());
  if (preference())
    return log_info("step {:>6}  held-out{} loss {:.4f}", state_.step, set, score.loss());
  const std::optional<double> bits = score.bits_per_byte();
  log_info("step {:>6}  held-out{} loss {:.4f} nats per token, {} bits per byte", state_.step, set,
           score.loss(), bits ? fmt::format("{:.4f}", *bits) : "unknown");
}

void Trainer::report_labels(const ConfusionMatrix& matrix) {
  const std::filesystem::path file = directory_ / "classification.json";
  try {
    write_file_atomically(file, scores_json(matrix, config_.model.labels, state_.step));
  } catch (const Failure& error) {  // metrics.jsonl has the main scores
    log_warning("{}", error.what());
  }
  if (!finished()) return;
  log_info("scores by label ({}):\n{}", file.string(), scores_table(matrix, config_.model.labels));
}

}  // namespace kintsugi
