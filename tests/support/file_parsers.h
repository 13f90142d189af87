#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "support/temporary_directory.h"

namespace kintsugi {

// A parser of files from outside, with sample files that it accepts.
struct FileParser {
  using Files = std::map<std::string, std::string>;  // name in a directory -> content

  std::string name;
  std::vector<Files> samples;
  std::vector<std::string> damaged;  // the files to damage; empty: all
  std::function<void(const std::filesystem::path& directory)> read;
  // Called before `read`: repairs what depends on the damaged file (its checksum).
  std::function<void(const std::filesystem::path& directory, const std::string& file)> mend = {};
  bool refuses = true;  // false: what is damaged is left out
};
std::vector<FileParser> file_parsers();

// How many damaged inputs were accepted and refused.
struct FuzzCounts {
  std::uint64_t accepted = 0, refused = 0;
};

// Damages the samples of one parser and has it read them. Input i depends only on the seed and i.
class ParserFuzz {
 public:
  ParserFuzz(const FileParser& parser, std::uint64_t seed) : parser_(parser), seed_(seed) {}

  // Writes the files of input i into the directory.
  void write(std::uint64_t i) const;
  // Reads them. Returns "" if they were accepted or a UserError was thrown, otherwise the error.
  std::string read(FuzzCounts& counts) const;
  const std::filesystem::path& directory() const { return directory_.path(); }

 private:
  const FileParser& parser_;
  std::uint64_t seed_;
  TemporaryDirectory directory_;
};

}  // namespace kintsugi
