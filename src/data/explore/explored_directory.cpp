#include "data/explore/explored_directory.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "core/error.h"
#include "core/file.h"
#include "core/json_members.h"
#include "core/units.h"
#include "data/explore/document_sample.h"
#include "data/explore/explored_files.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::ordered_json;

constexpr std::size_t kMostSampled = 100;

std::string read_at_most(const fs::path& path, std::size_t most_bytes) {
  const FileDescriptor file = open_regular_file(path);
  std::string text;
  for (std::size_t got = 1; got > 0;) {
    if (text.size() > most_bytes)
      user_error("{} has more than {}: it cannot be shown", path.string(),
                 format_bytes(static_cast<double>(most_bytes)));
    const std::size_t before = text.size();
    text.resize(std::min(before + (std::size_t{1} << 20), most_bytes + 1));
    const ssize_t read = ::read(file, text.data() + before, text.size() - before);
    if (read < 0 && errno != EINTR)
      user_error("cannot read {}: {}", path.string(), std::strerror(errno));
    got = read < 0 ? 1 : static_cast<std::size_t>(read);
    text.resize(before + (read < 0 ? 0 : got));
  }
  return text;
}

}  // namespace

Json read_explored_json(const fs::path& path, std::size_t most_bytes) {
  std::string problem;
  auto json = parse_untrusted_json(read_at_most(path, most_bytes), &problem);
  if (!json) user_error("{} is damaged: {}", path.string(), problem);
  return std::move(*json);
}

void check_explored_directory(const fs::path& directory) {
  if (!fs::is_directory(directory))
    user_error("{} is no directory: give the --output of kintsugi data curate or data dedup",
               directory.string());
  if (curation_file(directory).empty() && dedup_file(directory).empty())
    user_error(
        "{} has neither curation.json nor dedup.json: give the --output of kintsugi data curate "
        "or data dedup",
        directory.string());
}

Json explored_overview(const fs::path& directory) {
  check_explored_directory(directory);
  const fs::path curation = curation_file(directory);
  return curation.empty() ? dedup_overview(dedup_file(directory)) : curation_overview(curation);
}

Json explored_sample(const fs::path& directory, std::uint64_t seed, std::size_t count) {
  check_explored_directory(directory);
  const fs::path curation = curation_file(directory);
  const ExploredDocuments all = curation.empty() ? deduplicated_documents(dedup_file(directory))
                                                 : curated_documents(curation);
  const DocumentSample sample =
      draw_documents(all.files, all.text_key, seed, std::min(count, kMostSampled));
  Json documents = Json::array(), notes = Json::array();
  for (const SampledDocument& one : sample.documents)
    documents.push_back({{"file", one.file},
                         {"text", one.text},
                         {"bytes", one.bytes},
                         {"origin", one.origin},
                         {"language", one.language},
                         {"url", one.url}});
  if (sample.only_beginnings)
    notes.push_back("Large files with a single compressed frame: drawn from their beginning.");
  if (!sample.problem.empty()) notes.push_back(sample.problem);
  return {{"seed", seed}, {"documents", documents}, {"notes", notes}};
}

}  // namespace kintsugi
