#include "train/trainer/validation.h"

#include <fmt/format.h>

#include <algorithm>
#include <numbers>

#include "core/file.h"
#include "core/log.h"

namespace kintsugi {

void Validation::Score::add(std::span<const double> more) {
  for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += more[i];
}

void Validation::Score::add(const Score& other) {
  add(other.sums);
  targets += other.targets;
  bytes += other.bytes;
  matrix.add(other.matrix);
}

std::optional<double> Validation::Score::bits_per_byte() const {
  if (bytes == 0) return {};
  return sums.front() / std::numbers::ln2 / static_cast<double>(bytes);
}

// Micro-batches are dealt to the data ranks in turn. All data ranks compute as many of the same
// size, since a forward may gather weights and tokens from all of them. A rank with fewer samples
// computes on old tokens, without a loss.
Validation::Score Validation::score(const ValidationSet& set, SampleBatch& batch) {
  const std::int64_t length = run_.config.data.sequence_length,
                     micro = run_.config.layout.micro_batch;
  SampleReader reader(run_.data->validation_options());
  std::vector<TokenRange> ranges;
  const bool classifies = run_.config.model.is_classifier();
  Score score = empty_score();
  const Coordinates& coordinates = run_.groups.coordinates;
  for (std::int64_t round = 0; round < set.size(); round += micro * run_.groups.grid.dp) {
    run_.note_activity();
    const std::int64_t first = round + micro * coordinates.dp;
    const std::int64_t samples = std::clamp<std::int64_t>(set.size() - first, 0, micro);
    const std::int64_t count = std::min(micro, set.size() - round);
    for (std::int64_t i = 0; i < samples; ++i) {
      ranges.clear();
      set.locate(first + i, ranges);
      reader.read(ranges, batch, i);
    }
    std::fill(batch.targets.begin() + samples * length, batch.targets.begin() + count * length, -1);
    if (samples == 0) batch.sequences.clear();
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
  std::vector<double> all = {score.targets, static_cast<double>(score.bytes), run_.stops.ask()};
  const std::ptrdiff_t own = std::ssize(all);
  const std::span<double> counts = score.matrix.counts();
  all.insert(all.end(), score.sums.begin(), score.sums.end());
  all.insert(all.end(), counts.begin(), counts.end());
  run_.sum_over_ranks(all);
  score.targets = all[0];
  score.bytes = static_cast<std::int64_t>(all[1]);
  run_.stops.decide(all[2]);
  std::copy_n(all.begin() + own, score.sums.size(), score.sums.begin());
  std::copy(all.begin() + own + std::ssize(score.sums), all.end(), counts.begin());
  return score;
}

void Validation::validate() {
  const auto begin = std::chrono::steady_clock::now();
  const EnergySpan energy(run_.energy, RunPhase::Validation);
  SampleBatch batch(run_.config.layout.micro_batch, run_.data->validation_options());
  Score all = empty_score();
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
  run_.record.valid_scalars = run_.engine->scalars().values(all.sums, loss_divisor(all.targets));
  std::erase_if(run_.record.valid_scalars,
                [](const ScalarValue& one) { return one.of->valid.json.empty(); });
  last_loss_ = run_.record.valid_loss;
  show_score("", all);
  for (const auto& [scalar, value] : run_.record.valid_scalars) {
    std::string name = scalar->names.json;  // "reward_accuracy"
    std::ranges::replace(name, '_', ' ');
    log_info("step {:>6}  held-out {} {:.4f}", run_.state.step, name, value);
  }
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
