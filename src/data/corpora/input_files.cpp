#include "data/corpora/input_files.h"

#include <fcntl.h>
#include <glob.h>
#include <sys/stat.h>
#include <unistd.h>
#include <zlib.h>
#include <zstd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/file.h"

namespace kintsugi {

bool is_pattern(const std::string& name) {
  std::error_code ignored;
  return name.find_first_of("*?[{") != std::string::npos && !std::filesystem::exists(name, ignored);
}

std::vector<std::filesystem::path> expand_pattern(const std::string& pattern) {
  glob_t found{};
  const int code = ::glob(pattern.c_str(), GLOB_NOSORT | GLOB_BRACE, nullptr, &found);
  std::vector<std::filesystem::path> paths;
  for (std::size_t i = 0; i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  if (code != 0 && code != GLOB_NOMATCH) user_error("cannot search for {}", pattern);
  std::sort(paths.begin(), paths.end());
  paths.erase(std::unique(paths.begin(), paths.end()), paths.end());
  return paths;
}

std::vector<std::filesystem::path> expand_inputs(const std::vector<std::string>& patterns) {
  std::vector<std::filesystem::path> files;
  std::set<std::filesystem::path> seen;
  const auto add = [&](const std::filesystem::path& file) {
    if (std::filesystem::is_directory(file))
      user_error("{} is a directory: name its files with a pattern, like '{}/*.jsonl.zst'",
                 file.string(), file.string());
    if (seen.insert(std::filesystem::absolute(file).lexically_normal()).second)
      files.push_back(file);
  };
  for (const std::string& pattern : patterns) {
    if (!is_pattern(pattern)) {
      if (!std::filesystem::exists(pattern)) user_error("there is no file {}", pattern);
      add(pattern);
      continue;
    }
    const auto matches = expand_pattern(pattern);
    if (matches.empty()) user_error("no file matches {}", pattern);
    for (const auto& match : matches)
      if (!std::filesystem::is_directory(match)) add(match);
  }
  if (files.empty()) user_error("there are no input files");
  return files;
}

// Reads the file through one buffer. `rest` is read but not consumed yet.
struct TextStream::Source {
  explicit Source(const std::filesystem::path& path)
      : name(path.string()), descriptor(open_regular_file(path)), buffer(256 * 1024) {
    struct stat status {};
    if (::fstat(descriptor, &status) == 0) total = static_cast<std::uint64_t>(status.st_size);
    ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
  }

  std::size_t read(char* to, std::size_t bytes) {
    ssize_t got;
    do got = ::read(descriptor, to, bytes);
    while (got < 0 && errno == EINTR);
    if (got < 0) user_error("cannot read {}: {}", name, std::strerror(errno));
    bytes_read += static_cast<std::uint64_t>(got);
    return static_cast<std::size_t>(got);
  }
  // Refills `rest` if it is empty; false at the end of the file.
  bool fill() {
    if (!rest.empty()) return true;
    rest = {buffer.data(), read(buffer.data(), buffer.size())};
    return !rest.empty();
  }
  std::uint64_t position() const { return bytes_read - rest.size(); }

  std::string name;
  FileDescriptor descriptor;
  std::vector<char> buffer;
  std::string_view rest;
  std::uint64_t bytes_read = 0, total = 0;
};

struct TextStream::Decoder {
  virtual ~Decoder() = default;
  virtual std::size_t read(Source& source, std::span<char> buffer) = 0;
  virtual bool skip(Source&, std::uint64_t) { return false; }  // false: not supported
};

namespace {

using Source = TextStream::Source;

[[noreturn]] void truncated(const Source& source, const char* what) {
  user_error("{} ends at byte {} in the middle of its {} data: it is truncated, copy it again",
             source.name, source.position(), what);
}

[[noreturn]] void damaged(const Source& source, const char* what, const char* reason) {
  user_error("{} is damaged near byte {} ({}: {}): copy it again", source.name, source.position(),
             what, reason);
}

struct Plain : TextStream::Decoder {
  std::size_t read(Source& source, std::span<char> buffer) override {
    if (source.rest.empty()) return source.read(buffer.data(), buffer.size());
    const std::size_t bytes = std::min(buffer.size(), source.rest.size());
    std::memcpy(buffer.data(), source.rest.data(), bytes);
    source.rest.remove_prefix(bytes);
    return bytes;
  }
  bool skip(Source& source, std::uint64_t bytes) override {
    const std::uint64_t target = source.position() + bytes;
    if (::lseek(source.descriptor, static_cast<off_t>(target), SEEK_SET) < 0) return false;
    source.rest = {};
    source.bytes_read = target;
    return true;
  }
};

struct Gzip : TextStream::Decoder {
  Gzip() { KINTSUGI_CHECK(inflateInit2(&state, MAX_WBITS + 16) == Z_OK, "no memory for zlib"); }
  ~Gzip() override { inflateEnd(&state); }

  std::size_t read(Source& source, std::span<char> buffer) override {
    state.next_out = reinterpret_cast<Bytef*>(buffer.data());
    state.avail_out = static_cast<uInt>(std::min(buffer.size(), kMost));
    const uInt room = state.avail_out;
    while (state.avail_out == room) {
      if (!source.fill()) {
        if (inside) truncated(source, "gzip");
        return 0;
      }
      if (!inside) {  // start the next member
        inflateReset(&state);
        inside = true;
      }
      state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(source.rest.data()));
      state.avail_in = static_cast<uInt>(source.rest.size());
      const int code = inflate(&state, Z_NO_FLUSH);
      source.rest.remove_prefix(source.rest.size() - state.avail_in);
      if (code == Z_STREAM_END)
        inside = false;
      else if (code != Z_OK && code != Z_BUF_ERROR)
        damaged(source, "gzip", state.msg != nullptr ? state.msg : "data error");
    }
    return room - state.avail_out;
  }

  static constexpr std::size_t kMost = 1 << 30;
  z_stream state{};
  bool inside = true;  // a member
};

struct Zstd : TextStream::Decoder {
  Zstd() : state(ZSTD_createDCtx(), &ZSTD_freeDCtx) {
    KINTSUGI_CHECK(state != nullptr, "no memory for zstd");
    ZSTD_DCtx_setParameter(state.get(), ZSTD_d_windowLogMax, 31);  // zstd --long=31
  }
  std::size_t read(Source& source, std::span<char> buffer) override {
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    while (out.pos == 0) {
      // At the end of the file, zstd may still hold decompressed text.
      const bool more = source.fill();
      if (!more && !inside) return 0;
      ZSTD_inBuffer in{source.rest.data(), source.rest.size(), 0};
      const std::size_t code = ZSTD_decompressStream(state.get(), &out, &in);
      source.rest.remove_prefix(in.pos);
      if (ZSTD_isError(code)) damaged(source, "zstd", ZSTD_getErrorName(code));
      inside = code != 0;
      if (!more && inside && out.pos == 0) truncated(source, "zstd");
    }
    return out.pos;
  }
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> state;
  bool inside = true;  // a frame
};

std::unique_ptr<TextStream::Decoder> decoder_for(Source& source) {
  // The first read may be short; ten bytes are enough to detect the format.
  while (source.rest.size() < 10) {
    const std::size_t have = source.rest.size();
    const std::size_t got = source.read(source.buffer.data() + have, source.buffer.size() - have);
    source.rest = {source.buffer.data(), have + got};
    if (got == 0) break;
  }
  const std::string_view start = source.rest;
  const bool skippable =
      start.size() >= 4 && (start[0] & 0xF0) == 0x50 && start.substr(1, 3) == "\x2a\x4d\x18";
  if (start.starts_with("\x28\xb5\x2f\xfd") || skippable) return std::make_unique<Zstd>();
  if (start.starts_with("\x1f\x8b")) return std::make_unique<Gzip>();
  if (const char* what = other_format(start))
    user_error("{} is {}: convert it to plain text or JSONL first (gzip and zstd are supported)",
               source.name, what);
  return std::make_unique<Plain>();
}

}  // namespace

const char* other_format(std::string_view start) {
  using namespace std::string_view_literals;
  constexpr std::array<std::pair<std::string_view, const char*>, 7> kFormats = {{
      {"\xFD\x37zXZ\0"sv, "compressed with xz"},
      {"BZh"sv, "compressed with bzip2"},
      {"\x04\x22\x4D\x18"sv, "compressed with lz4"},
      {"PK\x03\x04"sv, "a zip archive"},
      {"PAR1"sv, "a Parquet file"},
      {"ARROW1"sv, "an Arrow file"},
      {"\x93NUMPY"sv, "a NumPy array"},
  }};
  for (const auto& [magic, what] : kFormats) {
    if (!start.starts_with(magic)) continue;
    // "BZh" could also start a text; the blocks of bzip2 start with the digits of pi.
    if (magic == "BZh" && (start.size() < 10 || start.substr(4, 6) != "1AY&SY")) continue;
    return what;
  }
  return nullptr;
}

TextStream::TextStream(const std::filesystem::path& path)
    : source_(std::make_unique<Source>(path)), decoder_(decoder_for(*source_)) {}
TextStream::~TextStream() = default;
TextStream::TextStream(TextStream&&) noexcept = default;

std::size_t TextStream::read(std::span<char> buffer) {
  std::size_t filled = 0;
  while (filled < buffer.size()) {
    const std::size_t got = decoder_->read(*source_, buffer.subspan(filled));
    if (got == 0) break;
    filled += got;
  }
  return filled;
}

void TextStream::skip(std::uint64_t bytes) {
  if (bytes == 0 || decoder_->skip(*source_, bytes)) return;
  std::vector<char> discarded(1 << 20);
  while (bytes > 0) {
    const std::size_t want = std::min<std::uint64_t>(bytes, discarded.size());
    const std::size_t got = read(std::span(discarded).first(want));
    if (got == 0)
      user_error("{} has changed: its text ends {} bytes earlier than before", source_->name,
                 bytes);
    bytes -= got;
  }
}

std::uint64_t TextStream::bytes_read() const { return source_->position(); }
std::uint64_t TextStream::bytes_total() const { return source_->total; }

}  // namespace kintsugi
