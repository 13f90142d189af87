#include <fmt/format.h>

#include <cmath>
#include <cstdlib>
#include <optional>
#include <unordered_map>

#include "core/error.h"
#include "core/json_members.h"
#include "core/table.h"
#include "report/documents/exports.h"
#include "report/runs/run_file.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using RecordJson = nlohmann::ordered_json;
using Kind = JsonMember::Kind;

// A JSON string between its quotes.
std::string decoded(std::string_view text) {
  if (text.find('\\') == std::string_view::npos) return std::string(text);
  const RecordJson json = RecordJson::parse(fmt::format("\"{}\"", text), nullptr, false);
  return json.is_string() ? json.get<std::string>() : std::string(text);
}

RecordValue value_of(std::string name, const RecordJson& json) {
  if (json.is_null()) return {std::move(name), Kind::Null, ""};
  if (json.is_string()) return {std::move(name), Kind::Text, json.get<std::string>()};
  if (json.is_number()) return {std::move(name), Kind::Number, json.dump()};
  return {std::move(name), json.is_boolean() ? Kind::Word : Kind::Text, compact_json(json)};
}

void add_tasks(const RecordJson& tasks, RecordValues& values) {
  for (const RecordJson& one : tasks) {
    const RecordJson &task = json_at(one, "task"), &metric = json_at(one, "metric");
    if (!task.is_string() || !metric.is_string()) continue;
    const std::string name =
        fmt::format("eval.{}.{}", task.get<std::string>(), metric.get<std::string>());
    values.push_back(value_of(name, json_at(one, "value")));
    values.push_back(value_of(name + ".stderr", json_at(one, "stderr")));
  }
}

void add_nested(const std::string& name, const RecordJson& json, RecordValues& values) {
  if (name == "eval" && json.is_array()) return add_tasks(json, values);
  if (!json.is_object()) return values.push_back(value_of(name, json));
  for (const auto& [key, inner] : json.items()) add_nested(name + "." + key, inner, values);
}

}  // namespace

RecordValues record_values(std::string_view line) {
  RecordValues values;
  JsonMembers members(line);
  for (JsonMember member; members.next(member);) {
    std::string name = decoded(member.key);
    if (member.kind == Kind::Nested) {
      if (const auto nested = parse_untrusted_json(member.value)) add_nested(name, *nested, values);
    } else if (member.kind == Kind::Text) {
      values.push_back({std::move(name), Kind::Text, decoded(member.value)});
    } else {
      values.push_back({std::move(name), member.kind, std::string(member.value)});
    }
  }
  if (!members.is_complete()) values.clear();
  return values;
}

std::optional<double> RecordValue::number() const {
  if (kind != Kind::Number) return {};
  const double value = std::strtod(text.c_str(), nullptr);
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

std::optional<double> number_of(const RecordValues& values, std::string_view name) {
  for (const RecordValue& value : values)
    if (value.name == name) return value.number();
  return {};
}

namespace {

constexpr std::size_t kReadBytes = 1 << 20;
constexpr std::size_t kMostLine = 1 << 20;  // longer lines are no records
constexpr std::size_t kMostColumns = 2000;
constexpr std::size_t kFlushBytes = 1 << 16;

// The columns of all runs: step first, then in the order in which they were found.
class CsvColumns {
 public:
  CsvColumns() { add("step"); }

  void add(const std::string& name) {
    if (!numbers_.try_emplace(name, names_.size()).second) return;
    if (names_.size() == kMostColumns)
      user_error("the metrics have more than {} different keys: they cannot be written as CSV",
                 kMostColumns);
    names_.push_back(name);
  }
  // Empty: it was found only later, in a file that grows.
  std::optional<std::size_t> find(const std::string& name) const {
    const auto found = numbers_.find(name);
    return found == numbers_.end() ? std::nullopt : std::optional(found->second);
  }
  const std::vector<std::string>& names() const { return names_; }

 private:
  std::unordered_map<std::string, std::size_t> numbers_;
  std::vector<std::string> names_;
};

std::string cell_of(const RecordValue& value) {
  if (value.kind == Kind::Null) return "";
  return value.kind == Kind::Text ? csv_text(value.text) : value.text;
}

double step_of(const RecordValues& values) {
  return number_of(values, "step").value_or(std::nan(""));
}

// One metrics.jsonl, open: what replaces it meanwhile is not read.
class CsvSource {
 public:
  explicit CsvSource(const fs::path& metrics) : file_(metrics) {
    if (!file_.is_open())
      user_error("{} cannot be read: {}", metrics.string(),
                 file_.problem().empty() ? "there is no such file" : file_.problem());
  }

  void add_columns(CsvColumns& columns) const {
    find_lines([&](std::uint64_t, std::string_view line) {
      const RecordValues values = record_values(line);
      if (!std::isfinite(step_of(values))) return;
      for (const RecordValue& value : values) columns.add(value.name);
    });
  }

  // The records that count.
  void visit(const std::function<void(const RecordValues&)>& use,
             const ProgressCall& progress = {}) const {
    std::string line;
    const std::vector<Row> rows = newest_rows();
    for (std::size_t i = 0; i < rows.size(); ++i) {
      file_.read(rows[i].offset, rows[i].bytes, line);
      if (const RecordValues values = record_values(line); !values.empty()) use(values);
      if (progress)
        progress(static_cast<std::int64_t>(i + 1), static_cast<std::int64_t>(rows.size()));
    }
  }

 private:
  struct Row {
    double step = 0;
    std::uint64_t offset = 0;
    std::uint32_t bytes = 0;
  };

  // A record replaces those of its step and of later ones: they were done again.
  std::vector<Row> newest_rows() const {
    std::vector<Row> rows;
    find_lines([&](std::uint64_t offset, std::string_view line) {
      const double step = step_of(record_values(line));
      if (!std::isfinite(step)) return;
      while (!rows.empty() && rows.back().step >= step) rows.pop_back();
      rows.push_back({step, offset, static_cast<std::uint32_t>(line.size())});
    });
    return rows;
  }

  // Calls use(offset, line) for each complete line.
  template <class Use>
  void find_lines(const Use& use) const {
    std::string rest, some;
    std::uint64_t begin = 0;  // of `rest` in the file
    bool inside = false;      // of a line that is too long
    for (std::uint64_t offset = 0; offset < file_.stamp().size; offset += some.size()) {
      file_.read(offset, kReadBytes, some);
      if (some.empty()) return;
      rest += some;
      std::size_t at = 0;
      for (std::size_t end; (end = rest.find('\n', at)) != std::string::npos; at = end + 1) {
        if (!inside) use(begin + at, std::string_view(rest).substr(at, end - at));
        inside = false;
      }
      if (rest.size() - at > kMostLine) {
        inside = true;
        at = rest.size();
      }
      rest.erase(0, at);
      begin += at;
    }
  }

  RunFile file_;
};

// Collects rows and hands them on in blocks.
class CsvOutput {
 public:
  explicit CsvOutput(const std::function<void(std::string_view)>& write) : write_(write) {}

  void row(const std::vector<std::string>& cells) {
    for (std::size_t i = 0; i < cells.size(); ++i) {
      if (i > 0) text_ += ',';
      text_ += cells[i];
    }
    text_ += '\n';
    if (text_.size() >= kFlushBytes) flush();
  }
  void flush() {
    if (!text_.empty()) write_(text_);
    text_.clear();
  }

 private:
  const std::function<void(std::string_view)>& write_;
  std::string text_;
};

}  // namespace

void visit_records(const fs::path& metrics, const std::function<void(const RecordValues&)>& use,
                   const ProgressCall& progress) {
  CsvSource(metrics).visit(use, progress);
}

void write_csv(const std::vector<CsvRun>& runs,
               const std::function<void(std::string_view)>& write) {
  CsvColumns columns;
  for (const CsvRun& run : runs) CsvSource(run.metrics).add_columns(columns);
  const std::size_t first = runs.size() > 1 ? 1 : 0;  // the column of the step
  CsvOutput output(write);
  std::vector<std::string> cells;
  if (first > 0) cells.push_back("run");
  for (const std::string& name : columns.names()) cells.push_back(csv_text(name));
  output.row(cells);
  for (const CsvRun& run : runs)
    CsvSource(run.metrics).visit([&](const RecordValues& values) {
      cells.assign(columns.names().size() + first, "");
      if (first > 0) cells[0] = csv_text(run.name);
      for (const RecordValue& value : values)
        if (const auto column = columns.find(value.name)) cells[first + *column] = cell_of(value);
      output.row(cells);
    });
  output.flush();
}

}  // namespace kintsugi
