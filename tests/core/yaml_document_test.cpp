#include "core/yaml_document.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <yaml-cpp/yaml.h>

#include <functional>
#include <string>

#include "core/error.h"

namespace kintsugi {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string error_of(const std::function<void()>& action) {
  try {
    action();
  } catch (const UserError& error) {
    return error.what();
  }
  return "no error";
}

std::string document_error(const std::string& text, const std::vector<std::string>& set = {}) {
  return error_of([&] { YamlDocument(text, "x.yaml", set); });
}

TEST(YamlOverride, MakesMapsAndReplacesValues) {
  YAML::Node tree = YAML::Load("{optimizer: {lr: 1, eps: 2}, run: {seed: 3}}");
  apply_override(tree, "optimizer.lr=3e-4");
  apply_override(tree, "train.loss_scale.initial=65536");
  apply_override(tree, "optimizer.betas=[0.8, 0.9]");
  apply_override(tree, "run={dir: a=b}");
  apply_override(tree, "device=cpu");
  EXPECT_EQ(tree["optimizer"]["lr"].Scalar(), "3e-4");
  EXPECT_EQ(tree["optimizer"]["eps"].Scalar(), "2");
  EXPECT_EQ(tree["optimizer"]["betas"][1].Scalar(), "0.9");
  EXPECT_EQ(tree["train"]["loss_scale"]["initial"].Scalar(), "65536");
  EXPECT_EQ(tree["run"]["dir"].Scalar(), "a=b");
  EXPECT_FALSE(tree["run"]["seed"]);
  EXPECT_EQ(tree["device"].Scalar(), "cpu");
}

TEST(YamlOverride, AliasesDoNotChangeTogether) {
  YAML::Node tree = YAML::Load("{a: &x {k: 1}, b: *x}");
  apply_override(tree, "b.k=2");
  EXPECT_EQ(tree["a"]["k"].Scalar(), "1");
  EXPECT_EQ(tree["b"]["k"].Scalar(), "2");
}

TEST(YamlOverride, ErrorsNameTheOverride) {
  const auto apply = [](const std::string& assignment) {
    return error_of([&] {
      YAML::Node tree = YAML::Load("{data: {train: [1]}, device: cpu}");
      apply_override(tree, assignment);
    });
  };
  EXPECT_THAT(apply("optimizer.lr"), StartsWith("--set optimizer.lr: there is no '='"));
  for (const char* key : {"", ".", "a.", ".a", "a..b", "a b", "data.train[0]"})
    EXPECT_THAT(apply(std::string(key) + "=1"), HasSubstr("is not a key")) << key;
  EXPECT_THAT(apply("a=[1"), StartsWith("--set a=[1 line 1 is not valid YAML"));
  EXPECT_THAT(apply("data.train.path=x"),
              StartsWith("--set data.train.path=x: data.train is a list and has no keys below it"));
  EXPECT_THAT(apply("device.name=x"), HasSubstr("device is 'cpu' and has no keys"));
  EXPECT_THAT(apply("a={b: 1, b: 2}"), HasSubstr("b is given twice"));
}

TEST(YamlQuoted, AnyTextIsReadBackUnchanged) {
  for (const char* text : {"plain", "", "a, b: {c}.txt", "\"quoted\" \\ back", "# no comment",
                           "tab\tand\nline", "yes", "käse / 東京", "'single'"})
    EXPECT_EQ(YAML::Load("[" + yaml_quoted(text) + "]")[0].as<std::string>(), text) << text;
}

TEST(YamlDocument, WhereAKeyWasSet) {
  const YamlDocument document("a:\n  b: 1\n  c: 2\nd: [1]\n", "x.yaml",
                              {"a.c=3", "e.f=4", "a.c=5"});
  EXPECT_EQ(document.where("a.b"), "x.yaml line 2");
  EXPECT_EQ(document.where("a.c"), "--set a.c=5");
  EXPECT_EQ(document.where("e.f"), "--set e.f=4");
  EXPECT_EQ(document.where("d"), "x.yaml line 4");
  EXPECT_EQ(document.where("a.missing"), "x.yaml");
  EXPECT_TRUE(document.has("e.f"));
  EXPECT_FALSE(document.has("e.g"));
  EXPECT_FALSE(document.has("d.g"));
  EXPECT_EQ(document.source_of("e"), "x.yaml (with --set e.f=4)");
  EXPECT_EQ(document.source_of("d"), "x.yaml");
}

TEST(YamlDocument, RefusesOtherFiles) {
  EXPECT_EQ(document_error(""), "no error");
  EXPECT_EQ(document_error("# only a comment\n"), "no error");
  EXPECT_THAT(document_error("just words"), HasSubstr("found a string"));
  EXPECT_THAT(document_error("[1, 2]"), HasSubstr("found a list"));
  EXPECT_THAT(document_error("a: 1\n---\nb: 2\n"),
              StartsWith("x.yaml line 2: text after the end of the configuration"));
  EXPECT_THAT(document_error("a: 1\nb: [1, 2\n"), HasSubstr("is not valid YAML"));
  EXPECT_THAT(document_error("a: b: c\n"), StartsWith("x.yaml line 1 is not valid YAML"));
  // yaml-cpp's LoadAll never returns from this one.
  EXPECT_THAT(document_error("&0.9, 0. 5]"), HasSubstr("a stray bracket or a second document"));
  EXPECT_THAT(document_error("{a: 1}\n}\nb: 2\n"), Not("no error"));
  EXPECT_THAT(document_error("a: *nobody\n"), HasSubstr("is not valid YAML"));
  EXPECT_EQ(document_error("a:\n  b: 1\n  c: 1\n  b: 2\n"),
            "x.yaml line 4: a.b is given twice: remove one");
  EXPECT_THAT(document_error("? [1, 2]\n: 3\n"), HasSubstr("a key must be a word, not a list"));
  EXPECT_THAT(document_error(std::string(1 << 20, ' ') + "a: 1"),
              HasSubstr("is it the right file?"));
}

TEST(YamlDocument, RefusesInfiniteTrees) {
  EXPECT_THAT(document_error("a: &a [*a]"), HasSubstr("nested more than 64 levels"));
  EXPECT_THAT(document_error("a: " + std::string(70, '[') + std::string(70, ']')),
              HasSubstr("nested more than 64 levels"));
  std::string laughs = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n";
  for (int i = 1; i < 10; ++i)
    laughs += fmt::format("a{0}: &a{0} [*a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}, *a{1}]\n",
                          i, i - 1);
  EXPECT_THAT(document_error(laughs), HasSubstr("more than 100000 values"));
  // Deep enough to overflow the stack of a recursive parser without a limit.
  for (const char* opening : {"[", "{", "- ", "? ", "{a: ", "[{"}) {
    std::string text;
    while (text.size() < 300'000) text += opening;
    EXPECT_NE(document_error(text), "no error") << opening;
  }
}

}  // namespace
}  // namespace kintsugi
