#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/temporary_directory.h"

namespace kintsugi {

// Whoever reads files from outside, with files that it accepts.
struct FileParser {
  using Files = std::map<std::string, std::string>;  // name in a directory -> content

  std::string name;
  std::vector<Files> samples;
  std::vector<std::string> damaged;  // which files may be; empty: all
  std::function<void(const std::filesystem::path& directory)> read;
  // Called before `read`: makes right what depends on the damaged file (its checksum).
  std::function<void(const std::filesystem::path& directory, const std::string& file)> mend = {};
};
std::vector<FileParser> file_parsers();

// What came of damaged inputs.
struct FuzzCounts {
  std::uint64_t accepted = 0, refused = 0;
};

// Damages the samples of one parser and has it read them. Input i is a function of seed and i.
class ParserFuzz {
 public:
  ParserFuzz(const FileParser& parser, std::uint64_t seed) : parser_(parser), seed_(seed) {}

  // The files of input i into the directory.
  void write(std::uint64_t i) const;
  // Reads them: "" unless something else than a UserError came out.
  std::string read(FuzzCounts& counts) const;
  const std::filesystem::path& directory() const { return directory_.path(); }

 private:
  const FileParser& parser_;
  std::uint64_t seed_;
  TemporaryDirectory directory_;
};

}  // namespace kintsugi
