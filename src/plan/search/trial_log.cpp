#include "plan/search/trial_log.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstring>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"
#include "plan/search/csv.h"

namespace kintsugi {
namespace {

const std::vector<std::string> kHeader = {"job",
                                          "tp",
                                          "cp",
                                          "context",
                                          "pp",
                                          "dp",
                                          "micro",
                                          "schedule",
                                          "chunks",
                                          "zero",
                                          "shard_group",
                                          "ep",
                                          "dispatch",
                                          "sequence_parallel",
                                          "recompute",
                                          "recompute_every",
                                          "predicted_tokens_per_s",
                                          "tokens_per_s",
                                          "seconds",
                                          "failure"};

constexpr double kMost = 1e9;  // limit of every count, so that tp x cp x pp x dp fits an int

std::string row_of(const std::string& job, const Trial& trial) {
  const Layout& l = trial.layout;
  const auto text = [](auto value) { return fmt::format("{}", value); };
  return csv_line({job,
                   text(l.tp),
                   text(l.cp),
                   std::string(to_string(l.context)),
                   text(l.pp),
                   text(l.dp),
                   text(l.micro_batch),
                   std::string(to_string(l.schedule)),
                   text(l.chunks),
                   text(l.zero),
                   text(l.shard_group),
                   text(l.ep),
                   std::string(to_string(l.dispatch)),
                   text(l.sequence_parallel),
                   std::string(to_string(l.recompute)),
                   text(l.recompute_every),
                   fmt::format("{:.6g}", trial.predicted),
                   trial.result.ran() ? fmt::format("{:.6g}", trial.result.tokens_per_s) : "",
                   fmt::format("{:.1f}", trial.seconds),
                   trial.result.failure});
}

class Reader {
 public:
  Reader(const CsvTable& table, std::size_t row) : table_(table), row_(row) {}

  Trial trial() const {
    Trial t;
    t.layout = {.tp = whole("tp", 1),
                .cp = whole("cp", 1),
                .pp = whole("pp", 1),
                .context = word("context", parse_context_method),
                .dp = whole("dp", 1),
                .chunks = whole("chunks", 1),
                .schedule = word("schedule", parse_pipeline_kind),
                .micro_batch = whole("micro", 1),
                .zero = whole("zero", 0),
                .shard_group = whole("shard_group", 0),
                .ep = whole("ep", 0),
                .dispatch = word("dispatch", parse_dispatch),
                .sequence_parallel = word("sequence_parallel", parse_bool),
                .recompute = word("recompute", parse_recompute),
                .recompute_every = whole("recompute_every", 1)};
    if (1.0 * t.layout.tp * t.layout.cp * t.layout.pp * t.layout.dp > kMost)
      wrong("has a layout of more than {} ranks", kMost);
    t.predicted = positive("predicted_tokens_per_s");
    t.seconds = table_.number(row_, "seconds");
    t.result.failure = table_.at(row_, "failure");
    const bool measured = !table_.at(row_, "tokens_per_s").empty();
    if (measured == !t.result.failure.empty())
      wrong("has {} tokens_per_s and failure: it must have exactly one of them",
            measured ? "both" : "neither");
    if (measured) t.result.tokens_per_s = positive("tokens_per_s");
    return t;
  }

  template <class... Args>
  [[noreturn]] void wrong(fmt::format_string<Args...> format, Args&&... args) const {
    user_error("{} line {} {}", table_.source(), table_.line(row_),
               fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  int whole(const char* column, int least) const {
    const double value = table_.number(row_, column);
    if (!(value >= least && value <= kMost && value == std::floor(value)))
      wrong("has '{}' as {}: it must be an integer of at least {}", table_.at(row_, column), column,
            least);
    return static_cast<int>(value);
  }
  double positive(const char* column) const {
    const double value = table_.number(row_, column);
    if (!(value > 0 && std::isfinite(value)))
      wrong("has '{}' as {}: it must be a number above 0", table_.at(row_, column), column);
    return value;
  }
  template <class T>
  T word(const char* column, T (*parse)(std::string_view)) const {
    try {
      return parse(table_.at(row_, column));
    } catch (const UserError& error) {
      wrong("has a wrong {}: {}", column, error.what());
    }
  }

  const CsvTable& table_;
  std::size_t row_;
};

void append(const std::filesystem::path& path, const std::string& text) {
  // A single write, so that a killed process leaves only complete lines.
  const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  const bool written =
      file >= 0 && ::write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const std::string reason = std::strerror(errno);
  if (file >= 0) ::close(file);
  if (!written) failure("cannot write {}: {}", path.string(), reason);
}

bool has_content(const std::filesystem::path& path) {
  std::error_code none;
  return std::filesystem::exists(path, none) && std::filesystem::file_size(path, none) > 0;
}

}  // namespace

TrialLog::TrialLog(std::filesystem::path path, std::string job)
    : path_(std::move(path)), job_(std::move(job)) {
  if (path_.empty() || !has_content(path_)) return;
  const std::string text = read_text_file(path_);
  if (text.back() != '\n')
    user_error("{} ends with an incomplete line: remove that line", path_.string());
  const CsvTable table(text, path_.string());
  if (table.header() != kHeader)
    user_error("{} is not a trial log: its header is not that of kintsugi plan tune --log",
               path_.string());
  for (std::size_t row = 0; row < table.rows(); ++row) {
    const Reader reader(table, row);
    const Trial trial = reader.trial();
    if (table.at(row, "job") != job_)
      reader.wrong("belongs to another job ({}; this job is {}): give another --log",
                   table.at(row, "job"), job_);
    std::erase_if(known_, [&](const Trial& other) { return other.layout == trial.layout; });
    known_.push_back(trial);
  }
}

void TrialLog::add(const Trial& trial) {
  if (path_.empty()) return;
  append(path_, (has_content(path_) ? "" : csv_line(kHeader)) + row_of(job_, trial));
}

}  // namespace kintsugi
