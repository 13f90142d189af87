// Runs that start from the weights of another model (model.init).
#include "train/initial_weights.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstring>
#include <fstream>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <numeric>

#include "core/file.h"
#include "data/tokenizers/tokenizer_formats.h"
#include "model/initialize.h"
#include "support/captured_log.h"
#include "support/errors.h"
#include "support/loaded_model.h"
#include "support/parallel_run.h"
#include "support/paths.h"
#include "support/small_run.h"
#include "support/token_files.h"
#include "support/word_tokenizer.h"
#include "tensor/safetensors.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

constexpr std::int64_t kStoredVocabulary = 67, kGrownVocabulary = 299;

fs::path fixture(const std::string& name) { return fs::path(test_data_directory()) / name; }

// Tokens of a sequence and the one after it.
std::vector<std::int32_t> some_tokens(std::int64_t sequence, std::int64_t length) {
  std::vector<std::int32_t> tokens;
  std::uint32_t state = 77u + static_cast<std::uint32_t>(sequence);
  for (std::int64_t i = 0; i <= length; ++i) {
    state = state * 1664525u + 1013904223u;
    tokens.push_back(static_cast<std::int32_t>((state >> 16) % kStoredVocabulary));
  }
  return tokens;
}

// What `kintsugi eval` computes: the sum of the losses of all tokens after the first.
double eval_loss_sum(const fs::path& directory, const std::vector<std::int32_t>& tokens) {
  double sum = 0;
  for (const double value : LoadedModel(directory).log_probabilities(tokens)) sum -= value;
  return sum;
}

// ---- every layout

struct InitCase {
  const char* name;
  RankLayout layout;
};
const InitCase kInitLayouts[] = {{"one_rank", {}},
                                 {"tp2", {.tp = 2}},
                                 {"pp2", {.pp = 2}},
                                 {"dp2", {.dp = 2}},
                                 {"zero3", {.dp = 2, .zero = 3}},
                                 {"cp2", {.cp = 2}},
                                 {"tp2_dp2", {.dp = 2, .tp = 2}}};

class InitialLayout : public testing::TestWithParam<InitCase> {};

TEST_P(InitialLayout, TheFirstLossIsThatOfEval) {
  constexpr std::int64_t kSequences = 4, kLength = 16;
  const RankLayout& layout = GetParam().layout;
  for (const char* name : {"llama", "llama-sharded", "gpt2", "qwen3", "bloom", "olmo3", "retnet",
                           "mixtral", "dots1"}) {
    const fs::path directory = fixture(name);
    double expected = 0;
    for (std::int64_t i = 0; i < kSequences; ++i)
      expected += eval_loss_sum(directory, some_tokens(i, kLength));
    expected /= kSequences * kLength;
    const Training training{.model = read_hf_config(directory / "config.json"),
                            .precision = DType::F32,
                            .sequences = kSequences,
                            .length = kLength};
    const auto first_loss = [&](const Member& member) {
      load_initial_weights(directory, member.engine);
      const std::int64_t each = kSequences / layout.dp, first = each * member.groups.coordinates.dp;
      std::vector<std::int32_t> ids, targets;
      for (std::int64_t i = first; i < first + each; ++i) {
        const auto tokens = some_tokens(i, kLength);
        ids.insert(ids.end(), tokens.begin(), tokens.end() - 1);
        targets.insert(targets.end(), tokens.begin() + 1, tokens.end());
      }
      const double loss =
          member.engine.step({ids, targets}, {.lr = 1e-3, .first_sequence = first}).loss;
      if (member.groups.is_first()) {
        EXPECT_NEAR(loss, expected, 1e-6) << name;
      }
    };
    on_ranks(layout, training, first_loss, false);
  }
}

// The weights of a fixture as doubles, in the order of its file.
std::vector<double> stored_values(const SafetensorsModel& files, const std::string& name) {
  std::vector<double> values;
  const auto found = files.find(name);
  visit_float(*found.entry->dtype, [&]<class T>() {
    std::vector<T> stored(found.bytes().size() / sizeof(T));
    std::memcpy(stored.data(), found.bytes().data(), found.bytes().size());
    for (const T value : stored)
      values.push_back(static_cast<double>(static_cast<Accumulator<T>>(value)));
  });
  return values;
}

// Fails unless the weights are those of the files, and new rows of a table the mean of their
// subtokens' rows, or of all rows.
void expect_grown(const Outcome& outcome, const ParameterSet& whole, const SafetensorsModel& files,
                  const std::function<float(double)>& rounded,
                  const std::map<std::int64_t, std::vector<std::int64_t>>& subtokens = {}) {
  std::vector<std::int64_t> all(kStoredVocabulary);
  std::iota(all.begin(), all.end(), 0);
  for (const Parameter& parameter : whole.parameters()) {
    const auto stored = stored_values(files, parameter.name);
    const auto at = outcome.weights.begin() + parameter.offset;
    for (std::size_t i = 0; i < stored.size(); ++i)
      ASSERT_EQ(at[static_cast<std::ptrdiff_t>(i)], rounded(stored[i])) << parameter.name;
    if (parameter.global[0] != kGrownVocabulary) continue;
    const std::int64_t width = parameter.global[1];
    for (std::int64_t row = kStoredVocabulary; row < kGrownVocabulary; ++row) {
      const auto found = subtokens.find(row);
      const auto& rows = found == subtokens.end() ? all : found->second;
      for (std::int64_t column = 0; column < width; ++column) {
        double sum = 0;
        for (const std::int64_t old : rows)
          sum += stored[static_cast<std::size_t>(old * width + column)];
        ASSERT_EQ(at[row * width + column], rounded(sum / static_cast<double>(rows.size())))
            << parameter.name << " row " << row;
      }
    }
  }
}

// A byte-level tokenizer whose ids 256 … 260 are "12", "1207", "1a", the first byte of a character
// of two bytes with a "7" before it, and a special token.
nlohmann::json grown_tokenizer() {
  nlohmann::json json = nlohmann::json::parse(byte_tokenizer_json());
  json["model"]["vocab"]["12"] = 256;
  json["model"]["vocab"]["07"] = 261;
  json["model"]["vocab"]["1207"] = 257;
  json["model"]["vocab"]["1a"] = 258;
  json["model"]["vocab"]["7\u00c3"] = 259;  // byte 0xC3
  for (const char* merge : {"1 2", "0 7", "12 07", "1 a", "7 \u00c3"})
    json["model"]["merges"].push_back(merge);
  json["added_tokens"].push_back({{"id", 260},
                                  {"content", "<|new|>"},
                                  {"special", true},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false}});
  return json;
}

// The old tokenizer is that of bytes, of which the files have rows 0 … 66. Every other token, and
// rows beyond the tokenizer, have no subtokens.
TEST_P(InitialLayout, NewRowsAreTheMeanOfTheirSubtokens) {
  const TemporaryDirectory directory;
  directory.write("new.json", grown_tokenizer().dump());
  const auto tokenizer = load_tokenizer((directory / "new.json").string());
  for (const char* name : {"llama", "llama-tied", "gpt2", "llama-bf16"}) {
    const fs::path source = directory / name;
    fs::copy(fixture(name), source);
    std::ofstream(source / "tokenizer.json") << byte_tokenizer_json();
    Training training{.model = read_hf_config(source / "config.json"),
                      .precision = DType::F32,
                      .sequences = 2,
                      .length = 8};
    training.model.vocab_size = kGrownVocabulary;
    Outcome outcome;
    const auto collect = [&](const Member& member) {
      const SubtokenRows subtokens =
          subtokens_of_new_rows(source, kStoredVocabulary, kGrownVocabulary, *tokenizer);
      EXPECT_THAT(load_initial_weights(source, member.engine, {.subtokens = subtokens}).description,
                  HasSubstr("3 new rows are the mean of their subtokens, 229 of all old ones"));
      train(member, 1, 0, outcome);  // no steps
    };
    on_ranks(GetParam().layout, training, collect, false);
    expect_grown(outcome, ParameterSet(training.model), SafetensorsModel(source),
                 [](double value) { return static_cast<float>(value); },
                 {{256, {'1', '2'}}, {257, {'1', '2', '0', '7'}}, {261, {'0', '7'}}});
  }
}

TEST(Subtokens, FollowTheTextOfTheToken) {
  const TemporaryDirectory directory;
  directory.write("new.json", grown_tokenizer().dump());
  const auto tokenizer = load_tokenizer((directory / "new.json").string());
  EXPECT_THAT(user_error_of([&] { subtokens_of_new_rows(directory.path(), 256, 262, *tokenizer); }),
              AllOf(HasSubstr("has no tokenizer that can be read"), HasSubstr("use mean")));
  directory.write("tokenizer.json", byte_tokenizer_json());
  using Rows = SubtokenRows;
  // Bytes that are no text alone are exact in a byte-level tokenizer.
  EXPECT_EQ(
      subtokens_of_new_rows(directory.path(), 256, 264, *tokenizer),
      (Rows{{'1', '2'}, {'1', '2', '0', '7'}, {'1', 'a'}, {'7', 0xC3}, {}, {'0', '7'}, {}, {}}));
  EXPECT_TRUE(subtokens_of_new_rows(directory.path(), 262, 262, *tokenizer).empty());
  // A tokenizer that drops the space of the first token: "▁B" is " B" inside a text.
  const fs::path tokenizers = fs::path(test_data_directory()) / "tokenizers";
  const auto spaced = load_tokenizer((tokenizers / "metaspace").string());
  bool found = false;
  for (std::int64_t id = 256; id < spaced->vocab_size() && !found; ++id) {
    std::string once;
    spaced->decode(std::vector{static_cast<std::int32_t>(id)}, once);
    if (spaced->bytes_of(static_cast<std::int32_t>(id)) != std::ssize(once) + 1) continue;
    found = true;
    const Rows rows = subtokens_of_new_rows(directory.path(), id, id + 1, *spaced);
    Rows expected(1, {' '});
    for (const char c : once) expected[0].push_back(static_cast<unsigned char>(c));
    EXPECT_EQ(rows, expected) << once;
  }
  EXPECT_TRUE(found);
}

// Old rows are those of the file. New rows are their mean. In a bf16 run both are rounded once
// more.
TEST_P(InitialLayout, ALargerVocabularyHasTheMeanInItsNewRows) {
  for (const char* name : {"llama", "llama-tied", "gpt2", "llama-bf16", "bloom-6heads"})
    for (const DType precision : {DType::F32, DType::BF16}) {
      if (GetParam().layout.pp > 1 && fixture(name).filename() == "bloom-6heads")
        continue;  // one layer
      const auto rounded = [&](double value) {
        const auto narrow = static_cast<float>(value);
        return precision == DType::F32 ? narrow : static_cast<float>(bf16(narrow));
      };
      Training training{.model = read_hf_config(fixture(name) / "config.json"),
                        .precision = precision,
                        .sequences = 2,
                        .length = 8};
      training.model.vocab_size = kGrownVocabulary;
      Outcome outcome;
      const auto collect = [&](const Member& member) {
        EXPECT_THAT(load_initial_weights(fixture(name), member.engine).description,
                    HasSubstr("grows from 67 to 299"));
        train(member, 1, 0, outcome);  // no steps
      };
      on_ranks(GetParam().layout, training, collect, false);
      expect_grown(outcome, ParameterSet(training.model), SafetensorsModel(fixture(name)), rounded);
    }
}
INSTANTIATE_TEST_SUITE_P(Layouts, InitialLayout, testing::ValuesIn(kInitLayouts),
                         [](const auto& info) { return std::string(info.param.name); });

// The master weights of a bf16 run are not rounded to bf16, on the device and offloaded.
TEST(InitialWeights, MasterWeightsHaveTheStoredPrecision) {
  const SafetensorsModel files(fixture("llama"));
  for (const bool offloaded : {false, true}) {
    const Training training{.model = read_hf_config(fixture("llama") / "config.json"),
                            .precision = DType::BF16,
                            .sequences = 2,
                            .length = 8,
                            .offload = {.on = offloaded}};
    int rounded = 0;
    const auto compare = [&](const Member& member) {
      load_initial_weights(fixture("llama"), member.engine);
      const OptimizerState& state = member.engine.optimizer().state();
      ASSERT_TRUE(state.has_master());
      for (const StateRange& segment : state.segments()) {
        std::vector<float> master(static_cast<std::size_t>(segment.range.size()));
        member.engine.backend().download(master.data(), state.master(segment));
        for (const Parameter& parameter : member.engine.parameters().parameters()) {
          if (parameter.bucket != segment.bucket) continue;
          const auto stored = stored_values(files, parameter.name);
          for (std::size_t i = 0; i < stored.size(); ++i) {
            const auto at = static_cast<std::size_t>(parameter.offset - segment.range.begin) + i;
            ASSERT_EQ(master[at], static_cast<float>(stored[i])) << parameter.name;
            if (static_cast<float>(bf16(master[at])) != master[at]) ++rounded;
          }
        }
      }
    };
    on_ranks({}, training, compare, false);
    EXPECT_GT(rounded, 1000) << "bf16 would have rounded these";
  }
}

// ---- runs

// A tokenizer with the vocabulary of the fixtures, and the files that a checkpoint needs.
class SavedWords final : public WordTokenizer {
 public:
  SavedWords() : WordTokenizer(kStoredVocabulary) {}
  std::unique_ptr<Tokenizer> clone() const override { return std::make_unique<SavedWords>(); }
  std::vector<File> files(std::int64_t) const override {
    return {{"tokenizer.json", "{}"}, {"tokenizer_config.json", "{}"}};
  }
};

class InitialRun : public testing::Test {
 protected:
  InitialRun() {
    std::vector<std::vector<std::int32_t>> documents;
    for (int i = 0; i < 40; ++i) documents.push_back(some_tokens(100 + i, 30));
    write_megatron((directory_ / "store").string(), TokenType::U16, documents);
  }
  // Copies a fixture, so that a test can damage or delete it.
  fs::path copy_of(const std::string& name) const {
    const fs::path copy = directory_ / name;
    fs::copy(fixture(name), copy);
    fs::remove(copy / "expected.safetensors");
    return copy;
  }
  // Without `words`, the tokenizer is `bytes`, whose vocabulary is larger.
  RunConfig config(const std::string& model, const std::string& name,
                   const std::string& train = "steps: 4, checkpoint_every: 2, eval_every: 0",
                   bool words = true) const {
    RunConfig config = parse_run_config(
        fmt::format("run: {{dir: '{}'}}\nmodel: {{{}}}\n"
                    "data: {{train: [{{path: '{}'}}], sequence_length: 16, valid_fraction: 0}}\n"
                    "batch: {{global: 4, micro: 2}}\noptimizer: {{warmup_steps: 0}}\n"
                    "train: {{{}, keep_checkpoints: 0}}\n",
                    (directory_ / name).string(), model,
                    words ? (directory_ / "store").string() : text_, train),
        "run.yaml");
    if (words) config.loaded.tokenizer = std::make_shared<SavedWords>();
    return config;
  }
  static std::string run(const RunConfig& config) {
    const auto backend = make_cpu_backend(1);
    const CapturedLog log;
    Trainer(*backend, config).run(ResumeMode::Auto);
    return log.text();
  }
  // The error of a run that must not write anything.
  std::string refused(const std::string& model) const {
    const std::string error = user_error_of([&] { run(config(model, "refused")); });
    EXPECT_EQ(error.find('\n'), std::string::npos) << error;
    EXPECT_FALSE(fs::exists(directory_ / "refused"));
    return error;
  }
  static std::string init(const fs::path& directory) {
    return "init: '" + directory.string() + "'";
  }

  TemporaryDirectory directory_;
  std::string text_ = directory_.write("corpus.txt", small_corpus(100));
};

TEST_F(InitialRun, TheFirstLossIsThatOfEvalOnTheSameTokens) {
  for (const char* name : {"llama", "gpt2", "llama-yarn", "llama-fp16"}) {
    RunConfig c = config(init(fixture(name)), name);
    const RunData data(c);
    SampleReader reader(data.sample_options());
    SampleBatch batch(1, data.sample_options());
    double sum = 0;
    for (std::int64_t k = 0; k < 4; ++k) {
      std::vector<TokenRange> ranges;
      data.order().locate(k, ranges);
      reader.read(ranges, batch.row(0));
      std::vector<std::int32_t> tokens = batch.ids;
      tokens.push_back(batch.targets.back());
      sum += eval_loss_sum(fixture(name), tokens);
    }
    const std::string log = run(c);
    EXPECT_THAT(log, HasSubstr("starting from the weights in " + fixture(name).string()));
    std::ifstream metrics(directory_ / name / "metrics.jsonl");
    std::string line;
    std::getline(metrics, line);
    EXPECT_NEAR(nlohmann::json::parse(line).at("loss").get<double>(), sum / 64, 1e-6) << name;
  }
}

// The run continues from its own checkpoint, even if model.init no longer exists.
TEST_F(InitialRun, ContinuesBitForBitWithoutTheDirectory) {
  const struct {
    const char *model, *train;
    bool words;
  } cases[] = {{"llama", "steps: 5, checkpoint_every: 2, eval_every: 0", true},
               {"gpt2", "steps: 5, checkpoint_every: 2, eval_every: 0, precision: bf16", false}};
  for (const auto& [model, train, words] : cases) {
    const fs::path source = copy_of(model);
    const std::string whole = std::string("whole-") + model,
                      broken = std::string("broken-") + model;
    run(config(init(source), whole, train, words));
    const CheckpointPaths from{directory_ / whole / "checkpoints", "step-00000002"},
        to{directory_ / broken / "checkpoints", "step-00000002"};
    fs::create_directories(to.folder / "state");
    fs::copy(from.model(), to.model());
    fs::copy(from.state(), to.state());
    fs::remove_all(source);
    EXPECT_THAT(run(config(init(source), broken, train, words)),
                AllOf(HasSubstr("continuing from"), Not(HasSubstr("starting from the weights"))));
    for (const char* file : {"step-00000005/model.safetensors", "step-00000005/README.md",
                             "state/step-00000005/optimizer.safetensors"}) {
      std::string a = read_text_file(from.folder / file), b = read_text_file(to.folder / file);
      if (const auto at = b.find(broken); at != std::string::npos)
        b.replace(at, broken.size(), whole);
      EXPECT_TRUE(a == b) << model << " " << file;
    }
    // The configuration that the run wrote can be read without the directory, too.
    const fs::path written = directory_ / broken / "config.yaml";
    EXPECT_EQ(parse_run_config(read_text_file(written), "config.yaml").model_init, source.string());
  }
}

TEST_F(InitialRun, RecordsItsOrigin) {
  const std::string log = run(config(init(copy_of("llama")), "run"));
  const fs::path run_directory = directory_ / "run";
  EXPECT_THAT(read_text_file(run_directory / "config.yaml"),
              HasSubstr("init: " + (directory_ / "llama").string()));
  const std::string card = read_text_file(run_directory / "checkpoints/latest/README.md");
  EXPECT_THAT(card, AllOf(HasSubstr("trained from the weights of llama with Kintsugi"),
                          Not(HasSubstr(directory_.path().string()))));
  // A checkpoint and a run directory are models, too.
  const RunConfig next = config(init(run_directory), "next");
  EXPECT_THAT(run(next), HasSubstr("run/checkpoints/step-00000004"));
  EXPECT_EQ(initial_weights_name("runs/a/checkpoints/latest"), "a, latest");
  EXPECT_EQ(initial_weights_name("models/Llama-3.1-8B/"), "Llama-3.1-8B");
  // Another directory with the same model: reported like any other change.
  fs::copy(directory_ / "llama", directory_ / "other");
  EXPECT_THAT(run(config(init(directory_ / "other"), "run",
                         "steps: 5, checkpoint_every: 2, eval_every: 0")),
              HasSubstr(fmt::format("changed: model.init {0}/llama → {0}/other from step 5 on",
                                    directory_.path().string())));
  EXPECT_THAT(user_error_of([&] { run(config(init(fixture("llama2")), "run")); }),
              HasSubstr("holds another model than the configuration"));
}

TEST_F(InitialRun, ARunWithSubtokens) {
  const fs::path source = copy_of("llama");
  const std::string model = init(source) + ", new_tokens: subtokens";
  const std::string file = directory_.write("new.json", grown_tokenizer().dump());
  const auto configured = [&](const char* name) {
    RunConfig c = config(model, name);
    c.data.tokenizer = file;
    c.loaded.tokenizer.reset();
    return c;
  };
  EXPECT_THAT(user_error_of([&] { run(configured("none")); }),
              AllOf(HasSubstr("model.new_tokens is subtokens"), HasSubstr("no tokenizer")));
  EXPECT_FALSE(fs::exists(directory_ / "none"));
  std::ofstream(source / "tokenizer.json") << byte_tokenizer_json();
  EXPECT_THAT(run(configured("run")),
              HasSubstr("grows from 67 to 384, 3 new rows are the mean of their subtokens, 314 of "
                        "all old ones"));
  EXPECT_THAT(read_text_file(directory_ / "run/config.yaml"), HasSubstr("new_tokens: subtokens"));
  // Without a larger vocabulary there is nothing to do.
  EXPECT_THAT(run(config(init(fixture("llama")) + ", new_tokens: subtokens", "same")),
              Not(HasSubstr("grows")));
  EXPECT_THAT(refused("preset: llama-tiny, new_tokens: subtokens"),
              HasSubstr("model.new_tokens is only for model.init"));
  EXPECT_THAT(refused(init(source) + ", new_tokens: random"),
              AllOf(HasSubstr("run.yaml line 2: model.new_tokens: "), HasSubstr("subtokens")));
  EXPECT_THAT(refused(init(source) + ", new_tokens: [mean]"), HasSubstr("mean or subtokens"));
}

TEST_F(InitialRun, KeepsPositionsAndScalingOfTheWeights) {
  const RunConfig c = config(init(fixture("llama-yarn")), "run");
  const ModelConfig stored = read_hf_config(fixture("llama-yarn") / "config.json");
  EXPECT_EQ(c.model, stored);
  const RunConfig other = config(init(fixture("llama-yarn")) +
                                     ", rope_scaling: null, norm_eps: 1e-4, "
                                     "max_positions: 512, vocab_size: 128",
                                 "run");
  EXPECT_FALSE(other.model.rope_scaling);
  EXPECT_EQ(other.model.max_positions, 512);
  EXPECT_EQ(other.model.vocab_size, 128);
  EXPECT_EQ(other.model.norm_eps, 1e-4);
  const RunConfig read_back = parse_run_config(to_yaml(other), "config.yaml");
  EXPECT_EQ(read_back.model, other.model);
  EXPECT_EQ(read_back.model_init, other.model_init);
}

TEST_F(InitialRun, NonsenseIsRefusedBeforeAnythingIsWritten) {
  EXPECT_THAT(refused("init: no/such/place"),
              AllOf(HasSubstr("run.yaml line 2: model.init: there is no directory no/such/place")));
  EXPECT_THAT(refused("init: [a]"), HasSubstr("model.init is a name, not a list"));
  EXPECT_THAT(refused(init(fixture("llama")) + ", preset: llama-tiny"),
              HasSubstr("model.preset and model.init exclude each other"));
  EXPECT_THAT(refused(init(fixture("llama")) + ", config: a.json"),
              HasSubstr("model.config and model.init exclude each other"));
  for (const char* field : {"layers: 3", "hidden_size: 64", "heads: 8", "kv_heads: 4",
                            "ffn_size: 7", "head_dim: 16", "tied: true", "family: qwen2"}) {
    const std::string name = std::string(field).substr(0, std::string(field).find(':'));
    EXPECT_THAT(
        refused(init(fixture("llama")) + ", " + field),
        AllOf(HasSubstr("run.yaml line 2: model." + name + " is "), HasSubstr("remove it")));
  }
  EXPECT_THAT(refused(init(fixture("llama")) + ", vocab_size: 66"),
              HasSubstr("model.vocab_size is 66, but the weights in model.init have 67"));
  EXPECT_THAT(refused(init(fixture("gpt2")) + ", max_positions: 128"),
              HasSubstr("model.max_positions is 128, but the weights in model.init have 64"));

  const fs::path sharded = copy_of("llama-sharded");
  fs::remove(sharded / "model-00002-of-00003.safetensors");
  EXPECT_THAT(refused(init(sharded)),
              HasSubstr("model-00002-of-00003.safetensors is missing, but "));
  const fs::path empty = copy_of("llama-tied");
  fs::remove(empty / "model.safetensors");
  EXPECT_THAT(refused(init(empty)), HasSubstr("holds neither model.safetensors nor"));
  const auto with_config = [&](const char* name, const char* key, const nlohmann::json& value) {
    const fs::path copy = copy_of(name);
    nlohmann::json json = nlohmann::json::parse(read_text_file(copy / "config.json"));
    json[key] = value;
    std::ofstream(copy / "config.json") << json;
    return init(copy);
  };
  EXPECT_THAT(refused(with_config("llama", "model_type", "mamba")),
              HasSubstr("there is no model family 'mamba'"));
  EXPECT_THAT(refused(with_config("llama2", "intermediate_size", 40)),
              HasSubstr("the configuration needs [40, 32]"));
  EXPECT_THAT(refused(with_config("gpt2", "vocab_size", 60)), HasSubstr("has shape [67, 32]"));
}

// model.config never loads weights, so a directory that has some is ambiguous.
TEST_F(InitialRun, AConfigurationWithWeightsIsRefused) {
  EXPECT_THAT(refused("config: '" + fixture("llama").string() + "'"),
              AllOf(HasSubstr("holds weights, which model.config does not load"),
                    HasSubstr("say model.init"), HasSubstr("config.json")));
  EXPECT_EQ(
      config("config: '" + (fixture("llama") / "config.json").string() + "'", "run").model.layers,
      2);
  const fs::path bare = copy_of("llama-tied");
  fs::remove(bare / "model.safetensors");
  EXPECT_EQ(config("config: '" + bare.string() + "'", "run").model.layers, 2);
}

TEST_F(InitialRun, ADamagedCheckpointIsRefused) {
  run(config(init(fixture("llama")), "first"));
  const fs::path weights = directory_ / "first/checkpoints/step-00000004/model.safetensors";
  std::fstream file(weights, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1000, std::ios::end);
  const char old = static_cast<char>(file.get());
  file.seekp(-1000, std::ios::end);
  file.put(static_cast<char>(old ^ 1));
  file.close();
  EXPECT_THAT(user_error_of([&] { run(config(init(directory_ / "first"), "second")); }),
              AllOf(HasSubstr("model.safetensors does not match its checksum"),
                    HasSubstr("copy it again")));
  fs::remove(weights.parent_path() / "checksums.json");
  EXPECT_THAT(run(config(init(weights.parent_path()), "third")), HasSubstr("starting from"));
}

// A tokenizer that gives other ids than that of the run is named in a warning.
TEST_F(InitialRun, AnotherTokenizerIsNoticed) {
  const fs::path source = copy_of("llama");
  const fs::path tokenizers = fs::path(test_data_directory()) / "tokenizers";
  EXPECT_EQ(other_tokenizer(source, *load_tokenizer("bytes")), "") << "it has no tokenizer";
  fs::copy(tokenizers / "llama3/tokenizer.json", source / "tokenizer.json");
  EXPECT_EQ(other_tokenizer(source, *load_tokenizer((tokenizers / "llama3").string())), "");
  EXPECT_THAT(other_tokenizer(source, *load_tokenizer("bytes")),
              AllOf(HasSubstr("another tokenizer"), HasSubstr("set data.tokenizer")));
}

// Ranks read the directory themselves and may see different files under the same name.
TEST_F(InitialRun, RanksMustHaveTheSameWeights) {
  const fs::path other = copy_of("llama");
  std::fstream file(other / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-1, std::ios::end);
  const char last = static_cast<char>(file.get());
  file.seekp(-1, std::ios::end);
  file.put(static_cast<char>(last ^ 1));
  file.close();
  const Training training{.model = read_hf_config(other / "config.json"),
                          .precision = DType::F32,
                          .sequences = 2,
                          .length = 8};
  const auto load = [&](const Member& member) {
    load_initial_weights(member.groups.is_first() ? fixture("llama") : other, member.engine);
  };
  EXPECT_THAT(user_error_of([&] { on_ranks({.dp = 2}, training, load, false); }),
              HasSubstr("the weights in model.init"));
}

}  // namespace
}  // namespace kintsugi
