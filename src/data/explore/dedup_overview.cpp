// The dedup.json of `data dedup` and the descriptions of its finished units.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "core/error.h"
#include "core/json_members.h"
#include "data/dedup/cluster_sizes.h"
#include "data/dedup/dedup_job.h"
#include "data/explore/explored_files.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostDedupBytes = std::size_t{64} << 20;
constexpr std::size_t kMostUnitBytes = std::size_t{1} << 20;
constexpr std::int64_t kMostUnits = 1'000'000, kMostTasks = 500;

class DedupOverview {
 public:
  explicit DedupOverview(const fs::path& file)
      : directory_(file.parent_path()), settings_(read_explored_json(file, kMostDedupBytes)) {
    tasks_ = count_at(settings_, "tasks");
    const auto by = dedup_by_of(text_at(settings_, "by"));
    const std::int64_t bands =
        by == DedupBy::Words ? count_at(json_at(settings_, "minhash"), "bands") : 1;
    const std::int64_t buckets = by && cuts_pieces(*by) ? count_at(settings_, "buckets") : 1;
    if (!by || !settings_.is_object() || count_at(settings_, "kintsugi_dedup") == 0 ||
        !json_at(settings_, "inputs").is_array() || std::min({tasks_, bands, buckets}) < 1 ||
        std::max({tasks_, bands, buckets}) > kMostUnits)
      user_error("{} was not written by kintsugi data dedup, or is damaged", file.string());
    options_.by = *by;
    options_.tasks = static_cast<std::size_t>(tasks_);
    options_.buckets = static_cast<std::size_t>(buckets);
    options_.shape.bands = static_cast<int>(bands);
  }

  Json json() {
    Json stages = Json::array();
    const auto all = dedup_stages(options_);
    first_ = all.front().stage;
    for (const DedupStageUnits& one : all) stages.push_back(stage_json(one));
    return {
        {"kind", "dedup"},
        {"by", text_at(settings_, "by")},
        {"minhash", json_at(settings_, "minhash")},
        {"tasks", tasks_},
        {"inputs", json_at(settings_, "inputs").size()},
        {"stages", stages},
        {"documents", sum_.documents},
        {"empty", sum_.empty},
        {"invalid", sum_.invalid},
        {"pairs", cuts_pieces(options_.by) ? Json() : Json(sum_.pairs)},
        {"clusters", clusters_.is_object() ? Json(count_at(clusters_, "clusters")) : Json()},
        {"duplicates", clusters_.is_object() ? Json(count_at(clusters_, "duplicates")) : Json()},
        {"kept", sum_.kept},
        {"removed_bytes", sum_.removed_bytes},
        {"sizes", sizes()},
        {"most", tasks_with_most_duplicates()}};
  }

  ExploredDocuments documents() const {
    ExploredDocuments documents;
    documents.text_key = text_at(settings_, "text_key");
    for (const fs::path& file : files_in(directory_ / "kept"))
      if (const std::string name = file.filename().string();
          name.ends_with(".jsonl.zst") || name.ends_with(".jsonl.gz"))
        documents.files.push_back(file);
    return documents;
  }

 private:
  struct Task {
    std::int64_t task = 0, documents = 0, kept = 0;
  };

  static std::vector<fs::path> files_in(const fs::path& folder) {
    std::vector<fs::path> files;
    std::error_code error;
    for (fs::directory_iterator it(folder, error), end; !error && it != end; it.increment(error))
      files.push_back(it->path());
    std::sort(files.begin(), files.end());
    return files;
  }

  // Reads the descriptions that there are, NUMBER.json.
  Json stage_json(const DedupStageUnits& of) {
    const DedupStage stage = of.stage;
    const auto units = static_cast<std::int64_t>(of.units);
    std::int64_t finished = 0;
    const auto folder = stage == DedupStage::Remove ? "kept" : to_string(stage);
    for (const fs::path& file : files_in(directory_ / folder)) {
      const std::string name = file.stem().string();
      std::int64_t number = -1;
      const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), number);
      const bool is_unit = file.extension() == ".json" && error == std::errc() &&
                           end == name.data() + name.size() && number >= 0 && number < units;
      if (!is_unit) continue;
      const Json json = read_explored_json(file, kMostUnitBytes);
      if (!json.is_object()) user_error("{} is damaged", file.string());
      ++finished;
      add(stage, number, json);
    }
    return {{"stage", to_string(stage)}, {"units", units}, {"finished", finished}};
  }

  void add(DedupStage stage, std::int64_t number, const Json& json) {
    if (stage == first_) {
      sum_.documents += count_at(json, "documents");
      sum_.empty += count_at(json, "empty");
      sum_.invalid += count_at(json, "invalid");
    } else if (stage == DedupStage::Pairs) {
      sum_.pairs += count_at(json, "pairs");
    } else if (stage == DedupStage::Clusters) {
      clusters_ = json;
      add_sizes(json);
    } else if (stage == DedupStage::Copies) {
      add_sizes(json);
    } else if (stage == DedupStage::Remove) {
      kept_.push_back({number, count_at(json, "documents"), count_at(json, "kept")});
      sum_.kept += kept_.back().kept;
      sum_.removed_bytes += count_at(json, "removed_bytes");
    }
  }

  void add_sizes(const Json& json) {
    if (const auto sizes = ClusterSizes::of(json_at(json, "sizes"))) sizes_.add(*sizes);
  }

  // [{"from": 2, "to": 3, "clusters": 17}]
  Json sizes() const {
    Json list = sizes_.json();
    for (Json& one : list) {
      one["to"] = 2 * one["from"].get<std::uint64_t>() - 1;
      one.erase("members");
    }
    return list;
  }

  // With the first file of each.
  Json tasks_with_most_duplicates() {
    std::stable_sort(kept_.begin(), kept_.end(), [](const Task& a, const Task& b) {
      return a.documents - a.kept > b.documents - b.kept;
    });
    kept_.resize(std::min<std::size_t>(kept_.size(), kMostTasks));
    Json list = Json::array();
    const Json& inputs = json_at(settings_, "inputs");
    for (const Task& one : kept_) {
      const auto index = static_cast<std::size_t>(one.task);
      const bool is_named = index < inputs.size() && inputs[index].is_array() &&
                            !inputs[index].empty() && inputs[index][0].is_string();
      list.push_back({{"task", one.task},
                      {"file", is_named ? inputs[index][0] : Json("")},
                      {"documents", one.documents},
                      {"kept", one.kept}});
    }
    return list;
  }

  fs::path directory_;
  Json settings_;
  std::int64_t tasks_ = 0;
  DedupOptions options_;  // as far as the stages depend on them
  DedupStage first_ = DedupStage::All;
  struct {
    std::int64_t documents = 0, empty = 0, invalid = 0, pairs = 0, kept = 0, removed_bytes = 0;
  } sum_;
  Json clusters_;
  ClusterSizes sizes_;
  std::vector<Task> kept_;
};

}  // namespace

fs::path dedup_file(const fs::path& directory) {
  std::error_code error;
  const fs::path file = directory / "dedup.json";
  return fs::exists(file, error) ? file : fs::path();
}

Json dedup_overview(const fs::path& file) { return DedupOverview(file).json(); }

ExploredDocuments deduplicated_documents(const fs::path& file) {
  return DedupOverview(file).documents();
}

}  // namespace kintsugi
