#include "data/curation/decontamination.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <map>
#include <set>
#include <span>
#include <tuple>
#include <utility>

#include "core/error.h"
#include "core/hash.h"
#include "data/corpora/record_reader.h"
#include "data/curation/folded_words.h"

namespace kintsugi {
namespace {

// The hash of a sequence of words: from those of the text before its begin and its end.
constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15u;

std::uint64_t power_of_base(std::size_t length) {
  std::uint64_t power = 1;
  for (std::size_t i = 0; i < length; ++i) power *= kBase;
  return power;
}

std::uint64_t sequence_hash(std::uint64_t begin, std::uint64_t end, std::uint64_t power,
                            std::size_t length) {
  return (end - begin * power) ^ length;
}

std::vector<std::uint64_t> hashes_before_words(std::string_view text) {
  std::vector<std::uint64_t> sums = {0};
  for_each_word_hash(text, [&](std::uint64_t word) { sums.push_back(sums.back() * kBase + word); });
  return sums;
}

// Where a sequence of words is in a sample; of another answer it is nowhere.
struct SamplePlace {
  std::uint32_t sample = 0;
  std::int32_t position = -1;
  auto operator<=>(const SamplePlace&) const = default;
};
struct HashedPlace {
  std::uint64_t hash = 0;
  SamplePlace place;
  auto operator<=>(const HashedPlace&) const = default;
};

// The places of sequences, by hash. Most lookups end at a filter of about 16 bits per sequence,
// which fits a cache; a sequence needs about 60 bytes in all.
class SequenceIndex {
 public:
  SequenceIndex() = default;
  explicit SequenceIndex(std::span<const HashedPlace> sorted) {
    places_.reserve(sorted.size());
    std::size_t groups = 0;
    for (std::size_t i = 0; i < sorted.size(); ++i)
      groups += i == 0 || sorted[i].hash != sorted[i - 1].hash;
    filter_.resize(std::bit_ceil(groups / 4 + 1024));
    entries_.resize(std::bit_ceil(2 * groups + 1));
    for (std::size_t begin = 0, end = 0; begin < sorted.size(); begin = end) {
      while (end < sorted.size() && sorted[end].hash == sorted[begin].hash)
        places_.push_back(sorted[end++].place);
      add({sorted[begin].hash, static_cast<std::uint32_t>(begin), static_cast<std::uint32_t>(end)});
    }
  }

  bool may_have(std::uint64_t hash) const {
    const std::uint64_t bits = bits_of(hash);
    return (filter_[word_of(hash)] & bits) == bits;
  }
  std::span<const SamplePlace> find(std::uint64_t hash) const {
    const Entry& entry = entries_[slot_of(hash)];
    return {places_.data() + entry.begin, entry.end - entry.begin};
  }

 private:
  struct Entry {
    std::uint64_t hash = 0;
    std::uint32_t begin = 0, end = 0;  // equal: free
  };

  static std::uint64_t mixed(std::uint64_t hash) { return hash * 0xD6E8FEB86659FD93; }
  std::size_t word_of(std::uint64_t hash) const { return mixed(hash) >> 20 & (filter_.size() - 1); }
  static std::uint64_t bits_of(std::uint64_t hash) {
    return std::uint64_t{1} << (mixed(hash) >> 58) | std::uint64_t{1} << (mixed(hash) >> 52 & 63);
  }
  // Of the hash, or a free one.
  std::size_t slot_of(std::uint64_t hash) const {
    const std::size_t mask = entries_.size() - 1;
    for (std::size_t at = mixed(hash) >> 16 & mask;; at = (at + 1) & mask)
      if (entries_[at].begin == entries_[at].end || entries_[at].hash == hash) return at;
  }
  void add(const Entry& entry) {
    filter_[word_of(entry.hash)] |= bits_of(entry.hash);
    entries_[slot_of(entry.hash)] = entry;
  }

  std::vector<std::uint64_t> filter_;
  std::vector<Entry> entries_;
  std::vector<SamplePlace> places_;
};

class DecontaminationStep : public DocumentStep {
 public:
  DecontaminationStep(const Decontamination& settings, std::vector<ReferenceSample> samples)
      : settings_(settings) {
    if (samples.empty()) user_error("decontaminate: no task and no text has a sample");
    std::stable_sort(samples.begin(), samples.end(),
                     [](const auto& a, const auto& b) { return a.task < b.task; });
    std::vector<HashedPlace> places;
    for (const ReferenceSample& sample : samples) add(sample, places);
    std::sort(places.begin(), places.end());
    drop_needless(places);
    index_ = SequenceIndex(places);
    count_samples(places);
    for (const std::size_t length : lengths_) powers_.emplace_back(length, power_of_base(length));
  }

  std::string_view apply(CuratedDocument& document, StepContext& context) const override {
    static constexpr std::size_t kSums = 128;  // more than words in a sequence
    std::array<std::uint64_t, kSums> sums{};   // before each of the last words
    std::vector<SamplePlace> found;
    std::size_t words = 0;
    for_each_word_hash(document.text, [&](std::uint64_t word) {
      const std::uint64_t end = sums[words % kSums] * kBase + word;
      sums[++words % kSums] = end;
      for (const auto& [length, power] : powers_) {
        if (length > words) break;
        const std::uint64_t hash =
            sequence_hash(sums[(words - length) % kSums], end, power, length);
        if (!index_.may_have(hash)) [[likely]]
          continue;
        const auto places = index_.find(hash);
        found.insert(found.end(), places.begin(), places.end());
      }
    });
    if (found.empty()) return {};
    return judge(std::move(found), context);
  }

  std::map<std::string, std::int64_t> facts() const override {
    std::map<std::string, std::int64_t> facts;
    for (const auto& [task, questions] : tasks_) {
      facts[fmt::format("{}: samples", task)] = questions.all;
      if (questions.too_short > 0)
        facts[fmt::format("{}: samples out of reach (too short)", task)] = questions.too_short;
      if (questions.common > 0)
        facts[fmt::format("{}: samples out of reach (only words that are common to the task)",
                          task)] = questions.common;
    }
    return facts;
  }
  std::map<std::string, SearchedTask> tasks() const override { return tasks_; }

 private:
  struct Sample {
    std::string task, name;  // "task: sample"
    std::uint64_t hash = 0;
    std::size_t words = 0, sequence = 0;
  };

  void add(const ReferenceSample& sample, std::vector<HashedPlace>& places) {
    const std::size_t before = places.size();
    const auto number = static_cast<std::uint32_t>(samples_.size());
    const auto index = [&](std::string_view text, bool is_main) {
      const std::vector<std::uint64_t> sums = hashes_before_words(text);
      const std::size_t words = sums.size() - 1, length = sequence_of(words);
      if (std::cmp_less(words, settings_.fewest_words)) return words;
      lengths_.insert(length);
      const std::uint64_t power = power_of_base(length);
      for (std::size_t at = 0; at + length <= words; ++at)
        places.push_back({sequence_hash(sums[at], sums[at + length], power, length),
                          {number, is_main ? static_cast<std::int32_t>(at) : -1}});
      return words;
    };
    const std::size_t words = index(sample.text, true);
    for (const std::string& other : sample.others) index(other, false);
    samples_.push_back({.task = sample.task,
                        .name = fmt::format("{}: {}", sample.task, sample.sample),
                        .hash = sample.hash(),
                        .words = words,
                        .sequence = sequence_of(words)});
    tasks_[sample.task].too_short += places.size() == before;
  }
  std::size_t sequence_of(std::size_t words) const {
    return std::min(static_cast<std::size_t>(settings_.words), words);
  }

  // Removes what a sample has in its main text too from its other answers, and what belongs to the
  // template of a task from the samples of this task.
  void drop_needless(std::vector<HashedPlace>& places) const {
    std::size_t kept = 0;
    for (std::size_t i = 0; i < places.size(); ++i) {
      const bool is_last_of_sample = i + 1 == places.size() ||
                                     places[i + 1].hash != places[i].hash ||
                                     places[i + 1].place.sample != places[i].place.sample;
      if (places[i].place.position >= 0 || is_last_of_sample) places[kept++] = places[i];
    }
    places.resize(kept);
    kept = 0;
    for (std::size_t begin = 0, end = 0; begin < places.size(); begin = end) {
      const std::string& task = samples_[places[begin].place.sample].task;
      std::int64_t owners = 0;
      for (; end < places.size() && places[end].hash == places[begin].hash &&
             samples_[places[end].place.sample].task == task;
           ++end)
        owners += end == begin || places[end].place.sample != places[end - 1].place.sample;
      if (owners > settings_.most_common) continue;
      for (std::size_t i = begin; i < end; ++i) places[kept++] = places[i];
    }
    places.resize(kept);
  }

  void count_samples(std::span<const HashedPlace> places) {
    std::vector<bool> is_reachable(samples_.size());
    for (const HashedPlace& place : places) is_reachable[place.place.sample] = true;
    std::map<std::string, std::vector<std::uint64_t>> hashes;
    std::map<std::string, std::int64_t> reachable;
    for (std::size_t i = 0; i < samples_.size(); ++i) {
      hashes[samples_[i].task].push_back(samples_[i].hash);
      reachable[samples_[i].task] += is_reachable[i];
    }
    for (auto& [task, list] : hashes) {
      SearchedTask& searched = tasks_[task];
      searched.all = std::ssize(list);
      searched.common = searched.all - searched.too_short - reachable[task];
      searched.hash = hash_of_samples(std::move(list));
    }
  }

  // Of a sample, of which these places were found, in order.
  double share_of(const Sample& sample, std::span<const SamplePlace> found) const {
    std::size_t covered = 0, until = 0, sequences = 0;
    for (std::size_t i = 0; i < found.size(); ++i) {
      if (found[i].position < 0 || (i > 0 && found[i] == found[i - 1])) continue;
      const auto at = static_cast<std::size_t>(found[i].position);
      const std::size_t first = std::max(at, until);
      until = std::max(until, at + sample.sequence);
      covered += until > first ? until - first : 0;
      ++sequences;
    }
    if (sample.words == 0) return 0;
    return settings_.share_of == ShareOf::Words
               ? static_cast<double>(covered) / static_cast<double>(sample.words)
               : static_cast<double>(sequences) /
                     static_cast<double>(sample.words - sample.sequence + 1);
  }

  std::string_view judge(std::vector<SamplePlace> found, StepContext& context) const {
    std::sort(found.begin(), found.end());
    bool is_contaminated = false;
    for (std::size_t begin = 0, end = 0; begin < found.size(); begin = end) {
      while (end < found.size() && found[end].sample == found[begin].sample) ++end;
      const Sample& sample = samples_[found[begin].sample];
      const double share = share_of(sample, std::span(found).subspan(begin, end - begin));
      if (share < settings_.share) continue;
      is_contaminated = true;
      context.leaks.push_back({sample.name, sample.hash, share});
    }
    if (!is_contaminated) return {};
    if (settings_.remove) return kContaminatedRule;
    ++context.notes["documents with a sample"];
    return {};
  }

  Decontamination settings_;
  std::vector<Sample> samples_;
  SequenceIndex index_;
  std::set<std::size_t> lengths_;
  std::vector<std::pair<std::size_t, std::uint64_t>> powers_;  // by length
  std::map<std::string, SearchedTask> tasks_;
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

std::uint64_t ReferenceSample::hash() const {
  StreamHash hash;
  const auto add = [&](const std::string& part) { hash.update(part.c_str(), part.size() + 1); };
  add(text);
  for (const std::string& other : others) add(other);
  return hash.digest();
}

std::string hash_of_samples(std::vector<std::uint64_t> hashes) {
  std::sort(hashes.begin(), hashes.end());
  return hex64(hash64(hashes.data(), hashes.size() * sizeof(std::uint64_t)));
}

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
