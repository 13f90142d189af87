#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "cli/commands.h"
#include "cli/engine.h"
#include "cli/options.h"
#include "core/error.h"
#include "core/log.h"
#include "core/output_file.h"
#include "core/progress.h"
#include "core/units.h"
#include "eval/run/translation.h"
#include "eval/translation_scores.h"
#include "model/config.h"

namespace kintsugi {
namespace {

using ScoreJson = nlohmann::ordered_json;

// The files that bleu and chrf compare, and how the scores are printed.
struct TranslationFiles {
  std::string hypotheses;
  std::vector<std::string> references;
  bool lowercase = false, sentences = false, json = false;
};

struct Translation {
  Segments hypotheses;
  References references;
};

void check_lines(const std::string& one, const Segments& lines, const std::string& other,
                 const Segments& other_lines) {
  if (lines.size() != other_lines.size())
    user_error("{} has {} lines, but {} has {}: they must correspond line by line", one,
               lines.size(), other, other_lines.size());
}

Translation read_translation(const TranslationFiles& files) {
  const auto standard_inputs = std::count(files.references.begin(), files.references.end(), "-") +
                               (files.hypotheses == "-" ? 1 : 0);
  if (standard_inputs > 1)
    user_error("standard input (-) can be read once, not {} times", standard_inputs);
  Segments hypotheses = read_segments(files.hypotheses);
  std::vector<Segments> sets;
  for (const std::string& path : files.references) {
    sets.push_back(read_segments(path));
    check_lines(path, sets.back(), files.hypotheses, hypotheses);
  }
  const std::size_t count = hypotheses.size();
  return {std::move(hypotheses), References(std::move(sets), count)};
}

void add_translation_options(CLI::App& command, TranslationFiles& files) {
  const AddOption add(command);
  add("--hypotheses", files.hypotheses,
      "The translations to score, one per line; - is standard input", kRequired);
  add("--references", files.references,
      "One or several files of reference translations, one per line; an empty line means that this "
      "file has no reference for the segment",
      kRequired);
  add("--lowercase", files.lowercase, "Ignore upper and lower case");
  add("--sentences", files.sentences, "Score each line instead of the whole text");
  add("--json", files.json, "Print JSON");
}

// Counts are whole numbers, except with add-k.
ScoreJson count_json(const std::vector<double>& counts) {
  ScoreJson list = ScoreJson::array();
  for (const double count : counts)
    list.push_back(count == std::floor(count) ? ScoreJson(static_cast<std::int64_t>(count))
                                              : ScoreJson(count));
  return list;
}

ScoreJson bleu_json(const Bleu& bleu) {
  return {{"score", bleu.score},
          {"precisions", bleu.precisions},
          {"counts", count_json(bleu.statistics.counts)},
          {"totals", count_json(bleu.statistics.totals)},
          {"bp", bleu.brevity_penalty},
          {"ratio", bleu.length_ratio()},
          {"sys_len", bleu.statistics.hypothesis_length},
          {"ref_len", bleu.statistics.reference_length}};
}

struct BleuArguments {
  TranslationFiles files;
  std::string tokenize = "13a", smooth = "exp";
  BleuOptions options;
};

void run_bleu(const BleuArguments& a) {
  BleuOptions options = a.options;
  options.tokenizer = parse_bleu_tokenizer(a.tokenize);
  options.smoothing = parse_bleu_smoothing(a.smooth);
  options.lowercase = a.files.lowercase;
  options.effective_order |= a.files.sentences;
  options.check();
  const auto [hypotheses, references] = read_translation(a.files);
  const std::string signature = bleu_signature(references, options);
  ScoreJson json = {{"name", "BLEU"}, {"signature", signature}};
  std::string text;
  if (a.files.sentences) {
    json["sentences"] = ScoreJson::array();
    for (const Bleu& bleu : sentence_bleu(hypotheses, references, options)) {
      json["sentences"].push_back(bleu_json(bleu));
      text += fmt::format("BLEU|{} = {}\n", signature, bleu.text());
    }
  } else {
    const Bleu bleu = corpus_bleu(hypotheses, references, options);
    json.update(bleu_json(bleu));
    json["text"] = bleu.text();
    text = fmt::format("BLEU|{} = {}\n", signature, bleu.text());
  }
  fmt::print("{}", a.files.json ? json.dump(2) + "\n" : text);
}

struct ChrfArguments {
  TranslationFiles files;
  ChrfOptions options;
};

void run_chrf(const ChrfArguments& a) {
  ChrfOptions options = a.options;
  options.lowercase = a.files.lowercase;
  options.check();
  const auto [hypotheses, references] = read_translation(a.files);
  const std::string signature = chrf_signature(references, options), name = options.name();
  ScoreJson json = {{"name", name}, {"signature", signature}};
  std::string text;
  const auto add_line = [&](double score) {
    text += fmt::format("{}|{} = {:.2f}\n", name, signature, score);
  };
  if (a.files.sentences) {
    json["sentences"] = ScoreJson::array();
    for (const double score : sentence_chrf(hypotheses, references, options)) {
      json["sentences"].push_back({{"score", score}});
      add_line(score);
    }
  } else {
    const double score = corpus_chrf(hypotheses, references, options);
    json["score"] = score;
    add_line(score);
  }
  json["char_order"] = options.char_order;
  json["word_order"] = options.word_order;
  json["beta"] = options.beta;
  fmt::print("{}", a.files.json ? json.dump(2) + "\n" : text);
}

// ---- translate

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
    check_lines(a.examples[0], prompt.sources, a.examples[1], prompt.targets);
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
      check_lines(a.references, set, a.sources, sources);
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

void add_eval_bleu(CLI::App& eval) {
  const auto a = std::make_shared<BleuArguments>();
  CLI::App* command =
      eval.add_subcommand("bleu", "Score translations with BLEU, as sacreBLEU does");
  const AddOption add(*command);
  add_translation_options(*command, a->files);
  add("--tokenize", a->tokenize, "13a, intl, char or none", kShowDefault);
  add("--smooth", a->smooth, "Smoothing of zero precisions: exp, floor, add-k, none", kShowDefault);
  add("--smooth-value", a->options.smooth_value, "For floor (default 0.1) and add-k (default 1)",
      real_number(at_least(0)));
  add("--effective-order", a->options.effective_order,
      "Leave out orders without n-grams (always, with --sentences)");
  add("--max-order", a->options.max_order, "The longest n-grams", whole_number(between(1, 100)),
      kShowDefault);
  command->footer(
      "Files may be compressed with gzip or zstd. The signature has the version of sacreBLEU whose "
      "rules\nare followed.\n\nExamples:\n"
      "  kintsugi eval bleu --hypotheses output.de --references newstest2017.de\n"
      "  kintsugi eval bleu --hypotheses - --references a.fi b.fi --lowercase --json < output.fi");
  command->callback([a] { run_bleu(*a); });
}

void add_eval_chrf(CLI::App& eval) {
  const auto a = std::make_shared<ChrfArguments>();
  CLI::App* command =
      eval.add_subcommand("chrf", "Score translations with chrF or chrF++, as sacreBLEU does");
  const AddOption add(*command);
  add_translation_options(*command, a->files);
  add("--char-order", a->options.char_order, "The longest character n-grams",
      whole_number(between(1, 100)), kShowDefault);
  add("--word-order", a->options.word_order, "The longest word n-grams; chrF++: 2",
      whole_number(between(0, 100)), kShowDefault);
  add("--beta", a->options.beta, "The weight of recall", whole_number(between(1, 100)),
      kShowDefault);
  add("--whitespace", a->options.whitespace, "Count white space as characters of n-grams");
  add("--eps-smoothing", a->options.eps_smoothing,
      "Count orders without n-grams as almost 0, as chrF++.py and NLTK do");
  command->footer(
      "Files may be compressed with gzip or zstd.\n\nExamples:\n"
      "  kintsugi eval chrf --hypotheses output.de --references newstest2017.de\n"
      "  kintsugi eval chrf --hypotheses output.de --references newstest2017.de --word-order 2");
  command->callback([a] { run_chrf(*a); });
}

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
