#include "data/explore/document_sample.h"

#include <algorithm>
#include <set>
#include <string_view>

#include "core/error.h"
#include "core/hash.h"
#include "core/philox.h"
#include "data/corpora/input_files.h"
#include "data/corpora/record_reader.h"
#include "data/curation/curation_example.h"
#include "data/curation/document.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;

constexpr std::size_t kWindowBytes = std::size_t{4} << 20;         // of text
constexpr std::uint64_t kSearchedBytes = std::uint64_t{16} << 20;  // for the next frame
constexpr std::size_t kDrawsPerDocument = 4;

class Drawing {
 public:
  Drawing(const std::vector<fs::path>& files, const std::string& text_key)
      : files_(files), text_key_(text_key) {
    for (const fs::path& file : files) {
      std::error_code error;
      const auto bytes = fs::file_size(file, error);
      total_ += error ? 0 : bytes;
      ends_.push_back(total_);
    }
  }

  DocumentSample draw(std::uint64_t seed, std::size_t count) {
    for (std::uint64_t i = 0; total_ > 0 && i < kDrawsPerDocument * count; ++i) {
      if (sample_.documents.size() == count) break;
      const Philox::Block random = Philox::draw(seed, i);
      const std::uint64_t byte = (std::uint64_t{random[0]} << 32 | random[1]) % total_;
      const auto file = static_cast<std::size_t>(
          std::upper_bound(ends_.begin(), ends_.end(), byte) - ends_.begin());
      const std::uint64_t first = file == 0 ? 0 : ends_[file - 1];
      try {
        add(file, line_of(lines_at(file, byte - first), random[2]));
      } catch (const UserError& error) {
        if (sample_.problem.empty()) sample_.problem = error.what();
      }
    }
    return std::move(sample_);
  }

 private:
  // The complete lines behind a byte of a file.
  std::string_view lines_at(std::size_t file, std::uint64_t byte) {
    TextStream stream(files_[file]);
    if (whole_.contains(file) || !stream.seek(byte, kSearchedBytes)) {
      // Behind the beginning of the last frame, or the file has only one.
      if (!stream.seek(1, kSearchedBytes)) whole_.insert(file);
      stream.seek(byte = 0, kSearchedBytes);
    }
    window_.resize(kWindowBytes);
    const std::size_t got = stream.read(window_);
    std::string_view text(window_.data(), got);
    const bool is_plain = byte > 0 && stream.bytes_read() == byte + got;
    if (is_plain) text.remove_prefix(std::min(text.find('\n'), text.size() - 1) + 1);
    if (got < kWindowBytes) return text;
    sample_.only_beginnings |= whole_.contains(file);
    return text.substr(0, text.rfind('\n') + 1);
  }

  static std::string_view line_of(std::string_view text, std::uint32_t random) {
    std::vector<std::string_view> lines;
    for (std::size_t begin = 0; begin < text.size();) {
      const std::size_t end = std::min(text.find('\n', begin), text.size());
      if (end > begin) lines.push_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return lines.empty() ? std::string_view() : lines[random % lines.size()];
  }

  void add(std::size_t file, std::string_view line) {
    if (line.empty() || !seen_.insert(hash64(line)).second) return;
    const std::string name = files_[file].filename().string();
    Document document;
    try {
      parse_json_line(line, text_key_, "", document.text, document.prompt);
    } catch (const JsonLineError& error) {
      user_error("{} has a line that is no document: {}", name, error.what());
    }
    const ObjectText members(line);
    sample_.documents.push_back({.file = name,
                                 .text = std::string(excerpt_of(document.text)),
                                 .bytes = std::ssize(document.text),
                                 .origin = std::string(excerpt_of(members.text_of("origin"))),
                                 .language = std::string(excerpt_of(members.text_of("language"))),
                                 .url = std::string(excerpt_of(members.text_of("url")))});
  }

  const std::vector<fs::path>& files_;
  const std::string& text_key_;
  std::vector<std::uint64_t> ends_;  // of each file, in all of them
  std::uint64_t total_ = 0;
  std::vector<char> window_;
  std::set<std::size_t> whole_;  // files that are read from their beginning
  std::set<std::uint64_t> seen_;
  DocumentSample sample_;
};

}  // namespace

DocumentSample draw_documents(const std::vector<fs::path>& files, const std::string& text_key,
                              std::uint64_t seed, std::size_t count) {
  return Drawing(files, text_key).draw(seed, count);
}

}  // namespace kintsugi
