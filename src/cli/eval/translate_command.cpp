#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/eval/commands.h"
#include "cli/eval/loaded_model.h"
#include "cli/options.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/units.h"
#include "eval/bleu.h"
#include "eval/chrf.h"
#include "eval/run/translation.h"
#include "model/config.h"

namespace kintsugi {
namespace {

struct TranslateArguments {
  std::string checkpoint, sources, references, output, prompt = "{src}={trg}", end = "END";
  std::vector<std::string> examples;
  std::int64_t shots = 8, max_tokens = 256;
  bool json = false, overwrite = false;
  EngineArguments engine;

  OutputRule output_rule() const {
    OutputRule rule{overwrite, {examples.begin(), examples.end()}};
    for (const std::string& input : {sources, references, checkpoint, engine.adapter})
      rule.inputs.push_back(input);
    return rule;
  }
};

Segments lines_of(const std::string& path) {
  if (path == "-") user_error("- (standard input) cannot be used here: give a file");
  return read_segments(path);
}

// "\n" in an option is a line end.
std::string with_line_ends(std::string text) {
  for (std::size_t at = 0; (at = text.find("\\n", at)) != std::string::npos; ++at)
    text.replace(at, 2, "\n");
  return text;
}

TranslationPrompt prompt_of(const TranslateArguments& a) {
  TranslationPrompt prompt{with_line_ends(a.prompt), with_line_ends(a.end), {}, {}};
  if (a.shots > 0) {
    if (a.examples.size() != 2)
      user_error(
          "--examples needs two files, the sources and their translations; or give --shots 0");
    prompt.sources = lines_of(a.examples[0]);
    prompt.targets = lines_of(a.examples[1]);
    if (prompt.sources.size() != prompt.targets.size())
      user_error("{} has {} lines, but {} has {}: they must correspond line by line", a.examples[0],
                 prompt.sources.size(), a.examples[1], prompt.targets.size());
    const auto shots = static_cast<std::size_t>(a.shots);
    if (prompt.sources.size() < shots)
      user_error("{} has {} lines, but {} examples are needed: give --shots", a.examples[0],
                 prompt.sources.size(), shots);
    prompt.sources.resize(shots);
    prompt.targets.resize(shots);
  }
  prompt.check();
  return prompt;
}

void print_scores(const TranslateArguments& a, const Segments& texts,
                  const References& references) {
  const BleuOptions bleu_options;
  const ChrfOptions chrf_options;
  const Bleu bleu = corpus_bleu(texts, references, bleu_options);
  const double chrf = corpus_chrf(texts, references, chrf_options);
  const std::string bleu_name = bleu_signature(references, bleu_options),
                    chrf_name = chrf_signature(references, chrf_options);
  if (!a.json) {
    fmt::print("BLEU|{} = {}\n{}|{} = {:.2f}\n", bleu_name, bleu.text(), chrf_options.name(),
               chrf_name, chrf);
    return;
  }
  const nlohmann::ordered_json json = {
      {"checkpoint", a.checkpoint},
      {"shots", a.shots},
      {"segments", texts.size()},
      {"bleu", {{"score", bleu.score}, {"signature", bleu_name}, {"text", bleu.text()}}},
      {"chrf", {{"name", chrf_options.name()}, {"score", chrf}, {"signature", chrf_name}}}};
  fmt::print("{}\n", json.dump(2));
}

void run_translate(TranslateArguments a) {
  Job job;
  job.run([&] {
    TranslationPrompt prompt;
    ModelFiles files;
    Segments sources;
    std::optional<References> references;
    job.together([&] {
      files = find_model(a.checkpoint, a.engine.adapter);
      a.checkpoint = files.name().string();
      if (!a.output.empty() && job.world().rank() == 0)
        check_output_file("--output", a.output, a.output_rule());
      prompt = prompt_of(a);
      sources = lines_of(a.sources);
      Segments set = lines_of(a.references);
      if (set.size() != sources.size())
        user_error("{} has {} lines, but {} has {}: they must correspond line by line",
                   a.references, set.size(), a.sources, sources.size());
      references.emplace(std::vector<Segments>{std::move(set)}, sources.size());
    });
    with_model(job, a.engine, files, [&](ScoringModel& model, Tokenizer&) {
      std::optional<Progress> progress;
      if (job.world().rank() == 0) progress.emplace("translate", std::ssize(sources), "segments");
      const Segments texts = translate(model, prompt, sources, a.max_tokens, [&](std::size_t more) {
        if (progress) progress->add(static_cast<std::int64_t>(more));
      });
      if (job.world().rank() != 0) return;
      progress.reset();
      if (!a.output.empty()) {
        std::string content;
        for (const std::string& text : texts) content += text + "\n";
        write_output_file("--output", a.output, a.output_rule(), content);
      }
      print_scores(a, texts, *references);
    });
  });
}

}  // namespace

void add_eval_translate(CLI::App& eval) {
  const auto a = std::make_shared<TranslateArguments>();
  CLI::App* command = eval.add_subcommand(
      "translate", "Translate with a model from examples in the prompt, and score it");
  const AddOption add(*command);
  add("--checkpoint", a->checkpoint, "A checkpoint, a run or a model directory", kRequired);
  add("--sources", a->sources, "The texts to translate, one per line", kRequired);
  add("--references", a->references, "Their translations, one per line", kRequired);
  add("--examples", a->examples,
      "Two files, texts and their translations; the first --shots lines are the examples")
      ->expected(2);
  add("--shots", a->shots, "Examples in the prompt", whole_number(between(0, 1000)), kShowDefault);
  add("--prompt", a->prompt, "The form of an example; \\n is a line end", kShowDefault);
  add("--stop", a->end, "What follows a translation, on a line of its own", kShowDefault);
  add("--max-tokens", a->max_tokens, "Tokens of a translation, at most",
      whole_number(between(1, 1 << 24)), kShowDefault);
  add("--output", a->output, "Write the translations to this file, one per line");
  add_overwrite_option(*command, a->overwrite);
  add("--json", a->json, "Print JSON");
  add_eval_engine_options(*command, a->engine);
  command->footer(
      "Prints BLEU and chrF with their signatures. The defaults are those of Poro and Viking: 8 "
      "examples.\n\nExample:\n"
      "  kintsugi eval translate --checkpoint DIR --sources devtest.en --references devtest.fi \\\n"
      "    --examples dev.en dev.fi --output devtest.fi.out");
  command->callback([a] { run_translate(*a); });
}

}  // namespace kintsugi
