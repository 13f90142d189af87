// The validation of a run: the losses of its held-out samples.
#include <algorithm>
#include <numbers>

#include "core/log.h"
#include "train/trainer.h"

namespace kintsugi {

void Trainer::Score::add(const Score& other) {
  add(LossSums{.loss = other.nats, .rewards = other.rewards});
  targets += other.targets;
  bytes += other.bytes;
  matrix.add(other.matrix);
}

std::optional<double> Trainer::Score::bits_per_byte() const {
  if (bytes == 0) return {};
  return nats / std::numbers::ln2 / static_cast<double>(bytes);
}

// Micro-batches are dealt to the data ranks in turn. All data ranks compute the same number, since
// a forward may gather weights from all of them. A rank without samples computes on old tokens,
// without a loss.
Trainer::Score Trainer::score(const ValidationSet& set, SampleBatch& batch) {
  const std::int64_t length = config_.data.sequence_length, micro = config_.layout.micro_batch;
  SampleReader reader(data_->validation_options());
  std::vector<TokenRange> ranges;
  const bool classifies = config_.model.is_classifier();
  Score score(config_.model.labels.size());
  const Coordinates& coordinates = groups_->coordinates;
  for (std::int64_t round = 0; round < set.size(); round += micro * groups_->grid.dp) {
    note_activity();
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
                            .weights = target_weights(targets),
                            .sequences = pairs_of(batch)};
    const auto predict = [&](std::size_t token, std::span<const double> logits) {
      score.matrix.add(targets[token], predicted_label(logits));
    };
    score.add(classifies ? engine_->classify(tokens, predict) : engine_->evaluate(tokens));
    score.targets += engine_->targets_of(tokens);
    if (groups_->counts_sequences() && !classifies && !preference())
      score.bytes += data_->bytes_of(targets);
  }
  std::vector<double> sums = {
      score.nats,           score.targets,          static_cast<double>(score.bytes),
      score.rewards.chosen, score.rewards.rejected, score.rewards.accuracy,
      stops_.ask()};
  const std::ptrdiff_t own = std::ssize(sums);
  const std::span<double> counts = score.matrix.counts();
  sums.insert(sums.end(), counts.begin(), counts.end());
  sum_over_ranks(sums);
  score.nats = sums[0];
  score.targets = sums[1];
  score.bytes = static_cast<std::int64_t>(sums[2]);
  score.rewards = {sums[3], sums[4], sums[5]};
  stops_.decide(sums[6]);
  std::copy(sums.begin() + own, sums.end(), counts.begin());
  return score;
}

void Trainer::validate() {
  const auto begin = Clock::now();
  const EnergySpan energy(energy_, RunPhase::Validation);
  SampleBatch batch(config_.layout.micro_batch, data_->validation_options());
  Score all(config_.model.labels.size());
  record_.valid.clear();
  std::vector<std::pair<std::string, Score>> sets;
  for (const ValidationSet& set : data_->validation()) {
    const Score& one = sets.emplace_back(set.name(), score(set, batch)).second;
    record_.valid.push_back(valid_record(set.name(), one));
    all.add(one);
  }
  const StepRecord::Valid whole = valid_record("", all);
  record_.valid_loss = whole.loss;
  record_.valid_bits_per_byte = whole.bits_per_byte;
  record_.valid_accuracy = record_.valid_micro_f1 = whole.accuracy;
  record_.valid_macro_f1 = whole.macro_f1;
  if (preference())
    record_.valid_reward_accuracy = all.rewards.divided_by(loss_divisor(all.targets)).accuracy;
  last_valid_loss_ = record_.valid_loss;
  show_score("", all);
  if (preference())
    log_info("step {:>6}  held-out reward accuracy {:.4f}", state_.step,
             *record_.valid_reward_accuracy);
  if (sets.size() > 1)
    for (const auto& [name, one] : sets) show_score(" " + name, one);
  if (is_first() && config_.model.is_classifier()) report_labels(all.matrix);
  const double seconds = seconds_since(begin);
  stops_.wall_time().note_step(seconds);
  note_validation_time(seconds);
}

void Trainer::note_validation_time(double seconds) {
  if (!is_first()) return;
  log_->goodput().note_validation(seconds);
  note_activity();
}

void Trainer::note_activity() {
  if (is_first()) log_->events().note_activity();
}

}  // namespace kintsugi
