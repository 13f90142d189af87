#include "data/chat/prepare_job.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <future>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>
#include <set>
#include <thread>

#include "core/error.h"
#include "data/chat/example.h"
#include "data/stores/store_output.h"
#include "data/stores/token_writer.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kMostLabels = 1 << 16;

bool is_integer(const std::string& text) {
  const std::size_t sign = text.starts_with('-') ? 1 : 0;
  return text.size() > sign && text.find_first_not_of("0123456789", sign) == std::string::npos;
}

// Compares decimal integers of any size, written without leading zeros.
bool smaller_number(const std::string& a, const std::string& b) {
  const bool minus = a.starts_with('-');
  if (minus != b.starts_with('-')) return minus;
  const bool below = a.size() != b.size() ? a.size() < b.size() : a < b;
  return a != b && below != minus;
}

std::string shortened(const std::string& label) {
  return label.size() > 60 ? label.substr(0, 57) + "…" : label;
}

// The classes of a labelled corpus: names, or numbers in decimal.
class LabelSet {
 public:
  LabelSet() = default;
  // In this order. A number in the data is the label of that name or, if no name is a number, the
  // position of a label from 0. UserError for a label that is empty or given twice.
  explicit LabelSet(const std::vector<std::string>& names) {
    for (const std::string& name : names)
      if (name.empty()) user_error("--labels has an empty label: separate them by single commas");
    if (names.size() > kMostLabels)
      user_error("--labels has {} labels, but there are at most {}", names.size(), kMostLabels);
    set_names(names);
    by_position_ = std::none_of(names.begin(), names.end(), is_integer);
  }

  // Collects a label; UserError for a name among numbers, or for too many labels.
  void add(const Example& example) {
    if (found_.contains(example.label) && numbers_ == example.label_is_number) return;
    if (!found_.empty() && numbers_ != example.label_is_number)
      user_error("label {} is a {}, but the labels before are {}: use one of the two, or --labels",
                 shortened(example.label), example.label_is_number ? "number" : "name",
                 numbers_ ? "numbers" : "names");
    numbers_ = example.label_is_number;
    found_.insert(example.label);
    if (found_.size() > kMostLabels)
      user_error("there are more than {} different labels: is 'label' the class of the text?",
                 kMostLabels);
  }

  // Orders the collected labels: names alphabetically, numbers by their value.
  void order() {
    std::vector<std::string> names(found_.begin(), found_.end());
    if (numbers_) std::sort(names.begin(), names.end(), smaller_number);
    set_names(std::move(names));
  }

  const std::vector<std::string>& names() const { return names_; }

  // UserError if it has none.
  std::int32_t id_of(const Example& example) const {
    if (const auto found = ids_.find(example.label); found != ids_.end()) return found->second;
    std::size_t position = names_.size();
    const std::string& text = example.label;
    if (by_position_ && example.label_is_number && !text.starts_with('-')) {
      std::from_chars(text.data(), text.data() + text.size(), position);
      if (position < names_.size()) return static_cast<std::int32_t>(position);
      user_error("label {} is out of range: there are {} labels, 0 to {}", shortened(text),
                 names_.size(), std::ssize(names_) - 1);
    }
    constexpr std::size_t kMostListed = 20;
    const std::vector<std::string> listed(
        names_.begin(),
        names_.begin() + static_cast<std::ptrdiff_t>(std::min(names_.size(), kMostListed)));
    user_error("unknown label '{}': the labels are {}{}", shortened(text), fmt::join(listed, ", "),
               names_.size() > kMostListed ? " …" : "");
  }

 private:
  void set_names(std::vector<std::string> names) {
    names_ = std::move(names);
    ids_.clear();
    for (std::size_t i = 0; i < names_.size(); ++i)
      if (!ids_.emplace(names_[i], static_cast<std::int32_t>(i)).second)
        user_error("--labels has '{}' twice: remove one", names_[i]);
  }

  std::vector<std::string> names_;
  std::map<std::string, std::int32_t, std::less<>> ids_;
  bool by_position_ = false;
  bool numbers_ = false;  // of the collected ones
  std::set<std::string> found_;
};

constexpr std::size_t kBadNamed = 5;

// What became of one line.
struct Outcome {
  enum class Kind : std::uint8_t { Written, Bad, TooLong, Untrained, Equal };
  Kind kind = Kind::Written;
  std::string error;  // Bad
  EncodedExample example;
  std::int32_t label = -1;
  bool truncated = false;
};

bool same_answers(const EncodedExample& pair) {
  const auto middle = pair.ids.begin() + static_cast<std::ptrdiff_t>(pair.ends[0]);
  return std::equal(pair.ids.begin(), middle, middle, pair.ids.end());
}

// The first token of a sequence is not predicted.
bool is_trained(const EncodedExample& example) {
  std::size_t begin = 0;
  for (const std::size_t end : example.ends) {
    const auto from = example.mask.begin() + static_cast<std::ptrdiff_t>(begin);
    const auto to = example.mask.begin() + static_cast<std::ptrdiff_t>(end);
    if (from == to || std::find(from + 1, to, 1) == to) return false;
    begin = end;
  }
  return true;
}

void truncate(EncodedExample& example, std::size_t length, TooLong rule) {
  const auto cut = [&](auto& values) {
    const auto surplus = static_cast<std::ptrdiff_t>(values.size() - length);
    rule == TooLong::KeepStart ? values.erase(values.end() - surplus, values.end())
                               : values.erase(values.begin(), values.begin() + surplus);
  };
  cut(example.ids);
  cut(example.mask);
  example.ends = {length};
}

class PrepareJob {
 public:
  PrepareJob(const Tokenizer& tokenizer, const PrepareOptions& options)
      : tokenizer_(tokenizer), options_(options) {}

  PrepareResult run(const PrepareProgress& progress) {
    check_inputs();
    StoreOutput output(options_.output, options_.overwrite);
    choose_kind();
    collect_labels();
    const int cores = static_cast<int>(std::thread::hardware_concurrency());
    const int threads = options_.threads > 0 ? options_.threads : std::max(1, cores);
    for (int i = 0; i < threads; ++i)
      encoders_.push_back(std::make_unique<ExampleEncoder>(tokenizer_, options_.format));
    TokenWriter::Options files;
    files.mask = !labelled();
    files.labels = labelled();
    TokenWriter writer(output.prefix(), token_type_for(tokenizer_.vocab_size()), files);
    write(writer, progress);
    if (result_.stopped) return result_;
    refuse_empty();
    output.publish(description(writer.finish()));
    return result_;
  }

 private:
  void check_inputs() const {
    if (options_.inputs.empty()) user_error("there are no input files");
    for (const fs::path& input : options_.inputs) {
      if (!fs::is_regular_file(input)) user_error("{} is not a regular file", input.string());
      if (!RecordReader::has_objects(input))
        user_error(
            "{} is not JSONL by its name: examples are lines of .jsonl, .ndjson or .json, or rows "
            "of .parquet",
            input.string());
      refuse_input_name(input, options_.output);
    }
    refuse_inputs_as_store(options_.output, options_.inputs);
  }

  void choose_kind() {
    if (options_.kind) {
      result_.kind = *options_.kind;
    } else {
      ExampleLines lines(options_.inputs, options_.skip_bad);
      const std::vector<ExampleLine> first = lines.next(1);
      if (first.empty()) user_error("the inputs contain no example");
      result_.kind = at_line(first[0], [&] { return kind_of_example(first[0].text); });
    }
    if (!labelled() && !options_.labels.empty())
      user_error("--labels is only for texts with labels, and these are examples of kind {}",
                 to_string(result_.kind));
    const bool cuts =
        options_.too_long == TooLong::KeepStart || options_.too_long == TooLong::KeepEnd;
    if (result_.kind == ExampleKind::Preference && cuts)
      user_error("--too-long: preference pairs are not cut: use drop or error");
    if (result_.kind == ExampleKind::Preference && options_.format.loss == ExampleLoss::All)
      user_error("--loss: preferences are about answers: use assistant or completion");
    if (result_.kind == ExampleKind::Chat && options_.format.chat == nullptr)
      user_error("the tokenizer has {}: give --template NAME ({})",
                 options_.format.settings.chat_template.empty()
                     ? "no chat template"
                     : "a chat template of an unknown format",
                 chat_format_names());
  }

  // Another pass over the inputs: the ids depend on all labels.
  void collect_labels() {
    if (!labelled()) return;
    if (!options_.labels.empty()) {
      labels_ = LabelSet(options_.labels);
    } else {
      ExampleLines lines(options_.inputs, options_.skip_bad);
      for (auto batch = lines.next(options_.batch_bytes); !batch.empty();
           batch = lines.next(options_.batch_bytes))
        for (const ExampleLine& line : batch) {
          try {
            at_line(line, [&] { labels_.add(parse_example(line.text, result_.kind, false)); });
          } catch (const UserError&) {
            if (!options_.skip_bad) throw;
          }
        }
      labels_.order();
    }
    result_.labels = labels_.names();
    result_.label_counts.resize(result_.labels.size());
  }

  void write(TokenWriter& writer, const PrepareProgress& progress) {
    ExampleLines lines(options_.inputs, options_.skip_bad);
    for (auto batch = lines.next(options_.batch_bytes); !batch.empty();
         batch = lines.next(options_.batch_bytes)) {
      for (const Outcome& outcome : encode_all(batch)) {
        count(outcome);
        if (outcome.kind == Outcome::Kind::Written) add(outcome, writer);
      }
      if (progress(result_.counts, lines.fraction_read())) continue;
      result_.stopped = true;
      return;
    }
    result_.skipped = lines.skipped();
  }

  std::vector<Outcome> encode_all(const std::vector<ExampleLine>& lines) {
    std::vector<Outcome> outcomes(lines.size());
    const std::size_t threads = encoders_.size();
    std::vector<std::future<void>> running;
    for (std::size_t thread = 0; thread < threads; ++thread)
      running.push_back(std::async(std::launch::async, [&, thread] {
        for (std::size_t i = thread; i < lines.size(); i += threads)
          outcomes[i] = encode_line(lines[i], *encoders_[thread]);
      }));
    for (auto& one : running) one.get();
    return outcomes;
  }

  Outcome encode_line(const ExampleLine& line, ExampleEncoder& encoder) const {
    Outcome outcome;
    try {
      at_line(line, [&] {
        const Example example = parse_example(line.text, result_.kind, options_.format.as_chat);
        if (labelled()) outcome.label = labels_.id_of(example);
        outcome.example = encoder.encode(example);
        if (outcome.example.ids.empty()) user_error("the example has no tokens");
        fit(outcome);
      });
    } catch (const UserError& error) {
      outcome = {};
      outcome.kind = Outcome::Kind::Bad;
      outcome.error = error.what();
    }
    return outcome;
  }

  void fit(Outcome& outcome) const {
    EncodedExample& example = outcome.example;
    const auto limit = static_cast<std::size_t>(options_.max_length);
    if (result_.kind == ExampleKind::Preference && same_answers(example)) {
      outcome.kind = Outcome::Kind::Equal;
      return;
    }
    if (limit > 0 && example.ids.size() > limit) {
      if (options_.too_long == TooLong::Error)
        user_error(
            "the example has {} tokens, more than --max-length {}: shorten it, or choose another "
            "--too-long",
            example.ids.size(), limit);
      if (options_.too_long == TooLong::Drop) {
        outcome.kind = Outcome::Kind::TooLong;
        return;
      }
      truncate(example, limit, options_.too_long);
      outcome.truncated = true;
    }
    if (!labelled() && !is_trained(example)) outcome.kind = Outcome::Kind::Untrained;
  }

  void count(const Outcome& outcome) {
    PrepareCounts& counts = result_.counts;
    ++counts.read;
    switch (outcome.kind) {
      case Outcome::Kind::Bad:
        if (!options_.skip_bad) user_error("{}", outcome.error);
        if (result_.first_bad.size() < kBadNamed) result_.first_bad.push_back(outcome.error);
        ++counts.bad;
        return;
      case Outcome::Kind::TooLong:
        ++counts.too_long;
        return;
      case Outcome::Kind::Untrained:
        ++counts.untrained;
        return;
      case Outcome::Kind::Equal:
        ++counts.equal;
        return;
      case Outcome::Kind::Written:
        break;
    }
    ++counts.written;
    counts.truncated += outcome.truncated ? 1 : 0;
    counts.tokens += std::ssize(outcome.example.ids);
    counts.longest = std::max<std::int64_t>(counts.longest, std::ssize(outcome.example.ids));
    counts.text_bytes += outcome.example.text_bytes;
    if (labelled()) ++result_.label_counts[static_cast<std::size_t>(outcome.label)];
    counts.trained += labelled() ? 1
                                 : std::accumulate(outcome.example.mask.begin(),
                                                   outcome.example.mask.end(), std::int64_t{0});
  }

  void add(const Outcome& outcome, TokenWriter& writer) {
    const std::span<const std::int32_t> ids(outcome.example.ids);
    const std::span<const std::uint8_t> mask(outcome.example.mask);
    std::size_t begin = 0;
    for (const std::size_t end : outcome.example.ends) {
      if (begin > 0) writer.end_sequence();
      writer.append(ids.subspan(begin, end - begin), labelled() ? std::span<const std::uint8_t>()
                                                                : mask.subspan(begin, end - begin));
      begin = end;
    }
    writer.end_document(outcome.label);
  }

  void refuse_empty() const {
    const PrepareCounts& counts = result_.counts;
    if (counts.written > 0) return;
    user_error(
        "no example is left of {}: {} bad, {} longer than --max-length, {} without a trained "
        "token, {} with equal answers{}",
        counts.read, counts.bad, counts.too_long, counts.untrained, counts.equal,
        result_.first_bad.empty() ? "" : "; the first bad one: " + result_.first_bad[0]);
  }

  std::string made_from() const {
    using Json = nlohmann::ordered_json;
    constexpr std::array<const char*, 3> kLosses = {"assistant", "completion", "all"};
    constexpr std::array<const char*, 4> kRules = {"drop", "keep_start", "keep_end", "error"};
    Json inputs = Json::array();
    for (const fs::path& input : options_.inputs)
      inputs.push_back({fs::absolute(input).lexically_normal().string(), fs::file_size(input)});
    Json json = {
        {"command", "prepare-chat"}, {"inputs", inputs}, {"kind", to_string(result_.kind)}};
    if (options_.format.chat != nullptr) json["template"] = options_.format.chat->name;
    if (!labelled()) json["loss"] = kLosses[static_cast<std::size_t>(options_.format.loss)];
    if (options_.max_length > 0) {
      json["max_length"] = options_.max_length;
      json["too_long"] = kRules[static_cast<std::size_t>(options_.too_long)];
    }
    json["dropped"] = result_.counts.read - result_.counts.written;
    return json.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

  StoreInfo description(const StoreInfo::Shard& shard) const {
    StoreInfo info;
    info.tokenizer = tokenizer_.fingerprint();
    info.tokenizer_description = tokenizer_.description();
    info.vocab_size = tokenizer_.vocab_size();
    info.bytes = result_.counts.text_bytes;
    info.tokens = result_.counts.tokens;
    info.documents = result_.counts.written;
    info.shards = {shard};
    info.kind = to_string(result_.kind);
    info.labels = result_.labels;
    if (options_.format.chat != nullptr && !labelled())
      info.chat_format = options_.format.chat->name;
    info.longest = result_.counts.longest;
    info.made_from = made_from();
    return info;
  }

  bool labelled() const { return result_.kind == ExampleKind::Classification; }

  const Tokenizer& tokenizer_;
  const PrepareOptions& options_;
  LabelSet labels_;
  std::vector<std::unique_ptr<ExampleEncoder>> encoders_;  // one per thread
  PrepareResult result_;
};

}  // namespace

TooLong parse_too_long(std::string_view name) {
  if (name == "drop") return TooLong::Drop;
  if (name == "keep_start") return TooLong::KeepStart;
  if (name == "keep_end") return TooLong::KeepEnd;
  if (name == "error") return TooLong::Error;
  user_error("--too-long is '{}': use drop, keep_start, keep_end or error", name);
}

PrepareResult prepare_examples(const Tokenizer& tokenizer, const PrepareOptions& options,
                               const PrepareProgress& progress) {
  return PrepareJob(tokenizer, options).run(progress);
}

}  // namespace kintsugi
