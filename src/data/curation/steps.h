#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "core/yaml_reader.h"
#include "data/curation/document.h"
#include "data/curation/text_measures.h"

namespace kintsugi {

// What a thread keeps between documents, and what a step notes beside its verdict.
class StepContext {
 public:
  explicit StepContext(WordMode mode = WordMode::Tokens) : measures_(mode) {}

  std::map<std::string_view, std::int64_t> notes;  // such as masked addresses, by name
  // Samples of evaluation tasks in the document.
  struct Leak {
    std::string_view sample;
    std::uint64_t hash = 0;  // of its text
    double share = 0;        // that is in the document
  };
  std::vector<Leak> leaks;

  // The measures of the text of the document under way, which steps share.
  const TextMeasures& measures(const CuratedDocument& document) {
    if (std::exchange(is_stale_, false)) measures_.set_text(document.text);
    return measures_;
  }
  // A step has changed the text, or another document is under way.
  void text_changed() { is_stale_ = true; }

 private:
  TextMeasures measures_;
  bool is_stale_ = true;
};

// An evaluation task whose questions a step looks for.
struct SearchedTask {
  std::int64_t all = 0;                    // questions
  std::int64_t too_short = 0, common = 0;  // of these, out of reach; common: only template
  std::string hash = {};                   // of all questions
};

// A step of a recipe for documents. One object serves all threads.
class DocumentStep {
 public:
  virtual ~DocumentStep() = default;
  // Changes the document, or returns the rule by which it is removed, a literal such as
  // "urls.domain"; empty: it is kept.
  virtual std::string_view apply(CuratedDocument& document, StepContext& context) const = 0;
  // What the report says of the step itself.
  virtual std::map<std::string, std::int64_t> facts() const { return {}; }
  // The evaluation tasks whose questions it looks for.
  virtual std::map<std::string, SearchedTask> tasks() const { return {}; }
};

// How often a document is in the output: decided by a hash, not by its position, so that it does
// not depend on how inputs are divided.
struct Sample {
  double keep = 1;  // 0.1: every tenth document; 2.5: two or three copies
  std::vector<std::pair<std::string, double>> languages;  // instead of it
  std::int64_t seed = 0;

  std::int64_t copies(const CuratedDocument& document) const;
};
template <class V>
void describe(V& v, Sample& s) {
  v("keep", s.keep, between(0, 1000));
  v("languages", s.languages, between(0, 1000));
  v("seed", s.seed, at_least(0));
}

// Text as it should have been read.
struct Repair {
  bool normalize = true;  // to NFC
  bool controls = true;   // no control characters, one kind of line break
  bool mojibake = true;   // UTF-8 that was read as Windows-1252

  std::string_view edit(std::string& text) const;  // removes no document
};
template <class V>
void describe(V& v, Repair& r) {
  v("normalize", r.normalize);
  v("controls", r.controls);
  v("mojibake", r.mojibake);
}

// Documents from listed domains and addresses.
struct UrlFilter {
  std::string key = "url";         // of the address in a record
  std::vector<std::string> block;  // files with a domain or an address per line
};
template <class V>
void describe(V& v, UrlFilter& f) {
  v("key", f.key);
  v("block", f.block);
}
std::unique_ptr<DocumentStep> make_step(const UrlFilter& settings);

// Documents with listed words.
struct WordFilter {
  std::vector<std::string> lists;  // files with a word or a phrase of up to five words per line
  std::int64_t most = 0;           // of them that a document may have
  double most_fraction = 1;        // of its words that may belong to them
};
template <class V>
void describe(V& v, WordFilter& f) {
  v("lists", f.lists);
  v("most", f.most, at_least(0));
  v("most_fraction", f.most_fraction, between(0, 1));
}
std::unique_ptr<DocumentStep> make_step(const WordFilter& settings);

// The lines of files that are neither empty nor comments.
std::vector<std::string> list_entries(const std::vector<std::string>& files);

// The host of an address in lower case without "www."; empty if it has none.
std::string host_of(std::string_view url);

}  // namespace kintsugi
