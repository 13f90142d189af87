// Descriptions of other programs, and where they are.
#include "plan_accuracy/program.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <regex>
#include <set>
#include <sstream>

#include "plan_accuracy/measured_rows.h"
#include "support/errors.h"
#include "support/paths.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::HasSubstr;

TEST(Program, InheritsAndHasOptions) {
  const Program base =
      parse_program("host_us: 7\noptions:\n  - {name: a, set: {step_ms: 5}}\n", "x");
  EXPECT_EQ(base.software.host_us, 7);
  EXPECT_EQ(base.software.step_ms, Software{}.step_ms);  // what is not said is this engine's
  EXPECT_EQ(with_options(base, "a").software.step_ms, 5);
  EXPECT_THAT(user_error_of([&] { with_options(base, "b"); }), HasSubstr("no option 'b'"));
  const Program old = load_program("megatron-2021"), derived = load_program("megatron-2022");
  EXPECT_FALSE(derived.software.fused_attention);
  EXPECT_EQ(derived.software.step_ms, old.software.step_ms);
  EXPECT_NE(derived.software.pipeline_stops, old.software.pipeline_stops);
  const Program titan = with_options(load_program("torchtitan"), "hopper compile fp8-rowwise");
  EXPECT_EQ(titan.software.elementwise, 1.6);
  EXPECT_EQ(titan.software.matmul_speed, 0.45);
}

TEST(Program, IsReadStrictly) {
  const auto refused = [](const char* text) {
    return user_error_of([&] { parse_program(text, "p.yaml"); });
  };
  EXPECT_THAT(refused("host_s: 7\n"), AllOf(HasSubstr("p.yaml"), HasSubstr("host_us")));
  EXPECT_THAT(refused("memory: jax\n"), HasSubstr("nanotron"));
  EXPECT_THAT(refused("hides_tensor: 2\n"), HasSubstr("hides_tensor"));
  EXPECT_THAT(refused("like: none\n"), HasSubstr("no other program 'none'"));
  EXPECT_THAT(refused("options:\n  - {name: a, set: {name: x}}\n"), HasSubstr("no 'name' to set"));
  EXPECT_THAT(refused("options:\n  - {name: a, set: {communication: 0}}\n"),
              HasSubstr("communication is 0"));
  EXPECT_THAT(user_error_of([] { load_program("nanotro"); }), HasSubstr("did you mean 'nanotron'"));
}

TEST(Program, EveryOneIsUsedAndEveryRowHasOne) {
  std::set<std::string> used;
  for (const char* file : {"layouts.csv", "memory.csv"}) {
    const std::string path = source_directory() + "/bench/published/" + file;
    const CsvTable table(content_of(path), file);
    ASSERT_GT(table.rows(), 400u);
    for (std::size_t i = 0; i < table.rows(); ++i) {
      EXPECT_NO_THROW(program_of_row(table, i));
      used.insert(table.at(i, "program"));
    }
  }
  used.insert("megatron-2022");       // of rows in the tests
  used.insert("megatron-deepspeed");  // of others that are like it
  const auto names = program_names();
  EXPECT_EQ(used, std::set<std::string>(names.begin(), names.end()));
}

// Beside each value, or above it.
TEST(Program, EveryValueNamesItsSource) {
  const std::regex value("^[a-z_0-9]+: +[^ #].*"), name("^(name|memory|like): .*");
  int values = 0;
  for (const std::string& program : program_names()) {
    std::istringstream lines(content_of(std::filesystem::path(source_directory()) /
                                        ("tools/plan_accuracy/programs/" + program + ".yaml")));
    std::string before;
    for (std::string line; std::getline(lines, line); before = line) {
      if (!std::regex_match(line, value) || std::regex_match(line, name)) continue;
      ++values;
      EXPECT_TRUE(line.find(" # ") != std::string::npos || before.starts_with("# "))
          << program << ": " << line;
    }
  }
  EXPECT_GT(values, 60);
}

// The words of a row decide; what its origin is called does not.
TEST(Program, IsNotGuessed) {
  const auto predicted = [](const std::string& start) {
    const CsvTable table(
        "dataset,source,hardware,note,layers,hidden,heads,seq,program,machine,gpus,MBS,GBS\n" +
            start + ",24,2304,24,2048,megatron-core,dgx-h100,8,1,64\n",
        "rows.csv");
    return predict(read_row(table, 0)).step_s;
  };
  EXPECT_EQ(predicted("ultrascale,nanotron,MI250X,flash compile rowwise dualpipe"),
            predicted("x,y,z,"));
}

// The program that is installed has the model of its own engine only.
TEST(Program, IsNotPartOfTheProduct) {
  const std::string binary = content_of(kintsugi_binary());
  ASSERT_GT(binary.size(), 1'000'000u);
  EXPECT_NE(binary.find("gemm_efficiency"), std::string::npos);
  for (const char* word : {"nanotron", "llm-foundry", "deepspeed-zero3", "Megatron-Core",
                           "hides_tensor", "MeasuredRow", "ProgramMemory"})
    EXPECT_EQ(binary.find(word), std::string::npos) << word;
}

}  // namespace
}  // namespace kintsugi
