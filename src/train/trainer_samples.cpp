// Texts that the model generates as it is trained: train.samples.
#include <algorithm>

#include "core/log.h"
#include "core/units.h"
#include "serve/text_output.h"
#include "train/trainer.h"

namespace kintsugi {
namespace {

constexpr std::size_t kLongestShown = 120;  // bytes of a sample in the log; the file has all of it

// On one line; line breaks are shown as they are written in a configuration.
std::string shown_sample(const TextSample& sample) {
  std::string text;
  for (const char c : sample.prompt + sample.text)
    if (c == '\n')
      text += "\\n";
    else if (c == '\r')
      text += "\\r";
    else
      text += c;
  if (text.size() <= kLongestShown) return text;
  text.resize(kLongestShown);
  text.resize(complete_characters(text));
  return text + " …";
}

}  // namespace

bool Trainer::samples_are_due() const {
  return samples_ && !stops_.decided() && (save_is_due() || finished());
}

void Trainer::generate_samples() {
  const auto begin = Clock::now();
  const EnergySpan energy(energy_, RunPhase::Validation);
  show_live_line("generating samples …");
  const auto interrupts = [this] {
    note_activity();
    double asks = stops_.ask();
    sum_over_ranks(std::span(&asks, 1));
    stops_.decide(asks);
    return stops_.decided();
  };
  std::optional<std::vector<TokenIds>> found;
  std::string problem = "was interrupted";
  try {
    found = continue_greedily(*engine_, samples_->ids(),
                              {.tokens = config_.train.samples.tokens,
                               .end_token = config_.model.eos_token,
                               .interrupts = interrupts});
  } catch (const LogitsNotFinite& error) {
    problem = error.what();
  }
  communication_ = communication_times();  // not part of the next step
  const double seconds = seconds_since(begin);
  note_validation_time(seconds);
  if (!is_first()) return;
  if (!found) return log_warning("step {}: no samples: {}", state_.step, problem);
  std::vector<TextSample> texts;
  for (std::size_t i = 0; i < found->size(); ++i)
    texts.push_back({config_.train.samples.prompts[i], samples_->text(i, (*found)[i])});
  log_->files().add_samples(state_.step, startup_.now_s(), texts);
  log_info("step {:>6}  {} in {}, the first: {}", state_.step,
           format_number(std::ssize(texts), "sample"), format_duration(seconds),
           shown_sample(texts.front()));
}

}  // namespace kintsugi
