#include "train/trainer/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "core/file.h"
#include "core/log.h"

namespace kintsugi {

void Validation::Score::add(const LossSums& sums) {
  nats += sums.loss;
  rewards.chosen += sums.rewards.chosen;
  rewards.rejected += sums.rewards.rejected;
  rewards.accuracy += sums.rewards.accuracy;
}

void Validation::Score::add(const Score& other) {
  add(LossSums{.loss = other.nats, .rewards = other.rewards});
  targets += other.targets;
  bytes += other.bytes;
  matrix.add(other.matrix);
}

std::optional<double> Validation::Score::bits_per_byte() const {
  if (bytes == 0) return {};
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

// Micro-batches are dealt to the data ranks in turn. All data ranks compute the same number, since
// a forward may gather weights from all of them. A rank without samples computes on old tokens,
// without a loss.
Validation::Score Validation::score(const ValidationSet& set, SampleBatch& batch) {
  const std::int64_t length = run_.config.data.sequence_length,
                     micro = run_.config.layout.micro_batch;
  SampleReader reader(run_.data->validation_options());
  std::vector<TokenRange> ranges;
  const bool classifies = run_.config.model.is_classifier();
  Score score(run_.config.model.labels.size());
  const Coordinates& coordinates = run_.groups.coordinates;
  for (std::int64_t round = 0; round < set.size(); round += micro * run_.groups.grid.dp) {
    run_.note_activity();
    const std::int64_t first = round + micro * coordinates.dp;
    const std::int64_t samples = std::min(micro, set.size() - first);
    const std::int64_t count = std::max<std::int64_t>(samples, 1);
    for (std::int64_t i = 0; i < samples; ++i) {
      ranges.clear();
      set.locate(first + i, ranges);
      reader.read(ranges, batch, i);
    }
    if (samples <= 0) {
      std::fill_n(batch.targets.begin(), length, -1);
      batch.sequences.clear();
    }
    const auto rows = [&](const std::vector<std::int32_t>& all) {
      return std::span(all).first(all.empty() ? 0 : static_cast<std::size_t>(count * length));
    };
    const auto targets = rows(batch.targets);
    const TokenBatch tokens{.ids = rows(batch.ids),
                            .targets = targets,
                            .positions = rows(batch.positions),
                            .document_start = rows(batch.document_start),
                            .weights = feed_.target_weights(targets),
                            .sequences = reference_.pairs_of(batch)};
    const auto predict = [&](std::size_t token, std::span<const double> logits) {
      score.matrix.add(targets[token], predicted_label(logits));
    };
    score.add(classifies ? run_.engine->classify(tokens, predict) : run_.engine->evaluate(tokens));
    score.targets += run_.engine->targets_of(tokens);
    if (run_.groups.counts_sequences() && !classifies && !run_.preference())
      score.bytes += run_.data->bytes_of(targets);
  }
  std::vector<double> sums = {
      score.nats,           score.targets,          static_cast<double>(score.bytes),
      score.rewards.chosen, score.rewards.rejected, score.rewards.accuracy,
      run_.stops.ask()};
  const std::ptrdiff_t own = std::ssize(sums);
  const std::span<double> counts = score.matrix.counts();
  sums.insert(sums.end(), counts.begin(), counts.end());
  run_.sum_over_ranks(sums);
  score.nats = sums[0];
  score.targets = sums[1];
  score.bytes = static_cast<std::int64_t>(sums[2]);
  score.rewards = {sums[3], sums[4], sums[5]};
  run_.stops.decide(sums[6]);
  std::copy(sums.begin() + own, sums.end(), counts.begin());
  return score;
}

void Validation::validate() {
  const auto begin = std::chrono::steady_clock::now();
  const EnergySpan energy(run_.energy, RunPhase::Validation);
  SampleBatch batch(run_.config.layout.micro_batch, run_.data->validation_options());
  Score all(run_.config.model.labels.size());
  run_.record.valid.clear();
  std::vector<std::pair<std::string, Score>> sets;
  for (const ValidationSet& set : run_.data->validation()) {
    const Score& one = sets.emplace_back(set.name(), score(set, batch)).second;
    run_.record.valid.push_back(valid_record(set.name(), one));
    all.add(one);
  }
  const StepRecord::Valid whole = valid_record("", all);
  run_.record.valid_loss = whole.loss;
  run_.record.valid_bits_per_byte = whole.bits_per_byte;
  run_.record.valid_accuracy = run_.record.valid_micro_f1 = whole.accuracy;
  run_.record.valid_macro_f1 = whole.macro_f1;
  if (run_.preference())
    run_.record.valid_reward_accuracy = all.rewards.divided_by(loss_divisor(all.targets)).accuracy;
  last_loss_ = run_.record.valid_loss;
  show_score("", all);
  if (run_.preference())
    log_info("step {:>6}  held-out reward accuracy {:.4f}", run_.state.step,
             *run_.record.valid_reward_accuracy);
  if (sets.size() > 1)
    for (const auto& [name, one] : sets) show_score(" " + name, one);
  if (run_.is_first() && run_.config.model.is_classifier()) report_labels(all.matrix);
  const double seconds = seconds_since(begin);
  run_.stops.wall_time().note_step(seconds);
  run_.note_validation_time(seconds);
}

StepRecord::Valid Validation::valid_record(const std::string& name, const Score& score) const {
  StepRecord::Valid record{name, score.loss(), score.bits_per_byte()};
  if (run_.config.model.is_classifier()) {
    record.accuracy = score.matrix.accuracy();
    record.macro_f1 = score.matrix.macro_f1();
  }
  return record;
}

void Validation::show_score(const std::string& set, const Score& score) const {
  if (run_.config.model.is_classifier())
    return log_info(
        "step {:>6}  held-out{} loss {:.4f} nats per document, accuracy {:.4f}, macro F1 {:.4f}, "
        "micro F1 {:.4f}",
        run_.state.step, set, score.loss(), score.matrix.accuracy(), score.matrix.macro_f1(),
        score.matrix.accuracy());
  if (run_.preference())
    return log_info("step {:>6}  held-out{} loss {:.4f}", run_.state.step, set, score.loss());
  const std::optional<double> bits = score.bits_per_byte();
  log_info("step {:>6}  held-out{} loss {:.4f} nats per token, {} bits per byte", run_.state.step,
           set, score.loss(), bits ? fmt::format("{:.4f}", *bits) : "unknown");
}

void Validation::report_labels(const ConfusionMatrix& matrix) const {
  const std::filesystem::path file = run_.directory / "classification.json";
  try {
    write_file_atomically(file, scores_json(matrix, run_.config.model.labels, run_.state.step));
  } catch (const Failure& error) {  // metrics.jsonl has the main scores
    log_warning("{}", error.what());
  }
  if (!run_.finished()) return;
  log_info("scores by label ({}):\n{}", file.string(),
           scores_table(matrix, run_.config.model.labels));
}

}  // namespace kintsugi
