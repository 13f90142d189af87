// A damaged file is read or refused with a UserError. This test tries a few of each kind;
// `make fuzz-parsers` tries many more.
#include <gtest/gtest.h>

#include "support/file_parsers.h"

namespace kintsugi {
namespace {

TEST(FileParsers, ReadOrRefuseDamagedFiles) {
  constexpr std::uint64_t kSeed = 7, kInputs = 60;
  for (const FileParser& parser : file_parsers()) {
    const ParserFuzz fuzz(parser, kSeed);
    FuzzCounts counts;
    for (std::uint64_t i = 0; i < kInputs; ++i) {
      fuzz.write(i);
      EXPECT_EQ(fuzz.read(counts), "")
          << "repeat it with kintsugi_fuzz_parsers --only " << parser.name << " --seed " << kSeed
          << " --from " << i << " --inputs 1";
    }
    EXPECT_EQ(counts.refused > 0, parser.refuses) << parser.name;
  }
}

// Otherwise damaged files would be refused for another reason.
TEST(FileParsers, AcceptTheSamplesThemselves) {
  for (const FileParser& parser : file_parsers())
    for (const FileParser::Files& files : parser.samples) {
      const TemporaryDirectory directory;
      for (const auto& [name, content] : files) {
        std::filesystem::create_directories((directory / name).parent_path());
        directory.write(name, content);
      }
      EXPECT_NO_THROW(parser.read(directory.path())) << parser.name;
    }
}

}  // namespace
}  // namespace kintsugi
