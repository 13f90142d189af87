// Merged models against plain arithmetic on the bytes of the files.
#include "model/files/merge.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "support/captured_log.h"
#include "support/directory_contents.h"
#include "support/errors.h"
#include "support/raw_model.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;

class MergeModels : public testing::Test {
 protected:
  // Models m0, m1, …
  std::vector<fs::path> make(int count, const std::string& dtype, bool sharded = false) {
    std::vector<fs::path> paths;
    for (int i = 0; i < count; ++i) {
      paths.push_back(directory_ / ("m" + std::to_string(i)));
      make_random_model(paths.back(), "llama", 100 + static_cast<unsigned>(i), dtype, sharded);
    }
    return paths;
  }
  // Compares the output with expected(values of the inputs), rounded to `bits`.
  template <class Expected>
  void expect_merged(const std::vector<fs::path>& inputs, int bits, const Expected& expected) {
    std::vector<RawModel> models;
    for (const fs::path& path : inputs) models.push_back(read_raw_model(path));
    const RawModel merged = read_raw_model(output_);
    ASSERT_EQ(merged.size(), models.front().size());
    for (const auto& [name, tensor] : merged) {
      EXPECT_EQ(tensor.dtype, bits == 8 ? "BF16" : "F32");
      EXPECT_EQ(tensor.shape, models.front().at(name).shape);
      ASSERT_EQ(tensor.values.size(), models.front().at(name).values.size());
      for (std::size_t i = 0; i < tensor.values.size(); ++i) {
        std::vector<double> values;
        for (const RawModel& model : models) values.push_back(model.at(name).values[i]);
        ASSERT_EQ(tensor.values[i], nearest_with_bits(expected(values), bits)) << name << " " << i;
      }
    }
  }
  // The message of a refused merge, which must leave nothing behind.
  std::string refusal(const std::vector<fs::path>& inputs, const MergeOptions& options = {}) {
    const auto before = directory_contents(directory_.path());
    const std::string message = user_error_of([&] { merge_models(inputs, output_, options); });
    EXPECT_EQ(directory_contents(directory_.path()), before) << message;
    EXPECT_EQ(message.find('\n'), std::string::npos);
    return message;
  }

  TemporaryDirectory directory_;
  fs::path output_ = directory_ / "merged";
};

TEST_F(MergeModels, AveragesThreeModels) {
  for (const bool sharded : {false, true})
    for (const std::string dtype : {"F32", "BF16"}) {
      const auto inputs = make(3, dtype, sharded);
      const WrittenModel result = merge_models(inputs, output_);
      EXPECT_EQ(result.tensors, read_raw_model(inputs[0]).size());
      expect_merged(inputs, dtype == "F32" ? 24 : 8,
                    [](const std::vector<double>& x) { return (x[0] + x[1] + x[2]) / 3; });
      for (const char* name : {"m0", "m1", "m2", "merged"}) fs::remove_all(directory_ / name);
    }
}

TEST_F(MergeModels, AveragesWithWeightsInSmallBlocksAndFiles) {
  auto inputs = make(2, "F32", true);
  inputs.push_back(directory_ / "other");
  make_random_model(inputs.back(), "llama", 7, "BF16", false);
  const WrittenModel result =
      merge_models(inputs, output_,
                   {.weights = {0.5, 0.375, 0.125},  // exact in double
                    .output = {.dtype = DType::BF16, .max_shard_bytes = 9000, .block = 100}});
  expect_merged(inputs, 8, [](const std::vector<double>& x) {
    return 0.5 * x[0] + 0.375 * x[1] + 0.125 * x[2];
  });
  EXPECT_GT(result.files, 3u);
  const auto index = nlohmann::json::parse(raw_file(output_ / "model.safetensors.index.json"));
  std::uint64_t total = 0;
  for (const auto& [name, tensor] : read_raw_model(output_)) {
    total += 2 * tensor.values.size();
    EXPECT_TRUE(fs::exists(output_ / index["weight_map"][name].get<std::string>())) << name;
  }
  EXPECT_EQ(index["metadata"]["total_size"], total);
  EXPECT_EQ(nlohmann::json::parse(raw_file(output_ / "config.json"))["dtype"], "bfloat16");
}

// These products are rounded in double, so a sum may lie on either side of a tie.
TEST_F(MergeModels, AveragesWithDecimalWeights) {
  const auto inputs = make(3, "F32");
  merge_models(inputs, output_, {.weights = {0.5, 0.3, 0.2}});
  const RawModel a = read_raw_model(inputs[0]), b = read_raw_model(inputs[1]),
                 c = read_raw_model(inputs[2]);
  for (const auto& [name, tensor] : read_raw_model(output_))
    for (std::size_t i = 0; i < tensor.values.size(); ++i) {
      const double expected =
          0.5 * a.at(name).values[i] + 0.3 * b.at(name).values[i] + 0.2 * c.at(name).values[i];
      ASSERT_NEAR(tensor.values[i], expected, 0x1p-24 * std::fabs(expected) + 1e-16) << name;
    }
}

TEST_F(MergeModels, InterpolatesOnTheSphere) {
  const auto inputs = make(2, "F32");
  const RawModel a = read_raw_model(inputs[0]), b = read_raw_model(inputs[1]);
  for (const double t : {0.0, 0.5, 1.0, 0.3}) {
    merge_models(inputs, output_, {.slerp = t, .output = {.overwrite = true, .block = 777}});
    for (const auto& [name, tensor] : read_raw_model(output_)) {
      const std::vector<double>&x = a.at(name).values, &y = b.at(name).values;
      long double xx = 0, xy = 0, yy = 0;
      for (std::size_t i = 0; i < x.size(); ++i) {
        xx += static_cast<long double>(x[i]) * x[i];
        xy += static_cast<long double>(x[i]) * y[i];
        yy += static_cast<long double>(y[i]) * y[i];
      }
      const long double angle = std::acos(xy / std::sqrt(xx * yy));
      for (std::size_t i = 0; i < x.size(); ++i) {
        const auto expected = static_cast<double>(
            (std::sin((1 - t) * angle) * x[i] + std::sin(t * angle) * y[i]) / std::sin(angle));
        const bool end = t == 0 || t == 1;  // exact there
        ASSERT_NEAR(tensor.values[i], end ? (t == 0 ? x[i] : y[i]) : expected,
                    end ? 0 : 1e-7 * std::max(1.0, std::fabs(expected)))
            << name << " " << t;
      }
    }
  }
}

TEST(SlerpFactors, HaveClosedForms) {
  const double half = std::sqrt(0.5);
  const SlerpFactors right = slerp_factors(1, 0, 1, 0.5);  // a right angle
  EXPECT_NEAR(right.first, half, 1e-15);
  EXPECT_NEAR(right.second, half, 1e-15);
  const SlerpFactors sixty = slerp_factors(4, 1, 1, 0.25);  // 60 degrees, norms 2 and 1
  EXPECT_NEAR(sixty.first, half / std::sin(M_PI / 3), 1e-15);
  EXPECT_NEAR(sixty.second, std::sin(M_PI / 12) / std::sin(M_PI / 3), 1e-15);
  // Nearly parallel, opposite, or of norm zero: linear.
  for (const auto& [xx, xy, yy] : {std::array{1.0, 0.9996, 1.0}, std::array{1.0, -1.0, 1.0},
                                   std::array{0.0, 0.0, 1.0}, std::array{0.0, 0.0, 0.0}}) {
    EXPECT_EQ(slerp_factors(xx, xy, yy, 0.25).first, 0.75);
    EXPECT_EQ(slerp_factors(xx, xy, yy, 0.25).second, 0.25);
  }
  EXPECT_NE(slerp_factors(1, 0.9994, 1, 0.25).second, 0.25);
}

TEST_F(MergeModels, ConvertsToTheNearestNumber) {
  const auto inputs = make(1, "F32");
  merge_models(inputs, output_, {.output = {.dtype = DType::BF16}});
  expect_merged(inputs, 8, [](const std::vector<double>& x) { return x[0]; });
  // Without another type, every byte stays.
  merge_models(inputs, directory_ / "copy");
  EXPECT_EQ(read_raw_model(directory_ / "copy").size(), read_raw_model(inputs[0]).size());
  for (const auto& [name, tensor] : read_raw_model(directory_ / "copy"))
    EXPECT_EQ(tensor.values, read_raw_model(inputs[0]).at(name).values) << name;
  EXPECT_EQ(raw_file(directory_ / "copy/config.json"), raw_file(inputs[0] / "config.json"));
}

TEST_F(MergeModels, CopiesTheTokenizerOfTheFirst) {
  const auto inputs = make(2, "F32");
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "README.md", "trainer.json"})
    std::ofstream(inputs[0] / name) << "first " << name;
  fs::create_directory(inputs[0] / "additional_chat_templates");
  std::ofstream(inputs[0] / "additional_chat_templates/tool.jinja") << "template";
  std::ofstream(inputs[1] / "tokenizer.json") << "second";
  std::ofstream(inputs[1] / "merges.txt") << "second";
  merge_models(inputs, output_);
  const auto files = directory_contents(output_);
  std::vector<std::string> names;
  for (const auto& [name, content] : files) names.push_back(name);
  EXPECT_THAT(names, testing::UnorderedElementsAre(
                         "config.json", "generation_config.json", "model.safetensors",
                         "tokenizer.json", "tokenizer_config.json", "additional_chat_templates",
                         "additional_chat_templates/tool.jinja"));
  EXPECT_EQ(files.at("tokenizer.json"), "first tokenizer.json");
}

// Hub files of GPT-2 leave out a prefix that our checkpoints have.
TEST_F(MergeModels, FindsBothSpellingsOfNames) {
  const std::vector<fs::path> inputs = {directory_ / "a", directory_ / "b"};
  for (const fs::path& path : inputs) make_random_model(path, "gpt2", 3, "F32", false);
  RawModel renamed;
  for (const auto& [name, tensor] : read_raw_model(inputs[1]))
    renamed[name.starts_with("transformer.") ? name.substr(12) : "transformer." + name] = tensor;
  write_raw_model(inputs[1], renamed, false);
  merge_models(inputs, output_);
  for (const auto& [name, tensor] : read_raw_model(inputs[0]))
    EXPECT_EQ(read_raw_model(output_).at(name).values, tensor.values) << name;
}

TEST_F(MergeModels, MemoryDoesNotDependOnTheModel) {
  // Three inputs and a tensor of 600,000 elements, 600 blocks.
  std::vector<fs::path> inputs = make(3, "F32");
  const MergeOptions options{.output = {.overwrite = true, .block = 1000}};
  const std::size_t small = merge_models(inputs, output_, options).peak_buffer_bytes;
  for (const fs::path& path : inputs) {
    RawModel model = read_raw_model(path);
    model["large"] = {"F32", {600, 1000}, std::vector<double>(600'000, 0.5)};
    write_raw_model(path, model, false);
  }
  const WrittenModel result = merge_models(inputs, output_, options);
  EXPECT_EQ(result.peak_buffer_bytes, small);
  EXPECT_GT(small, 4u * 8u * 1000u - 1);
  EXPECT_LT(result.peak_buffer_bytes, 64u << 10);
  EXPECT_EQ(read_raw_model(output_).at("large").values, std::vector<double>(600'000, 0.5));
  // Four buffers of eight bytes per element: 32 MiB in blocks of the usual size.
  EXPECT_LT(merge_models(inputs, output_, {.output = {.overwrite = true}}).peak_buffer_bytes,
            34u << 20);
}

// Masks and the like are copied, and must be the same in all models.
TEST_F(MergeModels, DoesNotAverageIntegers) {
  const auto inputs = make(2, "F32");
  const auto write = [&](const fs::path& path, float weight, std::uint8_t last) {
    const std::uint8_t mask[] = {1, 0, last};
    SafetensorsWriter writer(path / "model.safetensors",
                             {{"mask", DType::U8, {3}}, {"w", DType::F32, {1}}});
    writer.append("mask", mask, sizeof mask);
    writer.append("w", &weight, sizeof weight);
    writer.finish();
  };
  write(inputs[0], 1, 7);
  write(inputs[1], 4, 7);
  merge_models(inputs, output_, {.output = {.dtype = DType::BF16, .block = 2}});
  const SafetensorsFile merged(output_ / "model.safetensors");
  ASSERT_EQ(merged.find("mask")->dtype, DType::U8);
  EXPECT_EQ(static_cast<int>(merged.bytes(*merged.find("mask"))[2]), 7);
  std::uint16_t bits = 0;
  std::memcpy(&bits, merged.bytes(*merged.find("w")).data(), 2);
  EXPECT_EQ(bits, 0x4020);  // 2.5
  write(inputs[1], 4, 8);
  output_ = directory_ / "again";
  EXPECT_THAT(refusal(inputs), AllOf(HasSubstr("tensor mask"), HasSubstr("differs")));
}

TEST_F(MergeModels, CountsNumbersThatAreNotFinite) {
  const auto inputs = make(2, "F32");
  RawModel model = read_raw_model(inputs[0]);
  const std::string name = std::next(model.begin())->first;
  model[name].values[0] = std::nan("");
  write_raw_model(inputs[0], model, false);
  const WrittenModel result = merge_models(inputs, output_);
  EXPECT_EQ(result.non_finite, 1u);
  EXPECT_EQ(result.first_non_finite, name);
  // A weight of 0 leaves a model out.
  EXPECT_EQ(
      merge_models(inputs, output_, {.weights = {0, 1}, .output = {.overwrite = true}}).non_finite,
      0u);
  EXPECT_EQ(read_raw_model(output_).at(name).values, read_raw_model(inputs[1]).at(name).values);
}

TEST_F(MergeModels, WarnsOfOtherConfigurations) {
  const auto inputs = make(2, "F32");
  auto config = nlohmann::json::parse(raw_file(inputs[1] / "config.json"));
  config["rms_norm_eps"] = 0.125;
  std::ofstream(inputs[1] / "config.json") << config.dump();
  CapturedLog log;
  merge_models(inputs, output_);
  EXPECT_THAT(log.warnings(),
              AllOf(HasSubstr("different configurations"), HasSubstr("model diff")));
  EXPECT_EQ(raw_file(output_ / "config.json"), raw_file(inputs[0] / "config.json"));
}

// ---- refusals

TEST_F(MergeModels, RefusesWeights) {
  const auto inputs = make(3, "F32");
  EXPECT_THAT(refusal(inputs, {.weights = {1, 1, 2}}),
              AllOf(HasSubstr("sum to 4"), HasSubstr("0.25,0.25,0.5")));
  EXPECT_THAT(refusal(inputs, {.weights = {0.5, 0.3, 0.3}}), HasSubstr("sum to 1.1"));
  EXPECT_THAT(refusal(inputs, {.weights = {0.5, 0.5}}), HasSubstr("2 numbers for 3 models"));
  EXPECT_THAT(refusal(inputs, {.weights = {1.5, -0.5, 0}}), HasSubstr("-0.5"));
  EXPECT_THAT(refusal(inputs, {.weights = {0, 0, 0}}), HasSubstr("sum to 0"));
  EXPECT_THAT(refusal(inputs, {.slerp = 0.5}), HasSubstr("two models, but 3"));
}

TEST_F(MergeModels, RefusesOtherModels) {
  auto inputs = make(2, "F32");
  make_random_model(directory_ / "gpt2", "gpt2", 1, "F32", false);
  EXPECT_THAT(refusal({inputs[0], directory_ / "gpt2"}),
              AllOf(HasSubstr("llama"), HasSubstr("gpt2"), HasSubstr("one family")));
  const RawModel whole = read_raw_model(inputs[1]);
  RawModel changed = whole;
  auto& tensor = changed.begin()->second;
  std::reverse(tensor.shape.begin(), tensor.shape.end());
  write_raw_model(inputs[1], changed, false);
  EXPECT_THAT(refusal(inputs), AllOf(HasSubstr(changed.begin()->first), HasSubstr("shape")));
  changed = whole;
  changed["extra"] = tensor;
  write_raw_model(inputs[1], changed, false);
  EXPECT_THAT(refusal(inputs), AllOf(HasSubstr("tensor extra"), HasSubstr("not in")));
  changed = whole;
  changed.erase(changed.begin());
  write_raw_model(inputs[1], changed, false);
  EXPECT_THAT(refusal(inputs), AllOf(HasSubstr(whole.begin()->first), HasSubstr("not in")));
  EXPECT_THAT(refusal({inputs[0], directory_ / "nothing"}), HasSubstr("does not exist"));
  fs::create_directory(directory_ / "empty");
  EXPECT_THAT(refusal({inputs[0], directory_ / "empty"}), HasSubstr("no config.json"));
}

TEST_F(MergeModels, RefusesAMissingShard) {
  const auto inputs = make(2, "F32", true);
  fs::remove(inputs[1] / "model-2.safetensors");
  EXPECT_THAT(refusal(inputs), AllOf(HasSubstr("model-2.safetensors is missing"),
                                     HasSubstr("copy the missing shard")));
}

TEST_F(MergeModels, RefusesNumbersThatDoNotFit) {
  const auto inputs = make(1, "F32");
  RawModel model = read_raw_model(inputs[0]);
  model.rbegin()->second.values.back() = 70000;
  write_raw_model(inputs[0], model, false);
  EXPECT_THAT(refusal(inputs, {.output = {.dtype = DType::F16}}),
              AllOf(HasSubstr(model.rbegin()->first), HasSubstr("fp16"), HasSubstr("--dtype")));
}

TEST_F(MergeModels, ReplacesOnlyModels) {
  const auto inputs = make(2, "F32");
  fs::create_directory(output_);
  std::ofstream(output_ / "thesis.tex") << "years of work";
  EXPECT_THAT(refusal(inputs), AllOf(HasSubstr("already exists"), HasSubstr("--overwrite")));
  EXPECT_THAT(refusal(inputs, {.output = {.overwrite = true}}), HasSubstr("no config.json"));
  output_ = inputs[1];
  EXPECT_THAT(refusal(inputs, {.output = {.overwrite = true}}),
              HasSubstr("would replace the input"));
  output_ = directory_.path();
  EXPECT_THAT(refusal(inputs, {.output = {.overwrite = true}}),
              HasSubstr("would replace the input"));
  output_ = directory_ / "no/such/parent";
  EXPECT_THAT(refusal(inputs), HasSubstr("does not exist"));
  output_ = directory_ / "link";
  fs::create_directory_symlink("m0", output_);
  EXPECT_THAT(refusal({inputs[1]}, {.output = {.overwrite = true}}), HasSubstr("not a directory"));
}

TEST_F(MergeModels, WaitsForNoOtherProcess) {
  const auto inputs = make(2, "F32");
  fs::create_directory(directory_ / ".merged.tmp");
  std::ofstream(directory_ / ".merged.tmp/model.safetensors") << "half";
  const DirectoryLock other(directory_ / ".merged.tmp");
  EXPECT_THAT(refusal(inputs), HasSubstr("another process"));
}

TEST_F(MergeModels, OverwritesAModel) {
  const auto inputs = make(2, "F32");
  merge_models({inputs[0]}, output_);
  std::ofstream(output_ / "old.txt") << "of the user";
  EXPECT_THROW(merge_models({inputs[1]}, output_, {.output = {.overwrite = true}}), UserError);
  fs::rename(output_ / "old.txt",
             output_ / "model-00009-of-00009.safetensors");  // of the old model
  fs::create_directory(directory_ / ".merged.tmp");          // a killed process left it
  std::ofstream(directory_ / ".merged.tmp/model-00002-of-00002.safetensors") << "half";
  merge_models({inputs[1]}, output_, {.output = {.overwrite = true}});
  EXPECT_FALSE(fs::exists(output_ / "model-00009-of-00009.safetensors"));
  EXPECT_FALSE(fs::exists(output_ / "model-00002-of-00002.safetensors"));
  EXPECT_FALSE(fs::exists(directory_ / ".merged.tmp"));
  EXPECT_FALSE(fs::exists(directory_ / ".merged.old"));
  for (const auto& [name, tensor] : read_raw_model(inputs[1]))
    EXPECT_EQ(read_raw_model(output_).at(name).values, tensor.values);
}

}  // namespace
}  // namespace kintsugi
