#include "data/chat/example_lines.h"

#include <algorithm>

namespace kintsugi {
namespace {

// An example is a text for a context of at most some million tokens.
constexpr std::size_t kLongestExample = std::size_t{1} << 28;

}  // namespace

ExampleLines::ExampleLines(std::vector<std::filesystem::path> files) : files_(std::move(files)) {
  for (const auto& file : files_) bytes_total_ += std::filesystem::file_size(file);
}

std::vector<ExampleLine> ExampleLines::next(std::size_t bytes) {
  std::vector<ExampleLine> lines;
  std::size_t read = 0;
  Record record;
  while (lines.empty() || read < bytes) {
    if (!reader_) {
      if (opened_ == files_.size()) break;
      RecordReader::Sizes sizes;
      sizes.longest_line = kLongestExample;
      reader_ = std::make_unique<RecordReader>(files_[opened_++], RecordPosition{}, sizes);
    }
    if (!reader_->next(record)) {
      bytes_before_ += reader_->bytes_total();
      reader_.reset();
      continue;
    }
    std::string_view text = record.bytes;
    if (record.line == 1 && text.starts_with("\xEF\xBB\xBF")) text.remove_prefix(3);
    if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) continue;
    lines.push_back({reader_->name(), std::string(text), record.line});
    read += text.size();
  }
  return lines;
}

double ExampleLines::fraction_read() const {
  const std::uint64_t read = bytes_before_ + (reader_ ? reader_->bytes_read() : 0);
  return static_cast<double>(read) / static_cast<double>(std::max<std::uint64_t>(bytes_total_, 1));
}

}  // namespace kintsugi
