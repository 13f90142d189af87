#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "core/yaml_reader.h"
#include "data/curation/steps.h"

namespace kintsugi {

// A question of an evaluation task, which must not be in a training corpus.
struct ReferenceSample {
  std::string task, sample;
  std::string text;                      // the question with its right answer
  std::vector<std::string> others = {};  // with the other answers

  std::uint64_t hash() const;  // of all texts: the same question, wherever it is in a file
};
// Reads the samples of tasks, by what a recipe calls them.
using ReadReferences =
    std::function<std::vector<ReferenceSample>(const std::vector<std::string>& tasks)>;
// Of all samples of a task, in any order.
std::string hash_of_samples(std::vector<std::uint64_t> hashes);

// What a share of a sample is of.
enum class ShareOf : std::uint8_t {
  Words,     // the words of the sample that sequences in the document cover
  Sequences  // the sequences of the sample
};
template <>
inline constexpr EnumWords<2> kEnumWords<ShareOf> = {"words", "sequences"};

// Documents that have words of evaluation tasks in the same order. Words are letters, marks and
// digits in lower case: spaces and punctuation make no difference.
struct Decontamination {
  std::vector<std::string> tasks;  // as of `kintsugi eval --tasks`
  std::vector<std::string> texts;  // corpora, each of whose documents is a sample
  std::int64_t words = 13;         // that must be equal in sequence
  std::int64_t fewest_words = 8;   // of a sample; shorter ones are out of reach
  std::int64_t most_common = 10;   // what more samples of a task have belongs to its template
  double share = 0;                // of a sample that must be in one document; 0: `words` of it
  ShareOf share_of = ShareOf::Words;
  bool remove = true;  // false: documents are only counted
};
template <class V>
void describe(V& v, Decontamination& d) {
  v("tasks", d.tasks);
  v("texts", d.texts);
  v("words", d.words, between(3, 100));
  v("fewest_words", d.fewest_words, between(3, 100));
  v("most_common", d.most_common, at_least(1));
  v("share", d.share, between(0, 1));
  v("share_of", d.share_of);
  v("remove", d.remove);
}
// The rule by which documents are removed.
inline constexpr std::string_view kContaminatedRule = "decontaminate.sample";
// UserError if there are no samples.
std::unique_ptr<DocumentStep> make_step(const Decontamination& settings,
                                        const ReadReferences& read_tasks);

}  // namespace kintsugi
