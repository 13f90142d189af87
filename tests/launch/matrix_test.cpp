#include "launch/matrix.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "support/errors.h"
#include "train/config/config.h"

namespace kintsugi {
namespace {

using testing::AllOf;
using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kRun = R"(run: {dir: runs/m}
matrix:
  model: [llama-tiny, {preset: gpt2-tiny, layers: 2}]
  # both corpora
  data.train: [texts/en.txt, [{path: texts/en.txt}, {path: texts/fi.txt, weight: 2}]]
  layout.tp: [1, 2]
model: {preset: llama-tiny}
data:
  train: [{path: x.txt}]
  sequence_length: 64
batch: {global: 8, micro: 4}
)";

std::vector<std::string> names_of(const Matrix& matrix) {
  std::vector<std::string> names;
  for (const MatrixCell& cell : matrix.cells) names.push_back(cell.name);
  return names;
}

TEST(Matrix, IsTheProductOfItsLists) {
  const Matrix matrix = read_matrix(kRun, "m.yaml");
  EXPECT_THAT(names_of(matrix),
              ElementsAre("llama-tiny_en.txt_tp-1", "llama-tiny_en.txt_tp-2",
                          "llama-tiny_en.txt+fi.txt_tp-1", "llama-tiny_en.txt+fi.txt_tp-2",
                          "gpt2-tiny_en.txt_tp-1", "gpt2-tiny_en.txt_tp-2",
                          "gpt2-tiny_en.txt+fi.txt_tp-1", "gpt2-tiny_en.txt+fi.txt_tp-2"));
  EXPECT_THAT(matrix.keys, ElementsAre("model", "data.train", "layout.tp"));
  const RunConfig first = parse_run_config(matrix.text, "m.yaml", matrix.cells.front().overrides);
  EXPECT_EQ(first.model_preset, "llama-tiny");
  EXPECT_EQ(first.data.train.at(0).path, "texts/en.txt");
  EXPECT_EQ(first.layout.tp, 1);
  const RunConfig last = parse_run_config(matrix.text, "m.yaml", matrix.cells.back().overrides);
  EXPECT_EQ(last.model_preset, "gpt2-tiny");
  EXPECT_EQ(last.model.layers, 2);
  EXPECT_EQ(last.data.train.size(), 2u);
  EXPECT_EQ(last.data.train[1].weight, 2.0);
  EXPECT_EQ(last.layout.tp, 2);
}

TEST(Matrix, OtherLinesKeepTheirNumbers) {
  std::string text = kRun;
  text.replace(text.find("sequence_length"), 15, "sequence_lenght");
  EXPECT_THAT(user_error_of([&] { parse_run_config(read_matrix(text, "m.yaml").text, "m.yaml"); }),
              AllOf(HasSubstr("m.yaml line 10"), HasSubstr("sequence_length")));
}

TEST(Matrix, ATypoInAKeyNamesTheNearest) {
  std::string text = kRun;
  text.replace(text.find("layout.tp"), 9, "layout.tpp");
  const Matrix matrix = read_matrix(text, "m.yaml");
  EXPECT_THAT(user_error_of(
                  [&] { parse_run_config(matrix.text, "m.yaml", matrix.cells.front().overrides); }),
              AllOf(HasSubstr("layout.tpp"), HasSubstr("did you mean 'layout.tp'")));
}

TEST(Matrix, WithoutOneThereIsOneCell) {
  const Matrix matrix = read_matrix("run: {dir: x}\n", "m.yaml");
  EXPECT_EQ(matrix.text, "run: {dir: x}\n");
  ASSERT_EQ(matrix.cells.size(), 1u);
  EXPECT_EQ(matrix.cells[0].name, "");
  EXPECT_TRUE(matrix.cells[0].overrides.empty());
}

TEST(Matrix, SaysWhatIsWrong) {
  const auto wrong = [](const std::string& text) {
    return user_error_of([&] { read_matrix(text, "m.yaml"); });
  };
  EXPECT_THAT(wrong("matrix: 3\n"), HasSubstr("m.yaml line 1: matrix: keys with lists"));
  EXPECT_THAT(wrong("a: 1\nmatrix: {}\n"), HasSubstr("line 2"));
  EXPECT_THAT(wrong("matrix: {layout.tp: 2}\n"), HasSubstr("matrix.layout.tp: a list of values"));
  EXPECT_THAT(wrong("matrix: {layout.tp: []}\n"), HasSubstr("an empty one"));
  EXPECT_THAT(wrong("matrix: {layout.tp: [1, 2, 1]}\n"), HasSubstr("item 3 is the same"));
  EXPECT_THAT(wrong("matrix: {run.dir: [a, b]}\n"), HasSubstr("run.dir"));
  EXPECT_THAT(wrong("matrix: {layout: [{tp: 1}], layout.tp: [1]}\n"),
              HasSubstr("layout and layout.tp, which set the same values"));
  EXPECT_THAT(wrong("{run: {dir: x}, matrix: {layout.tp: [1]}}\n"), HasSubstr("lines of its own"));
  std::string many = "matrix:\n";
  for (const char* key : {"a", "b", "c", "d"})
    many += std::string("  ") + key + ": [1, 2, 3, 4, 5, 6, 7, 8, 9, 10]\n";
  EXPECT_THAT(wrong(many), HasSubstr("more than 1000 cells"));
}

TEST(Matrix, NamesAreFileNamesAndDiffer) {
  const Matrix matrix = read_matrix(
      "matrix: {run.seed: [1], data.train: [../a, a, 'b c/d$e'], model: [{layers: 1}, {layers: "
      "2}]}\n",
      "m.yaml");
  const auto names = names_of(matrix);
  EXPECT_EQ(std::set(names.begin(), names.end()).size(), 6u);
  for (const std::string& name : names)
    EXPECT_EQ(name.find_first_of("/ $"), std::string::npos) << name;
  EXPECT_EQ(names[0], "seed-1_a_1");
  EXPECT_EQ(names[2], "seed-1_a_1-2");
}

TEST(Matrix, AnOverrideOfTheSameKeyIsRefused) {
  const Matrix matrix = read_matrix(kRun, "m.yaml");
  EXPECT_THAT(user_error_of([&] { check_overrides(matrix, {"layout.tp=4"}); }),
              HasSubstr("the matrix varies layout.tp"));
  EXPECT_THAT(user_error_of([&] { check_overrides(matrix, {"layout={tp: 4}"}); }),
              HasSubstr("the matrix varies layout.tp"));
  EXPECT_THAT(user_error_of([&] { check_overrides(matrix, {"model.layers=4"}); }),
              HasSubstr("the matrix varies model"));
  EXPECT_NO_THROW(check_overrides(matrix, {"layout.tpx=4", "optimizer.lr=1"}));
}

TEST(Matrix, TrainRefusesIt) {
  EXPECT_THAT(user_error_of([] { parse_run_config(kRun, "m.yaml"); }),
              AllOf(HasSubstr("m.yaml line 2"), HasSubstr("kintsugi launch")));
}

}  // namespace
}  // namespace kintsugi
