#include "train/run_data.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <set>
#include <thread>

#include "core/file.h"
#include "data/stores/token_store.h"
#include "data/tokenizers/tokenizer_formats.h"
#include "model/model_test_util.h"
#include "support/counting_store.h"
#include "support/paths.h"
#include "support/small_run.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using Json = nlohmann::json;

class RunDataTest : public testing::Test {
 protected:
  RunConfig config(const std::string& train, const std::vector<std::string>& more = {}) {
    std::vector<std::string> overrides = {"data.train=" + train};
    overrides.insert(overrides.end(), more.begin(), more.end());
    return parse_run_config(small_config("x", directory_ / "run", "steps: 100"), "test.yaml",
                            overrides);
  }
  std::string error(const std::string& train, const std::vector<std::string>& more = {}) {
    return user_error_of([&] {
      RunConfig read = config(train, more);
      const RunData data(read);
    });
  }
  // Writes a store of bytes with documents of 20 tokens each.
  std::string store(const std::string& name, int documents) {
    std::vector<std::vector<std::int32_t>> all;
    for (int i = 0; i < documents; ++i) {
      auto& document = all.emplace_back();
      for (int j = 0; j < 20; ++j) document.push_back((i * 37 + j * 11) % 256);
    }
    return write_store(directory_, name, all);
  }
  std::vector<double> shares(const std::string& train, const std::vector<std::string>& more = {}) {
    RunConfig read = config(train, more);
    const RunData data(read);
    std::vector<double> shares;
    for (const RunData::Source& source : data.sources()) shares.push_back(source.share);
    return shares;
  }
  void expect_shares(const std::vector<double>& found, const std::vector<double>& wanted) {
    ASSERT_EQ(found.size(), wanted.size());
    for (std::size_t i = 0; i < found.size(); ++i) EXPECT_NEAR(found[i], wanted[i], 1e-9) << i;
  }
  std::string lists(const std::string& extra_en = "", const std::string& extra_fi = "") {
    return fmt::format("[{{path: '{}'{}}}, {{path: '{}'{}}}]", store("en", 800), extra_en,
                       store("fi", 100), extra_fi);
  }

  TemporaryDirectory directory_;
};

TEST_F(RunDataTest, FractionsFollowWeightsTokensOrSizes) {
  expect_shares(shares(lists()), {0.5, 0.5});
  expect_shares(shares(lists(", weight: 3", ", weight: 1")), {0.75, 0.25});
  expect_shares(shares(lists(", tokens: 9k", ", tokens: 1k")), {0.9, 0.1});
  // 720 and 90 training documents: 8 to 1, and with the cube root 2 to 1.
  expect_shares(shares(lists(), {"data.temperature=1"}), {8.0 / 9, 1.0 / 9});
  expect_shares(shares(lists(), {"data.temperature=3"}), {2.0 / 3, 1.0 / 3});
}

TEST_F(RunDataTest, ASmallTemperatureFavoursTheLargest) {
  expect_shares(shares(lists(), {"data.temperature=0.01"}), {1, 0});
  EXPECT_THAT(error(lists(), {"data.temperature=1e-5"}),
              AllOf(HasSubstr("data.temperature"), HasSubstr("fi"), HasSubstr("raise it")));
}

// 600 samples of 24 tokens; fi has 90 x 20 tokens, so an epoch has 73 windows.
TEST_F(RunDataTest, EpochsAreLimited) {
  expect_shares(shares(lists("", ", max_epochs: 1")), {527.0 / 600, 73.0 / 600});
  expect_shares(shares(lists(), {"data.max_epochs=2"}), {454.0 / 600, 146.0 / 600});
  EXPECT_THAT(error(lists("", ", max_epochs: 5"), {"data.max_epochs=0.1"}),
              AllOf(HasSubstr("14.4 k tokens"), HasSubstr("max_epochs")));
}

TEST_F(RunDataTest, HeldOutDocumentsAreNeverTrained) {
  RunConfig read = config(lists(), {"data.valid_fraction=0.25"});
  const RunData data(read);
  std::set<std::pair<std::string, std::int64_t>> trained;
  for (std::int64_t k = 0; k < 3000; ++k) {
    std::vector<TokenRange> pieces;
    data.order().locate(k, pieces);
    for (const TokenRange& piece : pieces)
      for (std::int64_t i = 0; i < piece.count; ++i)
        trained.emplace(piece.shard->name(), piece.shard->document_of(piece.first + i));
  }
  EXPECT_GT(trained.size(), 660u) << "of 600 and 75";
  ASSERT_EQ(data.validation().size(), 2u);
  for (const ValidationSet& set : data.validation())
    for (std::int64_t i = 0; i < set.size(); ++i) {
      std::vector<TokenRange> pieces;
      set.locate(i, pieces);
      for (const TokenRange& piece : pieces)
        EXPECT_FALSE(
            trained.contains({piece.shard->name(), piece.shard->document_of(piece.first)}));
    }
}

TEST_F(RunDataTest, ValidationSetsOfTheirOwn) {
  RunConfig read =
      config(lists(), {fmt::format("data.valid=[{{path: '{}', name: news}}]", store("held", 50))});
  const RunData data(read);
  ASSERT_EQ(data.validation().size(), 1u);
  EXPECT_EQ(data.validation()[0].name(), "news");
  EXPECT_EQ(data.sources()[0].train.tokens(), 800 * 20) << "all of it is used for training";
  EXPECT_THAT(error(lists(), {fmt::format("data.valid=[{{path: '{}'}}]", store("tiny", 1))}),
              HasSubstr("the validation set tiny has 20 tokens, one sample needs 25"));
}

TEST_F(RunDataTest, MegatronsOrderAndSplit) {
  const std::vector<std::string> megatron = {"data.order=megatron", "data.split='90,10,0'"};
  RunConfig read = config(lists(", weight: 3"), megatron);
  const RunData data(read);
  EXPECT_EQ(data.sources()[0].train.tokens(), 720 * 20);
  EXPECT_EQ(data.validation().size(), 2u);
  std::set<std::int64_t> documents;
  for (std::int64_t k = 0; k < 600; ++k) {
    std::vector<TokenRange> pieces;
    if (data.order().locate(k, pieces).source == 0)
      for (const TokenRange& piece : pieces)
        documents.insert(piece.shard->document_of(piece.first));
  }
  EXPECT_EQ(*documents.rbegin(), 719);
  store("parts-00000", 30);
  store("parts-00001", 30);
  EXPECT_THAT(error(fmt::format("[{{path: '{}'}}]", (directory_ / "parts").string()), megatron),
              AllOf(HasSubstr("has 2 shards"), HasSubstr("data merge")));
}

// Megatron's "--data-path 3 en 1 fi", "--data-path en fi" and "--data-path en".
TEST_F(RunDataTest, MegatronDistinguishesWeightsFromNoWeights) {
  const std::vector<std::string> megatron = {"data.order=megatron", "data.split='90,10,0'"};
  expect_shares(shares(lists(", weight: 3", ", weight: 1"), megatron), {0.75, 0.25});
  // 720 and 90 documents of 20 tokens: 599 and 74 samples of 24.
  expect_shares(shares(lists(), megatron), {599.0 / 673, 74.0 / 673});
  EXPECT_THAT(error(lists(), {"data.order=megatron", "data.split='90,10,0'", "train.steps=113"}),
              AllOf(HasSubstr("reads 678 samples"), HasSubstr("has 673")));
  const auto print = [&](const std::string& weight, const std::string& order) {
    RunConfig read = config(fmt::format("[{{path: '{}'{}}}]", store("en", 800), weight),
                            {"data.order=" + order, "data.split='90,10,0'"});
    // The resolved configuration gives the same order.
    RunConfig again = parse_run_config(to_yaml(read), "config.yaml");
    EXPECT_EQ(RunData(again).fingerprint(), RunData(read).fingerprint());
    return RunData(read).fingerprint();
  };
  const std::set<std::string> prints = {print("", "megatron"), print(", weight: 1", "megatron"),
                                        print(", weight: 1", "megatron-0.10"),
                                        print("", "kintsugi")};
  EXPECT_EQ(prints.size(), 4u);
}

TEST_F(RunDataTest, MegatronReadsSourcesShorterThanASample) {
  const std::vector<std::string> megatron = {"data.order=megatron", "data.split=1",
                                             "train.eval_every=0"};
  const std::string train = fmt::format("[{{path: '{}', weight: 1}}, {{path: '{}', weight: 1}}]",
                                        store("en", 300), store("one", 1));
  RunConfig read = config(train, megatron);
  const RunData data(read);
  EXPECT_EQ(data.sources()[1].train.tokens(), 20);
  EXPECT_THAT(error(train, {"train.eval_every=0", "data.valid_fraction=0"}),
              HasSubstr("has 20 tokens, one sample needs 25"));
}

TEST_F(RunDataTest, TheVocabularyHoldsTheTokenizer) {
  const std::string text = directory_.write("a.txt", small_corpus(50));
  const std::string train = fmt::format("[{{path: '{}'}}]", text);
  EXPECT_THAT(error(train, {"model.vocab_size=200"}),
              AllOf(HasSubstr("model.vocab_size is 200"), HasSubstr("has 256 tokens"),
                    HasSubstr("raise it to 256, or leave it out")));
  // A size that only a config.json gives is raised; a large one is kept.
  RunConfig grown = config(
      train, {fmt::format("model={{config: '{}/qwen3/config.json'}}", test_data_directory())});
  ASSERT_EQ(grown.model.vocab_size, 67);
  const RunData first(grown);
  EXPECT_EQ(grown.model.vocab_size, 256);
  EXPECT_EQ(parse_run_config(to_yaml(grown), "saved.yaml").model.vocab_size, 256);
  RunConfig large = config(train, {"model={preset: gpt2-124m}"});
  const RunData second(large);
  EXPECT_EQ(large.model.vocab_size, 50257);
}

TEST_F(RunDataTest, AStoreOfAnotherTokenizerIsRefused) {
  const std::string prefix = store("en", 100);
  const std::string train = fmt::format("[{{path: '{}'}}]", prefix);
  StoreInfo info;
  info.vocab_size = 256;
  info.tokens = 2000;
  info.documents = 100;
  info.bytes = 2000;
  info.shards = {{"en", std::string(16, '0'), std::string(16, '0'), ""}};
  info.tokenizer = load_tokenizer("bytes")->fingerprint();
  write_store_info(prefix, info);
  RunConfig same = config(train);
  EXPECT_NO_THROW(const RunData data(same));
  info.tokenizer = "0123456789abcdef";
  info.vocab_size = 50000;
  write_store_info(prefix, info);
  EXPECT_THAT(error(train),
              AllOf(HasSubstr(prefix), HasSubstr("0123456789abcdef"), HasSubstr("50000 tokens"),
                    HasSubstr(load_tokenizer("bytes")->fingerprint())));
}

TEST_F(RunDataTest, DataThatIsTooShortIsNamed) {
  const std::string text = directory_.write("short.txt", std::string(26, 'x'));
  const std::string train = fmt::format("[{{path: '{}'}}]", text);
  EXPECT_THAT(error(train), AllOf(HasSubstr("short.txt has 24 tokens, one sample needs 25"),
                                  HasSubstr("data.valid_fraction")));
  EXPECT_THAT(error(train, {"data.valid_fraction=0"}),
              AllOf(HasSubstr("held-out"), HasSubstr("train.eval_every")));
  EXPECT_THAT(error("[{path: nowhere}]"), HasSubstr("nowhere"));
}

// ---- best-fit packing

// Documents of 20 tokens do not share samples of 24 tokens: one per sample, 4 positions of padding.
TEST_F(RunDataTest, PackedEpochsAreCountedInSamples) {
  RunConfig read = config(lists(), {"data.packing=best_fit"});
  const RunData data(read);
  ASSERT_TRUE(data.sources()[0].packing && data.sources()[1].packing);
  const PackingSummary& en = *data.sources()[0].packing;
  EXPECT_EQ(en.samples, 720);
  EXPECT_EQ(en.whole, 720);
  EXPECT_EQ(en.cut, 0);
  EXPECT_DOUBLE_EQ(en.padding(24), 4.0 / 24);
  EXPECT_EQ(data.sources()[1].packing->samples, 90);
  EXPECT_DOUBLE_EQ(data.sources()[1].epochs, 300.0 / 90);
  EXPECT_TRUE(data.sample_options().packed);
  EXPECT_FALSE(data.validation_options().packed);
  // 600 samples of the run: fi gives at most one epoch of 90.
  expect_shares(shares(lists("", ", max_epochs: 1"), {"data.packing=best_fit"}),
                {510.0 / 600, 90.0 / 600});
  // A source that is shorter than a sample is padded.
  RunConfig tiny = config(fmt::format("[{{path: '{}'}}]", store("tiny", 1)),
                          {"data.packing=best_fit", "data.valid_fraction=0", "train.eval_every=0"});
  EXPECT_EQ(RunData(tiny).sources()[0].packing->samples, 1);
}

TEST_F(RunDataTest, ThePackingIsPartOfTheFingerprint) {
  const auto fingerprint = [&](const std::vector<std::string>& more) {
    RunConfig read = config(lists(), more);
    return RunData(read).fingerprint();
  };
  const std::string packed = fingerprint({"data.packing=best_fit"});
  EXPECT_EQ(packed, fingerprint({"data.packing=best_fit"}));
  EXPECT_NE(packed, fingerprint({}));
  EXPECT_NE(packed, fingerprint({"data.packing=best_fit", "data.valid_fraction=0.2"}));
  EXPECT_NE(packed, fingerprint({"data.packing=best_fit", "data.sequence_length=25"}));
}

TEST_F(RunDataTest, ADamagedPackingIsMadeAgain) {
  const std::string sources = fmt::format("[{{path: '{}'}}]", store("en", 100));
  RunConfig read = config(sources, {"data.packing=best_fit"});
  const std::string fingerprint = RunData(read).fingerprint();
  const std::filesystem::directory_iterator files(directory_ / "run/packing");
  const std::filesystem::path index = files->path();
  const std::string bytes = content_of(index);
  for (const std::string& bad :
       {bytes.substr(0, bytes.size() / 2), std::string(), std::string(500, 'x')}) {
    std::ofstream(index, std::ios::binary) << bad;
    testing::internal::CaptureStderr();
    EXPECT_EQ(RunData(read).fingerprint(), fingerprint);
    EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("made again"));
    EXPECT_EQ(content_of(index), bytes);
  }
  // A change in the middle is found when rank 0 verifies it.
  std::string changed = bytes;
  changed[changed.size() / 3] ^= 1;
  std::ofstream(index, std::ios::binary) << changed;
  testing::internal::CaptureStderr();
  EXPECT_EQ(RunData(read, PackingFiles::Verify).fingerprint(), fingerprint);
  EXPECT_THAT(testing::internal::GetCapturedStderr(), HasSubstr("made again"));
  EXPECT_EQ(content_of(index), bytes);
}

TEST_F(RunDataTest, MegatronsOrderIsNotPacked) {
  EXPECT_THAT(error(lists(), {"data.packing=best_fit", "data.order=megatron"}),
              AllOf(HasSubstr("data.packing is best_fit"), HasSubstr("remove data.packing")));
  EXPECT_THAT(error(lists(), {"data.packing=best_fit", "data.sequence_length=20000000",
                              "model.max_positions=20000000"}),
              AllOf(HasSubstr("data.packing"), HasSubstr("16777216")));
}

// ---- whole runs

class DataRunTest : public RunDataTest {
 protected:
  std::vector<Json> train(const std::string& name, const std::string& sources,
                          std::vector<std::string> overrides = {}) {
    overrides.push_back("data.train=" + sources);
    const auto backend = make_cpu_backend(2);
    Trainer trainer(*backend,
                    parse_run_config(small_config("x", directory_ / name,
                                                  "steps: 6, eval_every: 3, checkpoint_every: 0"),
                                     "test.yaml", overrides));
    testing::internal::CaptureStdout();
    try {
      trainer.run(ResumeMode::Auto);
    } catch (...) {
      testing::internal::GetCapturedStdout();
      throw;
    }
    log_ = testing::internal::GetCapturedStdout();
    std::vector<Json> records;
    std::ifstream file(directory_ / name / "metrics.jsonl");
    for (std::string line; std::getline(file, line);) records.push_back(Json::parse(line));
    return records;
  }
  std::string log_;
};

TEST_F(DataRunTest, EachSourceIsValidatedByItself) {
  const auto records = train("run", lists(), {"train.eval_batches=0", "data.document_mask=true"});
  ASSERT_EQ(records.size(), 6u);
  EXPECT_FALSE(records[0].contains("valid"));
  EXPECT_GE(records[0].at("data_wait_s").get<double>(), 0);
  EXPECT_LE(records[0].at("data_wait_s").get<double>(), records[0].at("step_time_s").get<double>());
  const Json& last = records.back();
  // A tenth of the documents is held out and read completely; sets are weighted by tokens.
  const double en = last.at("valid").at("en").at("loss"), fi = last.at("valid").at("fi").at("loss");
  const std::int64_t en_windows = (80 * 20 - 1) / 24, fi_windows = (10 * 20 - 1) / 24;
  EXPECT_NEAR(last.at("valid_loss").get<double>(),
              (en * static_cast<double>(en_windows) + fi * static_cast<double>(fi_windows)) /
                  static_cast<double>(en_windows + fi_windows),
              1e-9);
  EXPECT_NEAR(last.at("valid").at("fi").at("bits_per_byte").get<double>(), fi / std::log(2.0),
              1e-9);
  EXPECT_THAT(log_, AllOf(HasSubstr("held-out loss"), HasSubstr("held-out en loss"),
                          HasSubstr("held-out fi loss")));
}

// Each sample is one document of 20 tokens, of which the first is no target.
TEST_F(DataRunTest, APackedRunCountsItsTargets) {
  for (const char* mask : {"data.document_mask=true", "data.document_mask=false"}) {
    const std::string name = std::string("run-") + mask;
    const auto records = train(name, lists(), {"data.packing=best_fit", mask});
    ASSERT_EQ(records.size(), 6u);
    for (const Json& record : records) {
      EXPECT_EQ(record.at("targets"), 6 * 19);
      EXPECT_EQ(record.at("tokens"), record.at("step").get<int>() * 6 * 24);
    }
    EXPECT_THAT(log_,
                HasSubstr("packed: 720 samples, 16.67 % padding, 720 documents whole, 0 cut"));
  }
  EXPECT_THAT(user_error_of([&] {
                train("run-data.document_mask=true", lists(), {"data.document_mask=true"});
              }),
              AllOf(HasSubstr("data.packing"), HasSubstr("choose another run.dir")));
}

// Tokens: all bytes, "th" with two bytes, and an end-of-document token without text.
TEST_F(DataRunTest, BitsPerByteCountTheBytesOfTheText) {
  Json json = Json::parse(byte_tokenizer_json());
  json["model"]["vocab"]["th"] = 256;
  json["model"]["merges"].push_back("t h");
  json["added_tokens"].push_back({{"id", 257},
                                  {"content", "<|endoftext|>"},
                                  {"special", true},
                                  {"single_word", false},
                                  {"lstrip", false},
                                  {"rstrip", false},
                                  {"normalized", false}});
  const std::string tokenizer = directory_.write("tokenizer.json", json.dump());
  const std::string text = small_corpus(200);
  std::vector<std::vector<std::int32_t>> documents;
  for (std::size_t at = 0; at < text.size(); at += 100) {
    auto& document = documents.emplace_back();
    for (std::size_t i = at; i < std::min(at + 100, text.size()); ++i)
      if (text.compare(i, 2, "th") == 0 && i + 1 < at + 100) {
        document.push_back(256);
        ++i;
      } else {
        document.push_back(static_cast<unsigned char>(text[i]));
      }
    document.push_back(257);
  }
  const std::string path = write_store(directory_, "th", documents);
  const std::string source = fmt::format("[{{path: '{}'}}]", path);
  const Json last =
      train("run", source,
            {"data.tokenizer=" + tokenizer, "train.eval_batches=0", "model.vocab_size=384"})
          .back();
  // A tenth of the documents is held out. All windows are read: every token except the first.
  std::vector<std::int32_t> held_out;
  for (std::size_t d = documents.size() - documents.size() / 10; d < documents.size(); ++d)
    held_out.insert(held_out.end(), documents[d].begin(), documents[d].end());
  const std::size_t tokens = (held_out.size() - 1) / 24 * 24;
  double bytes = 0;
  for (std::size_t i = 1; i <= tokens; ++i)
    bytes += held_out[i] == 257 ? 0 : held_out[i] == 256 ? 2 : 1;
  EXPECT_NEAR(
      last.at("valid_bits_per_byte").get<double>(),
      last.at("valid_loss").get<double>() * static_cast<double>(tokens) / std::log(2.0) / bytes,
      1e-9);
  // With this tokenizer a run cannot read the text itself.
  const std::string plain = directory_.write("plain.txt", text);
  EXPECT_THAT(error(fmt::format("[{{path: '{}'}}]", plain),
                    {"data.tokenizer=" + tokenizer, "model.vocab_size=384"}),
              AllOf(HasSubstr("plain.txt is text"), HasSubstr("kintsugi data tokenize --input")));
  // A vocabulary size that is not given is raised to 258, rounded up to a multiple of 128.
  RunConfig grown = config(source, {"data.tokenizer=" + tokenizer, "model={preset: llama-tiny}"});
  const RunData data(grown);
  EXPECT_EQ(grown.model.vocab_size, 384);
}

TEST_F(DataRunTest, OneSourceNeedsNoTable) {
  const auto records = train("run", fmt::format("[{{path: '{}'}}]", store("en", 300)));
  EXPECT_TRUE(records.back().contains("valid_loss"));
  EXPECT_FALSE(records.back().contains("valid"));
  EXPECT_THAT(log_, Not(HasSubstr("held-out en loss")));
}

// Such a run learns nothing but must not fail.
TEST_F(DataRunTest, AStoreWithoutAnyLoss) {
  store("silent", 300);
  directory_.write("silent.mask", std::string(300 * 20, '\0'));
  const auto records =
      train("run", fmt::format("[{{path: '{}'}}]", (directory_ / "silent").string()));
  ASSERT_EQ(records.size(), 6u);
  for (const Json& record : records) {
    EXPECT_EQ(record.at("loss"), 0.0);
    EXPECT_EQ(record.at("grad_norm"), 0.0);
  }
  EXPECT_EQ(records.back().at("valid_loss"), 0.0);
  EXPECT_FALSE(records.back().contains("valid_bits_per_byte"));
}

// Half of the tokens have a loss: the mean is over these tokens only.
TEST_F(DataRunTest, LossesAreMeansOverTheTokensWithALoss) {
  const std::string path = store("half", 300);
  const std::string source = fmt::format("[{{path: '{}'}}]", path);
  const double all = train("all", source)[0].at("loss");
  std::string mask;
  for (int i = 0; i < 300 * 20; ++i) mask += static_cast<char>(i % 2);
  directory_.write("half.mask", mask);
  const double half = train("half", source)[0].at("loss");
  EXPECT_NEAR(half, all, 0.2) << "about log 256 before anything is learnt";
  EXPECT_NE(half, all);
}

TEST_F(DataRunTest, PrefetchChangesNothing) {
  const std::string sources = lists(", weight: 2");
  const auto a = train("a", sources, {"data.prefetch=1"});
  const auto b = train("b", sources, {"data.prefetch=9"});
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_EQ(a[i].at("loss"), b[i].at("loss"));
}

TEST_F(DataRunTest, AWrongIdEndsTheRunWithItsPosition) {
  std::vector<std::vector<std::int32_t>> documents = {std::vector<std::int32_t>(400, 7)};
  documents[0][100] = 300;
  const std::string bad = write_store(directory_, "bad", documents);
  try {
    train("run", fmt::format("[{{path: '{}'}}]", bad), {"train.steps=100"});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("bad has token id 300 at token 100"),
                                    HasSubstr("model.vocab_size is 256")));
  }
  EXPECT_EQ(Json::parse(read_text_file(directory_ / "run/status.json")).at("state"), "failed");
}

TEST_F(DataRunTest, OtherWeightsAreNotContinued) {
  train("run", lists());
  EXPECT_THROW(train("run", lists(", weight: 2")), UserError);
  EXPECT_THROW(train("run", lists(), {"data.order=megatron", "data.split='8,2'"}), UserError);
  EXPECT_NO_THROW(train("run", lists(), {"train.steps=8"})) << "a run may be extended";
}

TEST_F(DataRunTest, AChangeInTheMiddleOfTheDataIsNotContinued) {
  const std::string text = directory_.write("a.txt", small_corpus(20'000));  // 600 kB
  const auto source = [](const std::string& path) { return fmt::format("[{{path: '{}'}}]", path); };
  train("run", source(text));
  EXPECT_NO_THROW(train("run", source(text), {"train.steps=7"}));
  // A copy in another directory is the same data.
  const std::string copy = (directory_ / "copy.txt").string();
  std::filesystem::copy_file(text, copy);
  EXPECT_NO_THROW(train("run", source(copy), {"train.steps=8"}));
  {
    std::fstream file(copy, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(static_cast<std::streamoff>(std::filesystem::file_size(copy) / 2));
    file.put('#');
  }
  try {
    train("run", source(copy), {"train.steps=9"});
    FAIL() << "accepted";
  } catch (const UserError& error) {
    EXPECT_THAT(error.what(), AllOf(HasSubstr("copy.txt is not the file"), HasSubstr("run.dir")));
  }
  // A run of an older version without a record continues with a warning.
  std::filesystem::remove(directory_ / "run/data.json");
  testing::internal::CaptureStderr();
  EXPECT_NO_THROW(train("run", source(copy), {"train.steps=9"}));
  EXPECT_THAT(testing::internal::GetCapturedStderr() + log_,
              HasSubstr("data.json has no record of the data's content"));
}

// Another process truncates the corpus during a run.
TEST_F(DataRunTest, ACorpusTruncatedDuringTrainingEndsTheRunAsFailed) {
  const std::string text = directory_.write("a.txt", small_corpus(20'000));
  std::thread truncates([&] {
    while (!std::filesystem::exists(directory_ / "run/metrics.jsonl") ||
           std::filesystem::file_size(directory_ / "run/metrics.jsonl") == 0)
      std::this_thread::yield();
    std::filesystem::resize_file(text, 0);
  });
  std::string message;
  try {
    train("run", fmt::format("[{{path: '{}'}}]", text), {"train.steps=1000000"});
  } catch (const Failure& error) {
    message = error.what();
  }
  truncates.join();
  EXPECT_THAT(message,
              AllOf(HasSubstr("a.txt was truncated while it was read"), HasSubstr("now it has 0")));
  const Json status = Json::parse(read_text_file(directory_ / "run/status.json"));
  EXPECT_EQ(status.at("state"), "failed");
}

TEST_F(DataRunTest, MegatronsOrderTrains) {
  const auto records = train(
      "run", lists(), {"data.order=megatron", "data.split='8,2'", "data.boundary_loss=false"});
  EXPECT_EQ(records.size(), 6u);
  EXPECT_THROW(train("run", lists(), {"data.order=megatron", "data.split='8,2'", "train.steps=8"}),
               UserError)
      << "its order depends on the length of the run";
}

}  // namespace
}  // namespace kintsugi
