#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "cli/eval/commands.h"
#include "cli/options.h"
#include "core/error.h"
#include "eval/bleu.h"
#include "eval/chrf.h"

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

Translation read_translation(const TranslationFiles& files) {
  const auto standard_inputs = std::count(files.references.begin(), files.references.end(), "-") +
                               (files.hypotheses == "-" ? 1 : 0);
  if (standard_inputs > 1)
    user_error("standard input (-) can be read once, not {} times", standard_inputs);
  Segments hypotheses = read_segments(files.hypotheses);
  std::vector<Segments> sets;
  for (const std::string& path : files.references) {
    sets.push_back(read_segments(path));
    if (sets.back().size() != hypotheses.size())
      user_error("{} has {} lines, but {} has {}: they must correspond line by line", path,
                 sets.back().size(), files.hypotheses, hypotheses.size());
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
    if (count == std::floor(count))
      list.push_back(static_cast<std::int64_t>(count));
    else
      list.push_back(count);
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
  double smooth_value = 0;
  bool has_smooth_value = false, effective_order = false;
  int max_order = 4;
};

BleuOptions bleu_options(const BleuArguments& a) {
  BleuOptions options{.tokenizer = parse_bleu_tokenizer(a.tokenize),
                      .lowercase = a.files.lowercase,
                      .smoothing = parse_bleu_smoothing(a.smooth),
                      .smooth_value = {},
                      .effective_order = a.effective_order || a.files.sentences,
                      .max_order = a.max_order};
  if (a.has_smooth_value) options.smooth_value = a.smooth_value;
  options.check();
  return options;
}

void run_bleu(const BleuArguments& a) {
  const BleuOptions options = bleu_options(a);
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

}  // namespace

void add_eval_bleu(CLI::App& eval) {
  const auto a = std::make_shared<BleuArguments>();
  CLI::App* command =
      eval.add_subcommand("bleu", "Score translations with BLEU, as sacreBLEU does");
  const AddOption add(*command);
  add_translation_options(*command, a->files);
  add("--tokenize", a->tokenize, "13a, intl, char or none", kShowDefault);
  add("--smooth", a->smooth, "Smoothing of zero precisions: exp, floor, add-k, none", kShowDefault);
  CLI::Option* value =
      add("--smooth-value", a->smooth_value, "For floor (default 0.1) and add-k (default 1)",
          real_number(at_least(0)));
  add("--effective-order", a->effective_order,
      "Leave out orders without n-grams (always, with --sentences)");
  add("--max-order", a->max_order, "The longest n-grams", whole_number(between(1, 100)),
      kShowDefault);
  command->footer(
      "Files may be compressed with gzip or zstd. The signature has the version of sacreBLEU whose "
      "rules\nare followed.\n\nExamples:\n"
      "  kintsugi eval bleu --hypotheses output.de --references newstest2017.de\n"
      "  kintsugi eval bleu --hypotheses - --references a.fi b.fi --lowercase --json < output.fi");
  command->callback([a, value] {
    a->has_smooth_value = value->count() > 0;
    run_bleu(*a);
  });
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

}  // namespace kintsugi
