#include "data/dedup/dedup_job.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/host/usable_cores.h"
#include "data/dedup/cluster_sizes.h"
#include "data/dedup/dedup_directory.h"
#include "data/dedup/record_makers.h"

namespace kintsugi {
namespace {

using Json = DedupDirectory::Json;

class DedupJob {
 public:
  DedupJob(const DedupOptions& options, const DedupProgress& progress)
      : directory_(with_threads(options)), progress_(progress) {}
  // Only to look at it.
  DedupJob(const DedupOptions& options, const DedupProgress& progress, DedupAccess access)
      : directory_(options, access), progress_(progress) {}

  std::vector<WorkStage> stages() const {
    directory_.check_idle();
    std::vector<WorkStage> stages;
    for (const auto& [stage, units] : dedup_stages(directory_.options())) {
      WorkStage& one =
          stages.emplace_back(WorkStage{.name = std::string(to_string(stage)), .units = units});
      for (std::size_t unit = 0; unit < units; ++unit)
        if (!is_finished(stage, unit)) one.missing.push_back(unit);
    }
    return stages;
  }

  DedupReport run() {
    const DedupStage stage = directory_.options().stage;
    std::unique_ptr<FileLock> lock;
    if (stage == DedupStage::All) {
      lock = directory_.lock_all();
    }
    // While tasks of the first stage begin, dedup.json may be about to appear.
    if (stage != directory_.first_stage()) directory_.remove_leftovers();
    try {
      for (const auto& one : dedup_stages(directory_.options()))
        if (stage == DedupStage::All || stage == one.stage) run(one.stage);
    } catch (const DedupStopped&) {
      report_.stopped = true;
    }
    collect();
    return report_;
  }

 private:
  static DedupOptions with_threads(DedupOptions options) {
    if (options.threads == 0) options.threads = static_cast<std::size_t>(usable_cores());
    return options;
  }

  // The finished units of another job are left alone, also while it works on others.
  bool is_finished(DedupStage stage, std::size_t unit) const {
    const auto json = directory_.find_description(stage, unit);
    if (!json || stage != DedupStage::Remove) return json.has_value();
    const DedupOptions& options = directory_.options();
    return json->value("packing", "") == options.packing &&
           json->value("cluster_size", false) == options.cluster_size;
  }

  void run(DedupStage stage) {
    const DedupOptions& options = directory_.options();
    std::vector<std::size_t> units;
    for (std::size_t unit = options.job; unit < directory_.units(stage); unit += options.jobs) {
      ++report_.units;
      if (!is_finished(stage, unit)) {
        units.push_back(unit);
        continue;
      }
      directory_.remove_stale_lock(stage, unit);
      ++report_.done_before;
    }
    if (units.empty()) return;
    begin(stage, units);
    if (reads(stage) && stage != DedupStage::Remove)
      compute_records(directory_, stage, units, progress_);
    else
      run_each(stage, units);
  }

  // Whether the units of a stage are tasks, which read documents.
  static bool reads(DedupStage stage) {
    return stage == DedupStage::Signatures || stage == DedupStage::Samples ||
           stage == DedupStage::Sequences || stage == DedupStage::Remove;
  }

  void begin(DedupStage stage, const std::vector<std::size_t>& units) const {
    const std::string name(to_string(stage));
    std::int64_t total = 0;
    if (reads(stage)) {
      for (const std::size_t unit : units) total += directory_.input_bytes(unit);
      progress_.begin(name, total, "bytes");
    } else if (stage == DedupStage::Clusters) {
      progress_.begin(name, static_cast<std::int64_t>(directory_.bands()), "bands");
    } else {
      progress_.begin(name, records(stage, units), "records");
    }
  }

  // About those that these units merge.
  std::int64_t records(DedupStage stage, const std::vector<std::size_t>& units) const {
    const DedupStage from = stage == DedupStage::Pairs     ? DedupStage::Signatures
                            : stage == DedupStage::Repeats ? DedupStage::Samples
                                                           : DedupStage::Sequences;
    std::int64_t sum = 0;
    for (std::size_t task = 0; task < directory_.tasks(); ++task)
      sum += directory_.require(from, task).at("records").get<std::int64_t>();
    if (stage == DedupStage::Pairs) return sum * std::ssize(units);
    return sum * std::ssize(units) / static_cast<std::int64_t>(directory_.units(stage));
  }

  void run_one(DedupStage stage, std::size_t unit, std::int64_t memory) const {
    const auto lock = directory_.lock(stage, unit);
    if (stage == DedupStage::Pairs)
      find_pairs(directory_, unit, memory, progress_);
    else if (stage == DedupStage::Clusters)
      find_clusters(directory_, progress_);
    else if (stage == DedupStage::Remove)
      remove_duplicates(directory_, unit, memory, progress_);
    else
      find_copies(directory_, stage, unit, memory, progress_);
  }

  // The first error ends all threads.
  void run_each(DedupStage stage, const std::vector<std::size_t>& units) const {
    const std::size_t count = std::min(directory_.options().threads, units.size());
    const std::int64_t memory = directory_.options().memory / static_cast<std::int64_t>(count);
    std::atomic<std::size_t> next = 0;
    std::exception_ptr error;
    std::mutex mutex;
    const auto work = [&] {
      try {
        for (std::size_t i = next++; i < units.size(); i = next++) run_one(stage, units[i], memory);
      } catch (...) {
        next = units.size();
        const std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
      }
    };
    std::vector<std::thread> threads;
    for (std::size_t i = 0; i < count; ++i) threads.emplace_back(work);
    for (std::thread& thread : threads) thread.join();
    if (error) std::rethrow_exception(error);
  }

  // Adds up the descriptions of all finished units.
  void collect() {
    const DedupOptions& options = directory_.options();
    bool complete = true;
    std::int64_t records = 0;
    const std::map<std::pair<DedupStage, std::string>, std::int64_t*> sums = {
        {{directory_.first_stage(), "documents"}, &report_.documents},
        {{directory_.first_stage(), "records"}, &records},
        {{directory_.first_stage(), "empty"}, &report_.empty},
        {{directory_.first_stage(), "invalid"}, &report_.invalid},
        {{directory_.first_stage(), "text_bytes"}, &report_.text_bytes},
        {{DedupStage::Pairs, "pairs"}, &report_.pairs},
        {{DedupStage::Clusters, "clusters"}, &report_.clusters},
        {{DedupStage::Clusters, "duplicates"}, &report_.duplicates},
        {{DedupStage::Copies, "marks"}, &report_.copies},
        {{DedupStage::Remove, "kept"}, &report_.kept},
        {{DedupStage::Remove, "cut"}, &report_.cut},
        {{DedupStage::Remove, "too_short"}, &report_.too_short},
        {{DedupStage::Remove, "removed_bytes"}, &report_.removed_bytes}};
    ClusterSizes sizes;
    for (const auto& [stage, units] : dedup_stages(options))
      for (std::size_t unit = 0; unit < units; ++unit) {
        const auto json = directory_.find_description(stage, unit);
        complete &= json.has_value();
        if (!json) continue;
        for (const auto& [key, sum] : sums)
          if (key.first == stage) *sum += json->at(key.second).get<std::int64_t>();
        if (stage == DedupStage::Clusters || stage == DedupStage::Copies)
          sizes.add(*ClusterSizes::of(json->at("sizes")));
        if (stage == directory_.first_stage())
          for (const Json& one : json->at("skipped"))
            report_.skipped.push_back(one.get<std::string>());
      }
    if (!cuts_pieces(options.by)) report_.without_signature = report_.documents - records;
    if (complete && !report_.stopped) directory_.write_summary(summary(sizes));
  }

  Json summary(const ClusterSizes& sizes) const {
    const DedupOptions& options = directory_.options();
    Json json = {{"by", to_string(options.by)},
                 {"documents", report_.documents},
                 {"text_bytes", report_.text_bytes},
                 {"empty", report_.empty},
                 {"invalid", report_.invalid},
                 {"kept", report_.kept},
                 {"removed_bytes", report_.removed_bytes}};
    if (cuts_pieces(options.by))
      json.update(
          {{"cut", report_.cut}, {"too_short", report_.too_short}, {"copies", report_.copies}});
    else
      json.update({{"without_signature", report_.without_signature},
                   {"pairs", report_.pairs},
                   {"clusters", report_.clusters},
                   {"duplicates", report_.duplicates}});
    json["cluster_sizes"] = sizes.json();
    return json;
  }

  DedupDirectory directory_;
  const DedupProgress& progress_;
  DedupReport report_;
};

}  // namespace

std::vector<WorkStage> dedup_work(const DedupOptions& options) {
  if (!options.inputs.empty()) return DedupJob(options, {}, DedupAccess::Look).stages();
  std::vector<WorkStage> stages;
  for (const auto& one : dedup_stages(options))
    stages.push_back({.name = std::string(to_string(one.stage))});
  return stages;
}

DedupReport deduplicate(const DedupOptions& options, const DedupProgress& progress) {
  return DedupJob(options, progress).run();
}

namespace {

// Measures what the first stage writes of some documents.
class StageSample {
 public:
  StageSample(DedupStage stage, const DedupOptions& options)
      : stage_(stage),
        length_(options.substring_words),
        maker_(RecordMaker::of(stage, options)),
        records_(maker_->buckets(), [this](RecordBatch& full) {
          for (std::string& bucket : full.buckets) {
            bytes_ += static_cast<double>(bucket.size());
            bucket.clear();
          }
        }) {}

  void add(const DedupDocuments::Entry& entry) {
    maker_->make(entry, {}, scratch_, records_);
    if (stage_ == DedupStage::Samples && scratch_.pieces.size() >= length_)
      sequences_ += static_cast<double>(scratch_.pieces.size() - length_ + 1);
  }
  // Every sequence of words may be one that is repeated.
  std::vector<DedupEstimate::Files> files() {
    records_.flush();
    std::vector<DedupEstimate::Files> list = {{stage_, bytes_}};
    if (stage_ == DedupStage::Samples)
      list.push_back(
          {DedupStage::Sequences, sequences_ * static_cast<double>(kSequenceForm.bytes())});
    return list;
  }

 private:
  DedupStage stage_;
  std::size_t length_;
  std::unique_ptr<RecordMaker> maker_;
  RecordMaker::Scratch scratch_;
  double bytes_ = 0, sequences_ = 0;
  RecordBatch records_;
};

}  // namespace

DedupEstimate estimate_dedup(const DedupOptions& options) {
  constexpr std::size_t kFiles = 8, kTextBytes = std::size_t{1} << 20;
  const std::size_t step = std::max<std::size_t>(options.inputs.size() / kFiles, 1);
  double documents = 0, read = 0, total = 0;
  for (const auto& file : options.inputs)
    total += static_cast<double>(std::filesystem::file_size(file));
  const auto stages = dedup_stages(options);
  StageSample first(stages.front().stage, options);
  for (std::size_t i = 0; i < options.inputs.size(); i += step) {
    DedupDocuments sample(options, {options.inputs[i]}, false);
    DedupDocuments::Entry entry;
    for (std::size_t bytes = 0; bytes < kTextBytes && sample.next(entry);) {
      bytes += entry.text.size();
      first.add(entry);
    }
    documents += static_cast<double>(sample.documents());
    read += static_cast<double>(sample.bytes_read());
  }
  const double scale = read > 0 ? total / read : 0;
  DedupEstimate estimate{.documents = documents * scale, .files = first.files()};
  for (DedupEstimate::Files& one : estimate.files) {
    one.bytes *= scale;
    // What does not fit into the memory of its task is written twice for a while.
    const auto tasks = static_cast<double>(stages.front().units);
    const double threads = std::clamp<double>(static_cast<double>(options.threads), 1, tasks);
    if (one.bytes / tasks > static_cast<double>(options.memory) / threads)
      estimate.temporary_bytes = std::max(estimate.temporary_bytes, one.bytes * threads / tasks);
  }
  estimate.files.push_back({DedupStage::Remove, total});
  return estimate;
}

}  // namespace kintsugi
