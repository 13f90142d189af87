#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "data/corpora/input_files.h"
#include "support/errors.h"
#include "support/temporary_directory.h"

namespace kintsugi {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(ExpandInputs, PatternsAndNames) {
  const TemporaryDirectory directory;
  for (const char* name : {"b.txt", "a.txt", "c.jsonl", "odd[1].txt"}) directory.write(name, "x");
  std::filesystem::create_directory(directory / "sub.txt");
  const auto names = [&](const std::vector<std::string>& patterns) {
    std::vector<std::string> inputs;
    for (const std::string& pattern : patterns) inputs.push_back((directory / pattern).string());
    std::vector<std::string> found;
    for (const auto& path : expand_inputs(inputs)) found.push_back(path.filename().string());
    return found;
  };
  EXPECT_THAT(names({"*.txt"}), ElementsAre("a.txt", "b.txt", "odd[1].txt"));
  EXPECT_THAT(names({"c.jsonl", "b.txt", "*.txt", "./b.txt"}),
              ElementsAre("c.jsonl", "b.txt", "a.txt", "odd[1].txt"));
  EXPECT_THAT(names({"odd[1].txt"}), ElementsAre("odd[1].txt"));
  EXPECT_THAT(user_error_of([&] { names({"*.gz"}); }), HasSubstr("*.gz"));
  EXPECT_THAT(user_error_of([&] { names({"nosuch"}); }), HasSubstr("nosuch"));
  EXPECT_THAT(user_error_of([&] { names({"sub.txt"}); }), HasSubstr("directory"));
  EXPECT_THAT(user_error_of([&] { expand_inputs({}); }), HasSubstr("no input"));
}

}  // namespace
}  // namespace kintsugi
