#include "data/dedup/dedup_job.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>

#include "core/error.h"
#include "core/usable_cores.h"
#include "data/dedup/dedup_directory.h"

namespace kintsugi {
namespace {

using Json = DedupDirectory::Json;

constexpr DedupStage kStages[] = {DedupStage::Signatures, DedupStage::Pairs, DedupStage::Clusters,
                                  DedupStage::Remove};

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
    for (const DedupStage stage : kStages) {
      WorkStage& one = stages.emplace_back(
          WorkStage{.name = std::string(to_string(stage)), .units = count(stage)});
      for (std::size_t unit = 0; unit < *one.units; ++unit)
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
    if (stage != kStages[0]) directory_.remove_leftovers();
    try {
      for (const DedupStage one : kStages)
        if (stage == DedupStage::All || stage == one) run(one);
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

  std::size_t count(DedupStage stage) const {
    if (stage == DedupStage::Clusters) return 1;
    return stage == DedupStage::Pairs ? directory_.bands() : directory_.tasks();
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
    for (std::size_t unit = options.job; unit < count(stage); unit += options.jobs) {
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
    if (stage == DedupStage::Signatures)
      compute_signatures(directory_, units, progress_);
    else
      run_each(stage, units);
  }

  void begin(DedupStage stage, const std::vector<std::size_t>& units) const {
    const bool reads = stage == DedupStage::Signatures || stage == DedupStage::Remove;
    auto total = static_cast<std::int64_t>(directory_.bands());
    if (reads) total = 0;
    if (stage == DedupStage::Pairs) total = records() * std::ssize(units);
    for (const std::size_t unit : units) total += reads ? directory_.input_bytes(unit) : 0;
    progress_.begin(std::string(to_string(stage)), total,
                    reads                        ? "bytes"
                    : stage == DedupStage::Pairs ? "records"
                                                 : "bands");
  }

  std::int64_t records() const {
    std::int64_t sum = 0;
    for (std::size_t task = 0; task < directory_.tasks(); ++task)
      sum += directory_.require(DedupStage::Signatures, task).at("records").get<std::int64_t>();
    return sum;
  }

  void run_one(DedupStage stage, std::size_t unit, std::int64_t memory) const {
    const auto lock = directory_.lock(stage, unit);
    if (stage == DedupStage::Pairs)
      find_pairs(directory_, unit, memory, progress_);
    else if (stage == DedupStage::Clusters)
      find_clusters(directory_, progress_);
    else
      remove_duplicates(directory_, unit, progress_);
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
    const auto add = [&](DedupStage stage, std::int64_t& sum, const char* key) {
      for (std::size_t unit = 0; unit < count(stage); ++unit)
        if (const auto json = directory_.find_description(stage, unit))
          sum += json->at(key).get<std::int64_t>();
    };
    std::int64_t records = 0;
    add(DedupStage::Signatures, report_.documents, "documents");
    add(DedupStage::Signatures, records, "records");
    add(DedupStage::Signatures, report_.empty, "empty");
    add(DedupStage::Signatures, report_.invalid, "invalid");
    report_.without_signature = report_.documents - records;
    add(DedupStage::Pairs, report_.pairs, "pairs");
    add(DedupStage::Clusters, report_.clusters, "clusters");
    add(DedupStage::Clusters, report_.duplicates, "duplicates");
    add(DedupStage::Remove, report_.kept, "kept");
    for (std::size_t task = 0; task < directory_.tasks(); ++task)
      if (const auto json = directory_.find_description(DedupStage::Signatures, task))
        for (const Json& one : json->at("skipped"))
          report_.skipped.push_back(one.get<std::string>());
  }

  DedupDirectory directory_;
  const DedupProgress& progress_;
  DedupReport report_;
};

}  // namespace

std::vector<WorkStage> dedup_stages(const DedupOptions& options) {
  if (!options.inputs.empty()) return DedupJob(options, {}, DedupAccess::Look).stages();
  std::vector<WorkStage> stages;
  for (const DedupStage stage : kStages) stages.push_back({.name = std::string(to_string(stage))});
  return stages;
}

DedupReport deduplicate(const DedupOptions& options, const DedupProgress& progress) {
  return DedupJob(options, progress).run();
}

DedupEstimate estimate_dedup(const DedupOptions& options) {
  constexpr std::size_t kFiles = 8, kTextBytes = std::size_t{1} << 20;
  const std::size_t step = std::max<std::size_t>(options.inputs.size() / kFiles, 1);
  double documents = 0, read = 0, total = 0;
  for (const auto& file : options.inputs)
    total += static_cast<double>(std::filesystem::file_size(file));
  for (std::size_t i = 0; i < options.inputs.size(); i += step) {
    DedupDocuments sample(options, {options.inputs[i]}, false);
    DedupDocuments::Entry entry;
    for (std::size_t bytes = 0; bytes < kTextBytes && sample.next(entry);)
      bytes += entry.text.size();
    documents += static_cast<double>(sample.documents());
    read += static_cast<double>(sample.bytes_read());
  }
  DedupEstimate estimate;
  estimate.documents = read > 0 ? documents * total / read : 0;
  const MinHashShape& shape = options.shape;
  const int record = shape.rows * shape.bits / 8 + 4;
  estimate.signature_bytes =
      estimate.documents * (options.by == DedupBy::Words ? shape.bands * record : 20);
  estimate.kept_bytes = total;
  return estimate;
}

}  // namespace kintsugi
