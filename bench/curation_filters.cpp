// How quickly the quality filters judge documents, on one core, and what they say of each:
// bench/curation_filters.py compares both with the same rules in Python.
//   build/bench_curation_filters --input documents.jsonl --verdicts verdicts.txt
// With --questions (JSONL), how quickly documents are searched for them; with --numbers (JSONL),
// how quickly personal data is found in them.
#include <fmt/core.h>
#include <time.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <functional>
#include <vector>

#include "core/error.h"
#include "data/corpora/record_reader.h"
#include "data/curation/decontamination.h"
#include "data/curation/personal_data.h"
#include "data/curation/text_filters.h"
#include "data/tokenizers/normalizer.h"

using namespace kintsugi;

namespace {

std::vector<std::string> read_documents(const std::string& path) {
  std::vector<std::string> texts;
  RecordReader reader(path);
  for (Record record; reader.next(record);) {
    Document document;
    parse_document(record.bytes, {}, path, record.line, document);
    texts.push_back(std::move(document.text));
  }
  return texts;
}

// Of this thread alone: other programs on the machine do not count.
double cpu_clock() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) + 1e-9 * static_cast<double>(now.tv_nsec);
}

// Thresholds that no document breaks before the last rule, so that every rule is computed.
struct Filters {
  GopherQuality quality;
  GopherRepetition repetition;
  FineWebQuality fineweb;
  C4Lines c4;

  static Filters computing_all() {
    Filters filters;
    GopherQuality& q = filters.quality;
    q.min_doc_words = 0;
    q.max_doc_words = std::int64_t{1} << 60;
    q.min_avg_word_length = q.max_non_alpha_words_ratio = 0;
    q.max_avg_word_length = q.max_symbol_word_ratio = q.max_bullet_lines_ratio =
        q.max_ellipsis_lines_ratio = 1e9;
    q.min_stop_words = 1000;
    GopherRepetition& r = filters.repetition;
    r.dup_line_frac = r.dup_para_frac = r.dup_line_char_frac = r.dup_para_char_frac = 1e9;
    r.top_n_grams.fill(1e9);
    r.dup_n_grams.fill(1e9);
    FineWebQuality& f = filters.fineweb;
    f.line_punct_thr = -1;
    f.short_line_thr = f.char_duplicates_ratio = f.new_line_ratio = 1e9;
    return filters;
  }
};

class Bench {
 public:
  Bench(std::vector<std::string> texts, double seconds)
      : texts_(std::move(texts)), seconds_(seconds) {
    for (const std::string& text : texts_) bytes_ += text.size();
  }

  template <class F>
  void measure(const char* name, F&& judge) const {
    const double begin = cpu_clock();
    double elapsed = 0;
    std::size_t passes = 0, removed = 0;
    for (; elapsed < seconds_; ++passes) {
      for (const std::string& text : texts_) removed += !judge(text).empty();
      elapsed = cpu_clock() - begin;
    }
    const double rate = static_cast<double>(bytes_ * passes) / elapsed / 1e6;
    fmt::print("{} {:.2f} MB/s, {} removed\n", name, rate, removed / passes);
  }

  void run(WordMode mode) const {
    const Filters filters = Filters::computing_all();
    TextMeasures measures(mode);
    const auto alone = [&](const auto& filter) {
      return [&](const std::string& text) {
        measures.set_text(text);
        return filter.removed_by(measures);
      };
    };
    measure("gopher_quality", alone(filters.quality));
    measure("gopher_repetition", alone(filters.repetition));
    measure("fineweb_quality", alone(filters.fineweb));
    measure("c4", [&](const std::string& text) {
      std::string copy = text;
      return filters.c4.edit(copy);
    });
    measure("nfc+gopher_quality", [&](const std::string& text) {
      const std::string normal = unicode_normalize(text, true, true);
      measures.set_text(normal);
      return filters.quality.removed_by(measures);
    });
    measure("all", [&](const std::string& text) {
      measures.set_text(text);
      filters.repetition.removed_by(measures);
      filters.fineweb.removed_by(measures);
      return filters.quality.removed_by(measures);
    });
  }

  void find_personal_data(const char* name) const {
    const PersonalData settings;
    std::size_t spans = 0;
    measure(name, [&](const std::string& text) {
      spans += settings.find(text).size();
      return std::string_view();
    });
  }

  // A line for each document: 1 if it has a question.
  void find_questions(const std::string& questions, const std::string& verdicts) const {
    const auto read = [&](const std::vector<std::string>&) {
      std::vector<ReferenceSample> samples;
      for (std::string& text : read_documents(questions))
        samples.push_back({"t", std::to_string(samples.size()), std::move(text)});
      return samples;
    };
    const double begin = cpu_clock();
    const auto step = make_step(Decontamination{.tasks = {"t"}, .texts = {}}, read);
    fmt::print("index {:.2f} s\n", cpu_clock() - begin);
    std::vector<CuratedDocument> documents;
    for (const std::string& text : texts_) {
      documents.emplace_back();
      documents.back().text = text;
    }
    StepContext context;
    std::size_t next = 0;
    const auto judge = [&](const std::string&) {
      context.leaks.clear();
      const auto rule = step->apply(documents[next], context);
      next = (next + 1) % documents.size();
      return rule;
    };
    measure("decontaminate", judge);
    std::ofstream file(verdicts);
    for (const std::string& text : texts_) file << !judge(text).empty() << '\n';
  }

  // A line for each document: what each filter removes it for, with the published thresholds.
  void write_verdicts(const std::string& path, WordMode mode) const {
    const Filters filters;
    TextMeasures measures(mode);
    std::ofstream file(path);
    for (const std::string& text : texts_) {
      measures.set_text(text);
      std::string left = text;
      file << filters.quality.removed_by(measures) << ' ' << filters.repetition.removed_by(measures)
           << ' ' << filters.fineweb.removed_by(measures) << ' ' << filters.c4.edit(left) << ' '
           << character_count(left) << '\n';
    }
  }

 private:
  std::vector<std::string> texts_;
  std::size_t bytes_ = 0;
  double seconds_;
};

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("How quickly the quality filters judge documents");
  std::string input, verdicts, questions, numbers, mode = "tokens";
  double seconds = 2;
  app.add_option("--input", input, "JSONL with \"text\"")->required();
  app.add_option("--verdicts", verdicts, "The file for what the filters say of each document");
  app.add_option("--questions", questions, "JSONL of questions that documents are searched for");
  app.add_option("--numbers", numbers, "JSONL of texts full of numbers");
  app.add_option("--words", mode)->check(CLI::IsMember({"tokens", "whitespace"}));
  app.add_option("--seconds", seconds, "Each; whole passes")->capture_default_str();
  CLI11_PARSE(app, argc, argv);
  try {
    const WordMode words = mode == "tokens" ? WordMode::Tokens : WordMode::Whitespace;
    const Bench bench(read_documents(input), seconds);
    bench.run(words);
    bench.find_personal_data("personal_data");
    if (!numbers.empty()) Bench(read_documents(numbers), seconds).find_personal_data("numbers");
    if (!questions.empty()) bench.find_questions(questions, verdicts + ".questions");
    if (!verdicts.empty()) bench.write_verdicts(verdicts, words);
  } catch (const std::exception& error) {
    fmt::print(stderr, "error: {}\n", error.what());
    return 1;
  }
}
