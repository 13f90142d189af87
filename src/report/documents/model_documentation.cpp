#include "report/documents/model_documentation.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <set>
#include <utility>

#include "core/build_info.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/log.h"
#include "core/table.h"
#include "core/units.h"
#include "report/documents/exports.h"
#include "report/goodput.h"
#include "report/runs/goodput_timeline.h"

namespace kintsugi {
namespace fs = std::filesystem;
namespace {

using DocumentJson = nlohmann::ordered_json;

constexpr std::size_t kMostJson = 64 << 20, kMostCard = 1 << 20;  // bytes
constexpr double kDay_s = 86400, kMWh_J = 3.6e9;
constexpr double kGeneralPurposeFlop = 1e23, kSystemicFlop = 1e25;

// What only people know, as the form asks for it.
constexpr const char* kToBeAdded[] = {
    "legal name of the provider",
    "date of release, and of placing on the market of the Union",
    "licence of the model, and where it is distributed",
    "intended uses, and uses that are prohibited or restricted",
    "kinds of systems into which the model can be integrated",
    "rationale of the main design choices, and what was optimized for",
    "provenance of the data, and how they were obtained and selected",
    "curation of the data: cleaning, filtering, annotation",
    "measures against unsuitable data and against biases",
    "languages of the data, and the last date of their acquisition",
    "public summary of the training content, and the copyright policy",
    "energy of the facility beyond what was measured (cooling, storage, network)",
    "compute and energy of experiments, data generation and earlier attempts in other directories",
};

// The newest complete checkpoint of a run; empty: there is none. Damaged ones have longer names.
fs::path newest_checkpoint(const fs::path& run) {
  fs::path newest;
  for (const std::string& name : sorted_names(run / "checkpoints"))
    if (name.starts_with("step-") && name.find_first_not_of("0123456789", 5) == name.npos &&
        stamp_of(run / "checkpoints" / name / "checksums.json"))
      newest = run / "checkpoints" / name;
  return newest;
}

// What is known of one run, or a sum of several. Empty: unknown.
struct Cost {
  std::optional<double> days, hardware_days, flop;
  double gpus = 0;
  std::map<std::string, double> joules = {};  // by level; and "facility"
  double tokens = 0;
};

// One run with what its files say.
struct ReadRun {
  const DocumentedRun& run;
  ConfigValues config = {};
  DocumentJson energy = {}, layout = {}, data = {}, history = {};
  Goodput goodput = {};
  fs::path checkpoint = {};  // empty: there is none
  Cost cost = {};
  std::vector<std::string> missing = {};

  std::string value(const std::string& key) const {
    const auto found = config.find(key);
    return found == config.end() || found->second == "null" ? "" : found->second;
  }
};

DocumentJson read_or_note(ReadRun& run, const char* name) {
  DocumentJson json = read_json_object(run.run.directory / name, kMostJson);
  if (json.is_null()) run.missing.push_back(fmt::format("{}: no readable {}", run.run.name, name));
  return json;
}

// Positions that were trained, by stage; a step that was done again counts once.
std::map<std::string, double> tokens_of_stages(const fs::path& run) {
  std::map<std::string, double> tokens;
  double before = -1;
  visit_records(run / "metrics.jsonl", [&](const RecordValues& values) {
    const auto now = number_of(values, "tokens");
    if (!now) return;
    std::string stage;
    for (const RecordValue& value : values)
      if (value.name == "stage") stage = value.text;
    double trained = *now - before;
    if (before < 0 || trained < 0)  // the first step: the run may continue another one
      trained = std::round(number_of(values, "tokens_per_s").value_or(0) *
                           number_of(values, "step_time_s").value_or(0));
    tokens[stage] += trained;
    before = *now;
  });
  return tokens;
}

void count_compute(ReadRun& run) {
  std::map<std::string, double> tokens;
  try {
    tokens = tokens_of_stages(run.run.directory);
  } catch (const UserError& error) {
    return run.missing.push_back(fmt::format("{}: {}", run.run.name, error.what()));
  }
  const ModelFacts& facts = run.run.facts;
  double flop = 0;
  bool known = true;  // what each stage computes
  for (const auto& [name, count] : tokens) {
    run.cost.tokens += count;
    const auto stage = std::ranges::find(facts.stages, name, &ModelFacts::Stage::name);
    known = known && stage != facts.stages.end();
    if (known) flop += count * stage->training_flops_per_token;
  }
  if (known && flop > 0) run.cost.flop = flop;
}

// GPUs per node, of the last attempt; 0 if the run used none, empty if nothing says it.
std::optional<double> gpus_per_node(const ReadRun& run) {
  if (const auto gpus = number_at(run.energy, "gpus"))
    return *gpus / std::max(1.0, number_at(run.energy, "nodes").value_or(1));
  if (!run.layout.is_object()) return {};
  if (text_at(run.layout, "device").starts_with("cpu")) return 0;
  const auto nodes = static_cast<double>(json_at(run.layout, "nodes").size());
  const auto ranks = number_at(run.layout, "ranks");
  return ranks && nodes > 0 ? std::optional(*ranks / nodes) : std::nullopt;
}

void count_time(ReadRun& run) {
  const std::vector<Attempt>& attempts = run.goodput.attempts();
  if (attempts.empty()) return;
  double node_s = 0;
  for (const Attempt& one : attempts)
    node_s += (one.last_s - one.launched_s) * static_cast<double>(one.nodes);
  run.cost.days = (attempts.back().last_s - attempts.front().launched_s) / kDay_s;
  const std::optional<double> gpus = gpus_per_node(run);
  if (!gpus) return;
  run.cost.gpus = *gpus * static_cast<double>(attempts.back().nodes);
  run.cost.hardware_days = node_s / kDay_s * (*gpus > 0 ? *gpus : 1);
}

void count_energy(ReadRun& run) {
  for (const char* level : {"gpu", "cpu", "memory", "node"}) {
    const DocumentJson& one = json_at(json_at(run.energy, "levels"), level);
    if (const auto joules = number_at(one, "joules"))
      run.cost.joules[level] = *joules;
    else if (run.energy.is_object())
      run.missing.push_back(
          fmt::format("{}: energy of level {}: {}", run.run.name, level, text_at(one, "reason")));
  }
  if (const auto joules = number_at(json_at(run.energy, "facility"), "joules"))
    run.cost.joules["facility"] = *joules;
}

// Stages of other runs, on which the model stands, that were not given.
void find_unnamed_ancestors(std::vector<ReadRun>& runs) {
  ReadRun& last = runs.back();
  for (const DocumentJson& stage : json_at(last.history, "stages")) {
    const std::string name = text_at(stage, "run");
    const bool given = std::any_of(runs.begin(), runs.end(), [&](const ReadRun& one) {
      return one.run.directory.filename() == name;
    });
    if (!given)
      last.missing.push_back(fmt::format(
          "the run {} (steps {} to {}), which {} continues, was not given: its "
          "compute and energy are not in the sums",
          name, count_at(stage, "first_step"), count_at(stage, "last_step"), last.run.name));
  }
  for (ReadRun& run : runs)
    if (const std::string init = run.value("model.init"); !init.empty())
      run.missing.push_back(
          fmt::format("{} starts from the weights in {}: what was spent on them is not known to it",
                      run.run.name, init));
}

ReadRun read(const DocumentedRun& given) {
  ReadRun run{.run = given};
  run.config = tracked_config(given.directory);
  if (run.config.empty())
    run.missing.push_back(fmt::format("{}: no readable config.yaml", given.name));
  run.energy = read_or_note(run, "energy.json");
  run.layout = read_or_note(run, "layout.json");
  run.data = read_or_note(run, "data.json");
  GoodputHistory history = read_goodput_history(given.directory);
  run.goodput = std::move(history.goodput);
  if (run.goodput.attempts().empty())
    run.missing.push_back(
        fmt::format("{}: no readable goodput.jsonl {}", given.name, history.problem));
  if (!given.facts.problem.empty())
    run.missing.push_back(fmt::format("{}: its compute: {}", given.name, given.facts.problem));
  run.checkpoint = newest_checkpoint(given.directory);
  if (run.checkpoint.empty())
    run.missing.push_back(fmt::format("{}: no complete checkpoint", given.name));
  else
    run.history = read_json_object(
        given.directory / "checkpoints" / "state" / run.checkpoint.filename() / "history.json",
        kMostJson);
  count_compute(run);
  count_time(run);
  count_energy(run);
  return run;
}

// A sum is known if every run knows its part.
Cost sum_of(const std::vector<ReadRun>& runs) {
  Cost sum{.days = 0.0, .hardware_days = 0.0, .flop = 0.0};
  const auto add = [](std::optional<double>& to, const std::optional<double>& more) {
    to = to && more ? std::optional(*to + *more) : std::nullopt;
  };
  sum.joules = runs.front().cost.joules;
  for (auto& [level, joules] : sum.joules) joules = 0;
  for (const ReadRun& run : runs) {
    add(sum.days, run.cost.days);
    add(sum.hardware_days, run.cost.hardware_days);
    add(sum.flop, run.cost.flop);
    sum.gpus = std::max(sum.gpus, run.cost.gpus);
    sum.tokens += run.cost.tokens;
    std::erase_if(sum.joules,
                  [&](const auto& level) { return !run.cost.joules.contains(level.first); });
    for (auto& [level, joules] : sum.joules) joules += run.cost.joules.at(level);
  }
  return sum;
}

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts)
    if (!part.empty()) text += (text.empty() ? "" : ", ") + part;
  return text;
}

// The values of a list in the configuration: data.train[0].name, data.train[1].name, …
std::string names_of(const ReadRun& run, const std::string& list, const std::string& key) {
  std::vector<std::string> names;
  for (std::size_t i = 0;; ++i) {
    const auto found = run.config.find(fmt::format("{}[{}].{}", list, i, key));
    if (found == run.config.end()) return joined(names);
    names.push_back(found->second);
  }
}

class Form {
 public:
  explicit Form(const std::vector<ReadRun>& runs)
      : runs_(runs), last_(runs.back()), sum_(sum_of(runs)) {}

  // Each row has its section, key and question, the answer and its text for people, both null if
  // nothing says it, and the file or method that it is from.
  DocumentJson rows() {
    identity();
    architecture();
    design();
    cost();
    energy();
    data();
    hardware();
    return std::move(rows_);
  }

 private:
  void add(const char* section, const char* key, const char* question, const Cell& answer,
           std::string from) {
    rows_.push_back({{"section", section},
                     {"key", key},
                     {"question", question},
                     {"answer", answer.value},
                     {"text", answer.text ? DocumentJson(*answer.text) : answer.value},
                     {"from", std::move(from)}});
  }
  // A text of the configuration; missing if no key says it.
  void add_keys(const char* section, const char* key, const char* question,
                const std::vector<std::pair<std::string, std::string>>& named) {
    std::vector<std::string> parts;
    for (const auto& [title, name] : named)
      if (const std::string value = last_.value(name); !value.empty())
        parts.push_back(title.empty() ? value : title + " " + value);
    add(section, key, question, Cell::or_missing(joined(parts)), "config.yaml");
  }

  void identity() {
    const char* const s = "Model";
    add(s, "name", "name of the model", last_.run.directory.filename().string(),
        "the run directory");
    const std::string version = last_.checkpoint.filename().string();
    add(s, "version", "version", Cell::or_missing(version), "checkpoints/");
    const FileText sums = read_run_file(last_.checkpoint / "checksums.json", kMostJson);
    const bool has_sums = !last_.checkpoint.empty() && !sums.text.empty();
    add(s, "sha256_of_checksums", "hash: SHA-256 of its checksums.json, which lists all files",
        has_sums ? Cell(sha256_hex(sums.text)) : Cell::missing(),
        "checkpoints/" + version + "/checksums.json");
    std::vector<std::string> origins;
    for (const ReadRun& run : runs_)
      for (const char* key : {"model.init", "run.from"})
        if (const std::string value = run.value(key); !value.empty()) origins.push_back(value);
    const bool known = !last_.config.empty();
    add(s, "derived_from", "weights or runs that it starts from",
        !origins.empty() ? Cell(joined(origins))
        : known          ? Cell("none")
                         : Cell::missing(),
        "model.init and run.from of config.yaml");
  }

  void architecture() {
    const char* const s = "Architecture";
    const ModelFacts& facts = last_.run.facts;
    add_keys(s, "architecture", "architecture",
             {{"", "model.family"},
              {"layers", "model.layers"},
              {"hidden size", "model.hidden_size"},
              {"heads", "model.heads"},
              {"key-value heads", "model.kv_heads"},
              {"MLP size", "model.ffn_size"},
              {"experts", "model.experts.count"},
              {"experts per token", "model.experts.chosen"},
              {"vocabulary", "model.vocab_size"}});
    const auto count = [&](const char* key, const char* question, std::int64_t number) {
      if (number > 0)
        add(s, key, question, Cell(number, format_count(static_cast<double>(number))),
            "config.yaml");
    };
    count("parameters", "parameters", facts.parameters);
    if (facts.active != facts.parameters)
      count("active_parameters", "parameters that a token uses", facts.active);
    if (facts.trained != facts.parameters)
      count("trained_parameters", "parameters that were trained", facts.trained);
    const std::string labels = last_.value("model.labels");
    const bool classifies = !labels.empty() && labels != "[]";
    const std::string input = fmt::format("text, at most {} tokens", facts.context);
    add(s, "input", "input", Cell::or_missing(facts.context > 0 ? input : ""), "config.yaml");
    add(s, "output", "output", classifies ? "one of the labels " + labels : std::string("text"),
        "config.yaml");
  }

  void design() {
    const char* const s = "Training";
    add_keys(s, "objective", "objective", {{"", "objective.kind"}});
    add_keys(s, "optimizer", "optimizer",
             {{"", "optimizer.kind"},
              {"learning rate", "optimizer.lr"},
              {"to", "optimizer.min_lr"},
              {"schedule", "optimizer.schedule"},
              {"warm-up steps", "optimizer.warmup_steps"},
              {"weight decay", "optimizer.weight_decay"}});
    add_keys(s, "batch", "batch",
             {{"sequences", "batch.global"}, {"tokens each", "data.sequence_length"}});
    add_keys(s, "precision", "precision", {{"", "train.precision"}, {"fp8", "train.fp8.recipe"}});
    add(s, "tokens", "training tokens",
        sum_.tokens > 0 ? Cell(sum_.tokens, format_count(sum_.tokens)) : Cell::missing(),
        "metrics.jsonl: positions, padding included; a repeated step counts once");
  }

  static std::string against(double flop, double threshold, const char* name) {
    return fmt::format("{} 10^{:.0f} ({})", flop < threshold ? "below" : "at or above",
                       std::log10(threshold), name);
  }

  void cost() {
    const char* const s = "Compute and time";
    const auto days = [&](const char* key, const char* question, const std::optional<double>& value,
                          const char* from) {
      add(s, key, question, value ? Cell(*value, fmt::format("{:.4g}", *value)) : Cell::missing(),
          from);
    };
    days("training_days", "days of training", sum_.days,
         "goodput.jsonl: from the first launch to the end of each run, with pauses");
    days("hardware_days", sum_.gpus > 0 ? "GPU-days" : "node-days (no GPU was used)",
         sum_.hardware_days, "goodput.jsonl: time in attempts × GPUs, energy.json or layout.json");
    add(s, "flop", "training compute in FLOP",
        sum_.flop ? Cell(*sum_.flop, fmt::format("{:.3g}", *sum_.flop)) : Cell::missing(),
        "training tokens × FLOP of the matmuls and of causal attention per token (2 per "
        "multiply-add, backward twice forward); without recomputation and repeated steps");
    if (sum_.flop)
      add(s, "thresholds", "its place among the thresholds of the AI Act and its guidelines",
          against(*sum_.flop, kGeneralPurposeFlop, "general-purpose") + ", " +
              against(*sum_.flop, kSystemicFlop, "systemic risk"),
          "the FLOP above");
    const ModelFacts& facts = last_.run.facts;
    if (facts.reading_flops_per_token > 0)
      add(s, "inference_flop_per_token", "inference compute in FLOP per token",
          Cell(facts.reading_flops_per_token, fmt::format("{:.3g}", facts.reading_flops_per_token)),
          fmt::format("forward over a text of {} tokens, divided by them", facts.context));
  }

  void energy() {
    const char* const s = "Energy";
    const std::pair<const char*, const char*> levels[] = {
        {"gpu", "energy in MWh: GPUs only"},
        {"cpu", "energy in MWh: CPUs only"},
        {"memory", "energy in MWh: memory only"},
        {"node", "energy in MWh: whole nodes, without network, storage and cooling"},
        {"facility", "energy in MWh: measured level × PUE"}};
    for (const auto& [level, question] : levels) {
      const auto found = sum_.joules.find(level);
      add(s, level, question,
          found == sum_.joules.end()
              ? Cell::missing()
              : Cell(found->second / kMWh_J, fmt::format("{:.4g}", found->second / kMWh_J)),
          joined(methods(level)));
    }
  }
  // How each run measured a level.
  std::vector<std::string> methods(const std::string& level) const {
    std::vector<std::string> all;
    for (const ReadRun& run : runs_) {
      std::string method;
      const DocumentJson& one = json_at(json_at(run.energy, "levels"), level.c_str());
      if (level == "facility") {
        if (const auto pue = number_at(json_at(run.energy, "facility"), "pue"))
          method = fmt::format("PUE {:.4g}", *pue);
      } else if (number_at(one, "joules")) {
        method =
            fmt::format("{} {}, {:.1f} % of the time of the nodes", text_at(one, "source"),
                        text_at(one, "kind"), 100 * number_at(one, "time_measured").value_or(0));
      }
      if (method.empty()) method = "not measured in " + run.run.name;
      if (std::find(all.begin(), all.end(), method) == all.end()) all.push_back(method);
    }
    return all;
  }

  void data() {
    const char* const s = "Data";
    std::vector<std::string> sources;
    std::set<std::string> paths;
    double bytes = 0, files = 0;
    for (const ReadRun& run : runs_) {
      sources.push_back(names_of(run, "data.train", "name"));
      for (const DocumentJson& file : json_at(run.data, "files")) {
        if (!paths.insert(text_at(file, "path")).second) continue;
        bytes += number_at(file, "bytes").value_or(0);
        files += 1;
      }
    }
    sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
    add(s, "sources", "sources", Cell::or_missing(joined(sources)), "data.train of config.yaml");
    add(s, "files", "files and their bytes",
        files > 0 ? Cell(bytes, fmt::format("{:.0f} files, {}", files, format_bytes(bytes)))
                  : Cell::missing(),
        "data.json, which has the hash of each file");
    add_keys(s, "tokenizer", "tokenizer", {{"", "data.tokenizer"}});
  }

  void hardware() {
    const char* const s = "Hardware and software";
    const std::string machine = text_at(last_.energy, "machine");
    add(s, "machine", "machine", Cell::or_missing(machine), "energy.json");
    add(s, "device", "device",
        Cell::or_missing(
            joined({text_at(last_.energy, "gpu_model"), text_at(last_.layout, "device")})),
        "energy.json, layout.json");
    const auto nodes = json_at(last_.layout, "nodes").size();
    const auto ranks = number_at(last_.layout, "ranks");
    add(s, "size", "size of the job",
        ranks
            ? Cell(format_number(static_cast<std::int64_t>(std::clamp(*ranks, 0.0, 9e15)), "rank") +
                   " on " + format_number(static_cast<std::int64_t>(nodes), "node"))
            : Cell::missing(),
        "layout.json");
    const std::string version = text_at(last_.energy, "version");
    add(s, "software", "software", version.empty() ? Cell::missing() : Cell("Kintsugi " + version),
        "energy.json");
  }

  const std::vector<ReadRun>& runs_;
  const ReadRun& last_;
  Cost sum_;
  DocumentJson rows_ = DocumentJson::array();
};

DocumentJson runs_rows(const std::vector<ReadRun>& runs) {
  DocumentJson rows = DocumentJson::array();
  const auto or_null = [](const std::optional<double>& value) {
    return value ? DocumentJson(*value) : DocumentJson(nullptr);
  };
  const auto mwh = [](const Cost& cost, const char* level) {
    const auto found = cost.joules.find(level);
    return found == cost.joules.end() ? DocumentJson(nullptr)
                                      : DocumentJson(found->second / kMWh_J);
  };
  for (const ReadRun& run : runs)
    rows.push_back({{"run", run.run.name},
                    {"state", run.run.summary.state},
                    {"tokens", run.cost.tokens},
                    {"days", or_null(run.cost.days)},
                    {"hardware_days", or_null(run.cost.hardware_days)},
                    {"flop", or_null(run.cost.flop)},
                    {"gpu_mwh", mwh(run.cost, "gpu")},
                    {"node_mwh", mwh(run.cost, "node")}});
  return rows;
}

// The newest value of each validation and task of the last run.
DocumentJson evaluations_of(const ReadRun& run) {
  std::map<std::string, std::pair<double, double>> newest;  // value, step
  try {
    visit_records(run.run.directory / "metrics.jsonl", [&](const RecordValues& values) {
      for (const RecordValue& value : values)
        if (value.name.starts_with("valid") || value.name.starts_with("eval."))
          if (const auto number = value.number())
            newest[value.name] = {*number, number_of(values, "step").value_or(0)};
    });
  } catch (const UserError&) {  // count_compute has noted it
  }
  DocumentJson rows = DocumentJson::array();
  for (const auto& [name, result] : newest)
    rows.push_back({{"metric", name}, {"value", result.first}, {"step", result.second}});
  return rows;
}

std::string evaluations_markdown(const DocumentJson& rows) {
  Table table({Column::text("metric"), Column::number("value", "", "{:.4g}"),
               Column::number("step", "", "{:.0f}")});
  for (const DocumentJson& row : rows)
    table.add({row["metric"], row["value"].get<double>(), row["step"].get<double>()});
  return table.empty() ? "No validation or task was evaluated in the run.\n" : table.markdown();
}

std::string list_markdown(const DocumentJson& list) {
  std::string text;
  for (const DocumentJson& one : list) text += "- " + markdown_text(one.get<std::string>()) + "\n";
  return text.empty() ? "- nothing\n" : text;
}

// The answers of a section, or of all of them, as tables.
std::string answers_markdown(const DocumentJson& rows, std::string_view only = "") {
  std::string text, section;
  for (std::size_t begin = 0; begin < rows.size();) {
    section = rows[begin]["section"];
    Table table({Column::text("asked"), Column::text("answer"), Column::text("from")}, "not known");
    for (; begin < rows.size() && rows[begin]["section"] == section; ++begin) {
      const DocumentJson& row = rows[begin];
      table.add({row["question"], row["text"].is_null() ? Cell::missing() : Cell(row["text"]),
                 row["from"]});
    }
    if (only.empty() || only == section)
      text += fmt::format("\n## {}\n\n{}", section, table.markdown());
  }
  return text;
}

}  // namespace

DocumentJson model_documentation(const std::vector<DocumentedRun>& given) {
  std::vector<ReadRun> runs;
  for (const DocumentedRun& run : given) runs.push_back(read(run));
  find_unnamed_ancestors(runs);
  DocumentJson not_found = DocumentJson::array();
  for (const ReadRun& run : runs)
    for (const std::string& one : run.missing) not_found.push_back(one);
  return {{"model", runs.back().run.directory.filename().string()},
          {"written_by", fmt::format("kintsugi {}", program_version())},
          {"rows", Form(runs).rows()},
          {"runs", runs_rows(runs)},
          {"evaluations", evaluations_of(runs.back())},
          {"not_found", std::move(not_found)},
          {"to_be_added", std::vector<std::string>(std::begin(kToBeAdded), std::end(kToBeAdded))}};
}

std::string documentation_markdown(const DocumentJson& documentation) {
  Table runs(
      {Column::text("run"), Column::text("state"), Column::number("tokens", "", "{:.0f}"),
       Column::number("days", "", "{:.4g}"), Column::number("GPU-days or node-days", "", "{:.4g}"),
       Column::number("FLOP", "", "{:.3g}"), Column::number("MWh of GPUs", "", "{:.4g}"),
       Column::number("MWh of nodes", "", "{:.4g}")},
      "not known");
  for (const DocumentJson& run : documentation["runs"])
    runs.add({run["run"], run["state"], run["tokens"], run["days"], run["hardware_days"],
              run["flop"], run["gpu_mwh"], run["node_mwh"]});
  return fmt::format(
      "# Model documentation of {}\n\nThe rows follow the model documentation form of the EU's "
      "Code of Practice for general-purpose AI models. The answers are what the run directories "
      "say ({}); what they do not say is listed at the end.\n{}\n## Evaluation\n\n{}\n## Runs\n\n"
      "{}\n## Not found in the runs\n\n{}\n## To be added\n\n{}",
      markdown_text(documentation["model"].get<std::string>()),
      documentation["written_by"].get<std::string>(), answers_markdown(documentation["rows"]),
      evaluations_markdown(documentation["evaluations"]), runs.markdown(),
      list_markdown(documentation["not_found"]), list_markdown(documentation["to_be_added"]));
}

std::string documented_model_card(const DocumentedRun& last, const DocumentJson& documentation) {
  const fs::path checkpoint = newest_checkpoint(last.directory);
  if (checkpoint.empty()) return "";
  const std::string card = read_run_file(checkpoint / "README.md", kMostCard).text;
  if (card.empty()) return "";
  return card + answers_markdown(documentation["rows"], "Compute and time") +
         answers_markdown(documentation["rows"], "Energy") + "\n## Evaluation\n\n" +
         evaluations_markdown(documentation["evaluations"]) + "\n## To be added\n\n" +
         list_markdown(documentation["to_be_added"]);
}

}  // namespace kintsugi
