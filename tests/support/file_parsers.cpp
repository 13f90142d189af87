#include "support/file_parsers.h"

#include <fmt/format.h>

#include <fstream>
#include <random>
#include <typeinfo>

#include "core/error.h"
#include "core/hash.h"
#include "support/mutated_bytes.h"
#include "support/parser_lists.h"

namespace kintsugi {

namespace fs = std::filesystem;
using Files = FileParser::Files;

Files files_in(const fs::path& directory) {
  Files files;
  for (const auto& entry : fs::recursive_directory_iterator(directory))
    if (entry.is_regular_file() && !entry.is_symlink())
      files[fs::relative(entry.path(), directory).string()] = content_of(entry.path());
  return files;
}

std::vector<FileParser> file_parsers() {
  std::vector<FileParser> parsers = data_parsers();
  for (auto* const more : {config_parsers, eval_parsers, run_parsers})
    for (FileParser& parser : more()) parsers.push_back(std::move(parser));
  return parsers;
}

namespace {

void write_files(const fs::path& directory, const Files& files) {
  for (const auto& [name, content] : files) {
    fs::create_directories((directory / name).parent_path());
    std::ofstream(directory / name, std::ios::binary) << content;
  }
}

}  // namespace

void ParserFuzz::write(std::uint64_t i) const {
  for (const auto& entry : fs::directory_iterator(directory())) fs::remove_all(entry.path());
  std::mt19937_64 random(hash64(parser_.name) ^ seed_ * 0x9E3779B97F4A7C15ull ^ i << 20);
  const auto any = [&](const auto& list) -> const auto& { return list[random() % list.size()]; };
  Files files = any(parser_.samples);
  std::vector<std::string> names = parser_.damaged;
  if (names.empty())
    for (const auto& [name, content] : files) names.push_back(name);
  const std::string& name = any(names);
  // Bytes of another sample get past checks that random bytes fail.
  const std::string other = any(parser_.samples).begin()->second;
  files[name] = mutated_bytes(files[name], other, random);
  write_files(directory(), files);
  if (parser_.mend && !name.ends_with("checksums.json")) parser_.mend(directory(), name);
}

std::string ParserFuzz::read(FuzzCounts& counts) const {
  try {
    parser_.read(directory());
    ++counts.accepted;
  } catch (const UserError&) {
    ++counts.refused;
  } catch (const std::exception& error) {
    return fmt::format("{}: {}", typeid(error).name(), error.what());
  }
  return "";
}

}  // namespace kintsugi
