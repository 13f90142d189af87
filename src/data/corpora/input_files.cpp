#include "data/corpora/input_files.h"

#include <fcntl.h>
#include <fmt/format.h>
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
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"
#include "data/corpora/text_decoder.h"

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

std::string to_string(const SkippedInput& skipped) {
  const std::string lost = skipped.documents
                               ? format_number(*skipped.documents, "document") + " lost"
                               : "an unknown number of documents lost";
  const std::string where = skipped.unit == "line"
                                ? fmt::format(", line {}", skipped.begin)
                                : fmt::format(", {}s {} to {}", skipped.unit, skipped.begin,
                                              std::max(skipped.end, skipped.begin + 1) - 1);
  return fmt::format("{}{}: {}; {}", skipped.file, where, skipped.reason, lost);
}

void warn_of_skipped(const std::vector<SkippedInput>& skipped) {
  constexpr std::size_t kNamed = 20;
  if (skipped.empty()) return;
  log_warning("skipped {}:", format_number(std::ssize(skipped), "damaged part"));
  for (std::size_t i = 0; i < std::min(skipped.size(), kNamed); ++i)
    log_warning("  {}", to_string(skipped[i]));
  if (skipped.size() > kNamed) log_warning("  … and {} more", skipped.size() - kNamed);
}

TextStream::Source::Source(const std::filesystem::path& path)
    : name(path.string()), descriptor(open_regular_file(path)), buffer(256 * 1024) {
  struct stat status {};
  if (::fstat(descriptor, &status) == 0) total = static_cast<std::uint64_t>(status.st_size);
  ::posix_fadvise(descriptor, 0, 0, POSIX_FADV_SEQUENTIAL);
}

std::size_t TextStream::Source::read(char* to, std::size_t bytes) {
  ssize_t got;
  do got = ::read(descriptor, to, bytes);
  while (got < 0 && errno == EINTR);
  if (got < 0) user_error("cannot read {}: {}", name, std::strerror(errno));
  bytes_read += static_cast<std::uint64_t>(got);
  return static_cast<std::size_t>(got);
}

bool TextStream::Source::fill() {
  if (!rest.empty()) return true;
  rest = {buffer.data(), read(buffer.data(), buffer.size())};
  return !rest.empty();
}

bool TextStream::Source::seek(std::uint64_t to) {
  if (::lseek(descriptor, static_cast<off_t>(to), SEEK_SET) < 0) return false;
  rest = {};
  bytes_read = to;
  return true;
}

bool TextStream::Source::find(std::string_view bytes, std::uint64_t within) {
  const std::uint64_t begin = position();
  while (position() - begin <= within) {
    if (const std::size_t at = rest.find(bytes); at != std::string_view::npos) {
      rest.remove_prefix(at);
      return true;
    }
    const std::size_t kept = std::min(rest.size(), bytes.size() - 1);
    std::memmove(buffer.data(), rest.data() + rest.size() - kept, kept);
    const std::size_t got = read(buffer.data() + kept, buffer.size() - kept);
    rest = {buffer.data(), got > 0 ? kept + got : 0};
    if (got == 0) return false;
  }
  return false;
}

void TextStream::Source::truncated(const char* what) {
  damage.emplace(fmt::format("{} ends at byte {} in the middle of its {} data: it is truncated, "
                             "copy it again",
                             name, position(), what),
                 fmt::format("the file ends in the middle of its {} data", what), position());
}

void TextStream::Source::damaged(const char* what, const char* reason) {
  damage.emplace(fmt::format("{} is damaged near byte {} ({}: {}): copy it again", name, position(),
                             what, reason),
                 fmt::format("{}: {}", what, reason), position());
}

namespace {

using Source = TextStream::Source;

struct Plain : TextStream::Decoder {
  std::size_t read(Source& source, std::span<char> buffer) override {
    if (source.rest.empty()) return source.read(buffer.data(), buffer.size());
    const std::size_t bytes = std::min(buffer.size(), source.rest.size());
    std::memcpy(buffer.data(), source.rest.data(), bytes);
    source.rest.remove_prefix(bytes);
    return bytes;
  }
  bool skip(Source& source, std::uint64_t bytes) override {
    return source.seek(source.position() + bytes);
  }
};

struct Gzip : TextStream::Decoder {
  Gzip() { KINTSUGI_CHECK(inflateInit2(&state, MAX_WBITS + 16) == Z_OK, "no memory for zlib"); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;
  ~Gzip() override { inflateEnd(&state); }

  std::string_view magic() const override { return "\x1f\x8b\x08"; }
  void start_member() override { inflateReset(&state); }
  std::size_t read(Source& source, std::span<char> buffer) override {
    state.next_out = reinterpret_cast<Bytef*>(buffer.data());
    state.avail_out = static_cast<uInt>(std::min(buffer.size(), kMost));
    const uInt room = state.avail_out;
    while (state.avail_out == room && !source.damage) {
      if (!source.fill()) {
        if (inside) source.truncated("gzip");
        break;
      }
      if (!inside) {
        member_begin = source.position();
        start_member();
        inside = true;
      }
      state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(source.rest.data()));
      state.avail_in = static_cast<uInt>(source.rest.size());
      const int code = inflate(&state, Z_NO_FLUSH);
      source.rest.remove_prefix(source.rest.size() - state.avail_in);
      if (code == Z_STREAM_END)
        inside = false;
      else if (code != Z_OK && code != Z_BUF_ERROR)
        source.damaged("gzip", state.msg != nullptr ? state.msg : "data error");
    }
    return room - state.avail_out;
  }

  static constexpr std::size_t kMost = 1 << 30;
  z_stream state{};
};

struct Zstd : TextStream::Decoder {
  Zstd() : state(ZSTD_createDCtx(), &ZSTD_freeDCtx) {
    KINTSUGI_CHECK(state != nullptr, "no memory for zstd");
    ZSTD_DCtx_setParameter(state.get(), ZSTD_d_windowLogMax, 31);  // zstd --long=31
  }
  std::string_view magic() const override { return "\x28\xb5\x2f\xfd"; }
  void start_member() override {
    ZSTD_DCtx_reset(state.get(), ZSTD_reset_session_only);
    wanted = kHeader;
    full = false;
  }
  std::size_t read(Source& source, std::span<char> buffer) override {
    ZSTD_outBuffer out{buffer.data(), buffer.size(), 0};
    while (out.pos == 0 && !source.damage) {
      // At the end of the file, zstd may still hold decompressed text.
      const bool more = source.fill();
      if (!more && !inside) return 0;
      if (!std::exchange(inside, true)) member_begin = source.position();
      // At most a block at a time: what a call decompresses before damage is lost with its error.
      ZSTD_inBuffer in{source.rest.data(), full ? 0 : std::min(source.rest.size(), wanted), 0};
      const std::size_t code = ZSTD_decompressStream(state.get(), &out, &in);
      source.rest.remove_prefix(in.pos);
      if (ZSTD_isError(code))
        source.damaged("zstd", ZSTD_getErrorName(code));
      else if (!more && code != 0 && out.pos == 0)
        source.truncated("zstd");
      inside = code != 0;
      wanted = inside && !source.damage ? code : kHeader;
      full = out.pos == out.size;
    }
    return out.pos;
  }
  static constexpr std::size_t kHeader = 5;
  std::unique_ptr<ZSTD_DCtx, decltype(&ZSTD_freeDCtx)> state;
  std::size_t wanted = kHeader;  // bytes up to the end of the next block
  bool full = false;             // it may hold more text
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
  if (start.starts_with(kXzMagic)) return make_xz_decoder(source.name);
  if (const char* what = other_format(start))
    user_error(
        "{} is {}: convert it to plain text or JSONL first (gzip, zstd and xz are supported; "
        "Parquet, "
        "if its name ends in .parquet)",
        source.name, what);
  return std::make_unique<Plain>();
}

}  // namespace

const char* other_format(std::string_view start) {
  using namespace std::string_view_literals;
  constexpr std::array<std::pair<std::string_view, const char*>, 7> kFormats = {{
      {kXzMagic, "compressed with xz"},
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
  while (filled < buffer.size() && !source_->damage) {
    const std::size_t got = decoder_->read(*source_, buffer.subspan(filled));
    if (got == 0) break;
    filled += got;
  }
  if (filled == 0 && source_->damage) throw DamagedInput(*source_->damage);
  return filled;
}

bool TextStream::resume() {
  constexpr int kMostResumed = 10'000;  // each reads a buffer: a hostile file would take years
  source_->damage.reset();
  // Behind the beginning: damaged data may have seemed to go on beyond their end.
  const bool found = ++resumed_ <= kMostResumed && !decoder_->magic().empty() &&
                     source_->seek(decoder_->member_begin + 1) && source_->find(decoder_->magic());
  if (!found) source_->seek(source_->total);
  decoder_->inside = false;
  decoder_->start_member();
  return found;
}

bool TextStream::seek(std::uint64_t byte, std::uint64_t within) {
  source_->damage.reset();
  decoder_->inside = false;
  decoder_->start_member();
  const std::string_view magic = decoder_->magic();
  return source_->seek(byte) && (magic.empty() || source_->find(magic, within));
}

void TextStream::skip(std::uint64_t bytes, bool damage) {
  if (bytes == 0 || decoder_->skip(*source_, bytes)) return;
  std::vector<char> discarded(1 << 20);
  while (bytes > 0) {
    const std::size_t want = std::min<std::uint64_t>(bytes, discarded.size());
    std::size_t got = 0;
    try {
      got = read(std::span(discarded).first(want));
    } catch (const DamagedInput&) {
      if (!damage) throw;
      resume();
      continue;
    }
    if (got == 0)
      user_error("{} has changed: its text ends {} bytes earlier than before", source_->name,
                 bytes);
    bytes -= got;
  }
}

std::uint64_t TextStream::bytes_read() const { return source_->position(); }
std::uint64_t TextStream::bytes_total() const { return source_->total; }

}  // namespace kintsugi
