#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kintsugi {

struct SampledDocument {
  std::string file = {};
  std::string text = {};  // its beginning
  std::int64_t bytes = 0;
  std::string origin = {}, language = {}, url = {};  // members of the record; empty: none
};

struct DocumentSample {
  std::vector<SampledDocument> documents = {};
  // Some files are one long compressed frame: of these the first few megabytes were drawn from.
  bool only_beginnings = false;
  std::string problem = {};  // of the first file that could not be read
};

// Random documents of files of JSONL, which may be of any size: each is drawn from a few megabytes
// of text behind a random byte of a random file, or from the next frame of a compressed one. The
// choice depends only on the files and the seed. Texts are cut.
DocumentSample draw_documents(const std::vector<std::filesystem::path>& files,
                              const std::string& text_key, std::uint64_t seed, std::size_t count);

}  // namespace kintsugi
