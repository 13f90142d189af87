#include "data/curation/decontamination.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "data/corpora/record_reader.h"

namespace kintsugi {
namespace {

constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15u;

// Hashes of sequences of words, each from those of the text before its begin and its end.
class WordHashes {
 public:
  explicit WordHashes(std::string_view text) : sums_{0} {
    for_each_word(text, [&](const std::string& word) {
      sums_.push_back(sums_.back() * kBase + hash64(word));
    });
  }
  std::size_t words() const { return sums_.size() - 1; }
  std::uint64_t of(std::size_t begin, std::size_t length, std::uint64_t power) const {
    return (sums_[begin + length] - sums_[begin] * power) ^ length;
  }
  static std::uint64_t power(std::size_t length) {
    std::uint64_t power = 1;
    for (std::size_t i = 0; i < length; ++i) power *= kBase;
    return power;
  }

 private:
  std::vector<std::uint64_t> sums_;
};

class DecontaminationStep : public DocumentStep {
 public:
  DecontaminationStep(const Decontamination& settings, std::vector<ReferenceSample> samples)
      : settings_(settings) {
    if (samples.empty()) user_error("decontaminate: no task and no text has a sample");
    std::map<std::string, std::map<std::uint64_t, std::set<std::size_t>>> of_tasks;
    for (ReferenceSample& sample : samples) add(std::move(sample), of_tasks);
    for (const auto& [task, sequences] : of_tasks) {
      for (const auto& [hash, owners] : sequences)
        if (std::ssize(owners) > settings_.most_common) places_.erase(hash);
    }
    for (const auto& [hash, places] : places_) filter_[hash >> (64 - kFilterBits)] = true;
    for (const std::size_t length : lengths_) powers_.push_back(WordHashes::power(length));
  }

  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    const WordHashes hashes(document.text);
    std::vector<Place> found;
    std::size_t i = 0;
    for (const std::size_t length : lengths_) {
      const std::uint64_t power = powers_[i++];
      for (std::size_t at = 0; at + length <= hashes.words(); ++at) {
        const std::uint64_t hash = hashes.of(at, length, power);
        if (!filter_[hash >> (64 - kFilterBits)]) continue;
        if (const auto places = places_.find(hash); places != places_.end())
          found.insert(found.end(), places->second.begin(), places->second.end());
      }
    }
    if (found.empty()) return {};
    return judge(std::move(found), context);
  }

  std::map<std::string, std::int64_t> facts() const override { return facts_; }

 private:
  static constexpr int kFilterBits = 24;
  // Where a sequence of words is in a sample; of another answer it is nowhere.
  struct Place {
    std::uint32_t sample = 0;
    std::int32_t position = -1;
    auto operator<=>(const Place&) const = default;
  };
  struct Sample {
    std::string name;  // "task: sample"
    std::size_t words = 0, sequence = 0;
  };
  using TaskSequences = std::map<std::string, std::map<std::uint64_t, std::set<std::size_t>>>;

  void add(ReferenceSample sample, TaskSequences& of_tasks) {
    ++facts_[fmt::format("{}: samples", sample.task)];
    const WordHashes main(sample.text);
    const std::size_t sequence =
        std::min<std::size_t>(static_cast<std::size_t>(settings_.words), main.words());
    if (std::ssize(sample.others) == 0 && std::cmp_less(main.words(), settings_.fewest_words)) {
      ++facts_[fmt::format("{}: samples out of reach (too short)", sample.task)];
      return;
    }
    const std::size_t number = samples_.size();
    auto& sequences = of_tasks[sample.task];
    bool reachable = false;
    const auto index = [&](const WordHashes& hashes, bool is_main) {
      if (std::cmp_less(hashes.words(), settings_.fewest_words)) return;
      const std::size_t length =
          std::min<std::size_t>(static_cast<std::size_t>(settings_.words), hashes.words());
      lengths_.insert(length);
      reachable = true;
      const std::uint64_t power = WordHashes::power(length);
      for (std::size_t at = 0; at + length <= hashes.words(); ++at) {
        const std::uint64_t hash = hashes.of(at, length, power);
        if (!sequences[hash].insert(number).second && !is_main) continue;
        places_[hash].push_back(
            {static_cast<std::uint32_t>(number), is_main ? static_cast<std::int32_t>(at) : -1});
      }
    };
    index(main, true);
    for (const std::string& other : sample.others) index(WordHashes(other), false);
    if (!reachable) {
      ++facts_[fmt::format("{}: samples out of reach (too short)", sample.task)];
      return;
    }
    samples_.push_back({.name = fmt::format("{}: {}", sample.task, sample.sample),
                        .words = main.words(),
                        .sequence = sequence});
  }

  std::string_view judge(std::vector<Place> found, StepContext& context) const {
    std::sort(found.begin(), found.end());
    bool is_contaminated = false;
    for (std::size_t begin = 0, end = 0; begin < found.size(); begin = end) {
      while (end < found.size() && found[end].sample == found[begin].sample) ++end;
      const Sample& sample = samples_[found[begin].sample];
      std::size_t covered = 0, until = 0;  // words of the sample
      for (std::size_t i = begin; i < end; ++i) {
        if (found[i].position < 0) continue;
        const auto at = static_cast<std::size_t>(found[i].position);
        const std::size_t first = std::max(at, until);
        until = std::max(until, at + sample.sequence);
        covered += until > first ? until - first : 0;
      }
      const double share =
          sample.words == 0 ? 0 : static_cast<double>(covered) / static_cast<double>(sample.words);
      if (share < settings_.share) continue;
      is_contaminated = true;
      context.leaks.emplace_back(sample.name, share);
    }
    if (!is_contaminated) return {};
    if (settings_.remove) return "decontaminate.sample";
    ++context.notes["documents with a sample"];
    return {};
  }

  Decontamination settings_;
  std::vector<Sample> samples_;
  std::unordered_map<std::uint64_t, std::vector<Place>> places_;
  std::vector<bool> filter_ = std::vector<bool>(std::size_t{1} << kFilterBits);
  std::set<std::size_t> lengths_;
  std::vector<std::uint64_t> powers_;  // of the lengths
  std::map<std::string, std::int64_t> facts_;
};

void add_documents(const std::string& file, std::vector<ReferenceSample>& samples) {
  RecordReader::Options options;
  options.segment = options.longest_segment = options.longest_line;
  RecordReader reader(file, {}, options);
  for (Record record; reader.next(record);) {
    const CuratedDocument document =
        reader.has_objects() ? CuratedDocument::of_object(record.bytes, "text", file, record.line)
                             : CuratedDocument::of_text(record.bytes, "text");
    samples.push_back({.task = file, .sample = std::to_string(record.line), .text = document.text});
  }
}

}  // namespace

std::unique_ptr<DocumentStep> make_step(const Decontamination& settings,
                                        const ReadReferences& read_tasks) {
  if (settings.fewest_words > settings.words)
    user_error("decontaminate: fewest_words ({}) is more than words ({})", settings.fewest_words,
               settings.words);
  std::vector<ReferenceSample> samples;
  if (!settings.tasks.empty()) samples = read_tasks(settings.tasks);
  for (const std::string& file : settings.texts) add_documents(file, samples);
  return std::make_unique<DecontaminationStep>(settings, std::move(samples));
}

}  // namespace kintsugi
