#include "train/checkpoint/model_card.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <cmath>
#include <filesystem>

#include "core/build_info.h"
#include "core/units.h"
#include "model/metrics.h"
#include "train/initial_weights.h"

namespace kintsugi {
namespace {

// Escapes a name from the user, so that it does not end a table cell or a line.
std::string cell(std::string_view text) {
  std::string safe;
  for (const char c : text) {
    if (c == '|' || c == '\\' || c == '`' || c == '<' || c == '[' || c == '*') safe += '\\';
    safe += static_cast<unsigned char>(c) < 0x20 || c == 0x7F ? ' ' : c;
  }
  return safe;
}

class Table {
 public:
  explicit Table(std::string& text) : text_(text) { text_ += "| | |\n|---|---|\n"; }
  template <class... Args>
  void row(const char* name, fmt::format_string<Args...> format, Args&&... args) {
    text_ += fmt::format("| {} | {} |\n", name, fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string& text_;
};

std::string positions_of(const ModelConfig& model) {
  const std::string count = fmt::format("{}, ", model.max_positions);
  switch (model.positions()) {
    case PositionKind::Learned:
      return count + "learned";
    case PositionKind::Alibi:
      return count + "ALiBi";
    case PositionKind::Retention:
      return count + "rotary, with a decay per head";
    case PositionKind::Rope:
      break;
  }
  const auto& scaling = model.rope_scaling;
  return count + fmt::format("rotary with base {}{}", model.rope_theta,
                             scaling ? fmt::format(", scaled by {} from {} on", scaling->factor,
                                                   scaling->original_max_positions)
                                     : "");
}

void add_architecture(std::string& text, const ModelConfig& model, std::int64_t parameters) {
  text += "\n## Architecture\n\n";
  Table table(text);
  table.row("family", "{}", to_string(model.family));
  table.row("parameters", "{}", parameters);
  table.row("layers", "{}", model.layers);
  table.row("hidden size", "{}", model.hidden_size);
  table.row("attention heads", "{} of size {}, {} for keys and values", model.heads, model.head_dim,
            model.kv_heads);
  if (model.latent)
    table.row("latents", "{} of keys and values, {} of queries, {} rotated", model.latent->rank,
              model.latent->query_rank, model.latent->rotary_dim);
  if (!model.experts || !model.experts->dense_layers.empty())
    table.row("MLP size", "{}", model.ffn_size);
  if (model.experts)
    table.row(
        "experts", "{} of {} per token, of size {}{}", model.experts->chosen, model.experts->count,
        model.experts->size,
        model.experts->shared > 0 ? fmt::format(", and {} shared", model.experts->shared) : "");
  table.row("vocabulary", "{}, head {}", model.vocab_size,
            model.tied ? "tied to the embedding" : "not tied");
  table.row("positions", "{}", positions_of(model));
  if (model.is_classifier()) table.row("labels", "{}", fmt::join(model.labels, ", "));
}

void add_data(std::string& text, const RunData& data, bool staged) {
  const Tokenizer& tokenizer = data.tokenizer();
  text += fmt::format("\n## Data\n\nTokenizer: {} (fingerprint {}).\n\n", tokenizer.description(),
                      tokenizer.fingerprint());
  const char* const of = staged ? "stage" : "run";
  text += fmt::format(
      "| source | fraction of the {} | tokens | epochs in the {} |\n|---|---|---|---|\n", of, of);
  for (const RunData::Source& source : data.sources())
    text += fmt::format("| {} | {:.2f} % | {} | {:.2f} |\n", cell(source.name), 100 * source.share,
                        source.train.tokens(), source.epochs);
}

std::string schedule_of(const RunConfig& config) {
  const OptimizerConfig& o = config.optimizer;
  const std::int64_t steps = config.total_steps();
  std::string text = fmt::format("{}, {:g}", to_string(o.schedule), o.lr);
  if (o.schedule != ScheduleKind::Constant) text += fmt::format(" to {:g}", o.min_lr);
  if (o.schedule == ScheduleKind::Wsd && o.decay_steps > 0)
    text += fmt::format(" over the last {} steps", o.decay_steps);
  return text + fmt::format(", {} of {} steps warm-up", o.warmup_steps, steps);
}

std::string optimizer_of(const OptimizerConfig& o) {
  std::string text =
      fmt::format("AdamW, betas {:g} and {:g}, eps {:g}", o.betas[0], o.betas[1], o.eps);
  if (o.kind == OptimizerKind::Muon) {
    const MuonConfig& muon = o.muon;
    text = fmt::format(
        "Muon for the hidden matrices (momentum {:g}{}, {} iterations in {}, {} learning rate{}); "
        "{} for the rest",
        muon.momentum, muon.nesterov ? " with look-ahead" : "", muon.steps,
        to_string(muon.precision),
        muon.adjust_lr == LrAdjustment::Original ? "original" : "RMS-matched",
        muon.lr > 0 ? fmt::format(" of {:g} at most", muon.lr) : "", text);
  }
  return text + fmt::format(", weight decay {:g}{}, clipping {:g}", o.weight_decay,
                            o.decay_embeddings ? "" : " except for embeddings", o.clip);
}

std::string ramp_of(const BatchRamp& ramp) {
  if (!ramp.on()) return "";
  return fmt::format(", from {} by {} over the first {} samples", ramp.start, ramp.increment,
                     ramp.samples);
}

void add_training(std::string& text, const RunConfig& config, const TrainerState& state,
                  const StepRecord& last, const std::string& layout) {
  const OptimizerConfig& o = config.optimizer;
  text += "\n## Training\n\n";
  Table table(text);
  table.row("step", "{} of {}", state.step,
            state.stage_start + config.total_steps() + config.steps_after());
  table.row("tokens", "{}", state.tokens);
  table.row("batch", "{} sequences of {} tokens{}", config.batch.global,
            config.data.sequence_length, ramp_of(config.batch.ramp));
  table.row("optimizer", "{}", optimizer_of(o));
  table.row("learning rate", "{}", schedule_of(config));
  if (config.train.z_loss > 0) table.row("z-loss", "{:g}", config.train.z_loss);
  if (o.skip_step.deviations > 0)
    table.row("skipped outliers", "{:g} standard deviations above the last {} steps",
              o.skip_step.deviations, o.skip_step.window);
  if (config.train.ema.on())
    table.row("average of the weights", "in `ema/`, decay {:g} every {}", config.train.ema.decay,
              format_number(config.train.ema.every, "step"));
  table.row("dropout", "{:g}", config.train.dropout);
  table.row("precision", "{}, moments {}", to_string(config.train.precision), to_string(o.moments));
  table.row("seed", "{}", config.run.seed);
  table.row("layout", "{}", layout);
  if (std::isfinite(last.loss)) table.row("loss", "{:.4f} nats per token in this step", last.loss);
  if (last.valid_loss) {
    const auto& bits = last.valid_bits_per_byte;
    table.row("validation loss", "{:.4f} nats per token{}", *last.valid_loss,
              bits ? fmt::format(", {:.4f} bits per byte", *bits) : "");
  }
}

// The names of a stage's sources; empty if its configuration cannot be read.
std::string sources_of(const PastStage& stage) {
  try {
    std::vector<std::string> names;
    for (const DataSource& source : parse_run_config(stage.config, "history").data.train)
      names.push_back(cell(source.name));
    return fmt::format("{}", fmt::join(names, ", "));
  } catch (const UserError&) {
    return "";
  }
}

// What was trained before this stage.
void add_history(std::string& text, const std::vector<PastStage>& history) {
  if (history.empty()) return;
  text += "\n## Earlier stages\n\n| run | stage | steps | tokens | data |\n|---|---|---|---|---|\n";
  for (const PastStage& one : history)
    text += fmt::format("| {} | {} | {}-{} | {} | {} |\n", cell(one.run), cell(one.name),
                        one.first_step, one.last_step, one.tokens, sources_of(one));
}

// The card of adapters, which PEFT opens.
std::string adapter_card(const RunConfig& config, const RunData& data, const TrainerState& state,
                         const StepRecord& last, const std::string& layout,
                         const std::string& name) {
  const LoraConfig& lora = config.model.lora;
  std::int64_t trained = 0, all = 0;
  const ParameterSet set(config.model);
  for (const Parameter& parameter : set.parameters()) {
    all += parameter.shape.elements();
    if (parameter.trained) trained += parameter.shape.elements();
  }
  std::string text = fmt::format(
      "---\nlibrary_name: peft\ntags:\n- kintsugi\n- lora\n- {0}\n---\n\n# {1}\n\n"
      "LoRA adapters (r {2}, alpha {3:g}) of a {0} model{4}, trained with Kintsugi {5} (commit "
      "{6}). `kintsugi model merge-adapter` makes a complete model of them.\n",
      to_string(config.model.family), cell(name), lora.r, lora.alpha,
      config.model_init.empty() ? "" : ", " + cell(initial_weights_name(config.model_init)),
      program_version(), program_commit());
  add_architecture(text, config.model, all);
  text += fmt::format("| trained parameters | {} |\n", trained);
  add_data(text, data, config.stage_count() > 1 || !state.history.empty());
  add_training(text, config, state, last, layout);
  add_history(text, state.history);
  return text;
}

}  // namespace

Tokenizer::File model_card(const RunConfig& config, const RunData& data, const TrainerState& state,
                           const StepRecord& last, const std::string& layout) {
  const ModelConfig& model = config.model;
  const std::int64_t parameters = count_parameters(ParameterSet(model)).total;
  std::string name = std::filesystem::path(config.run.dir).filename().string();
  if (name.empty()) name = to_string(model.family);
  if (model.lora.on()) return {"README.md", adapter_card(config, data, state, last, layout, name)};
  std::string text = fmt::format(
      "---\nlibrary_name: transformers\npipeline_tag: {}\ntags:\n- kintsugi\n- {}\n"
      "---\n\n# {}\n\nA {} model of {} parameters, trained from {} with Kintsugi {} (commit {}).\n",
      model.is_classifier() ? "text-classification" : "text-generation", to_string(model.family),
      cell(name), to_string(model.family), format_count(static_cast<double>(parameters)),
      config.model_init.empty() ? "scratch"
                                : "the weights of " + cell(initial_weights_name(config.model_init)),
      program_version(), program_commit());
  add_architecture(text, model, parameters);
  add_data(text, data, config.stage_count() > 1 || !state.history.empty());
  add_training(text, config, state, last, layout);
  add_history(text, state.history);
  return {"README.md", std::move(text)};
}

}  // namespace kintsugi
