#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "core/file.h"
#include "data/corpora/input_files.h"

namespace kintsugi {

// Reads the file through one buffer. `rest` is read but not consumed yet.
struct TextStream::Source {
  explicit Source(const std::filesystem::path& path);

  std::size_t read(char* to, std::size_t bytes);
  bool fill();  // refills `rest` if it is empty; false at the end of the file
  bool seek(std::uint64_t to);
  // Moves to where these bytes are found next; false if they are not, in as many bytes.
  bool find(std::string_view bytes, std::uint64_t within = UINT64_MAX);
  std::uint64_t position() const { return bytes_read - rest.size(); }

  // What is wrong with the data at this position, which is thrown once all text before it was
  // returned.
  void truncated(const char* what);
  void damaged(const char* what, const char* reason);

  std::string name;
  FileDescriptor descriptor;
  std::vector<char> buffer;
  std::string_view rest;
  std::uint64_t bytes_read = 0, total = 0;
  std::optional<DamagedInput> damage = {};
};

// Decompresses members (gzip), frames (zstd) or streams (xz), one after the other.
struct TextStream::Decoder {
  virtual ~Decoder() = default;
  // Sets source.damage where it cannot go on. 0: the end, or damage.
  virtual std::size_t read(Source& source, std::span<char> buffer) = 0;
  virtual bool skip(Source&, std::uint64_t) { return false; }  // false: not supported
  virtual std::string_view magic() const { return {}; }        // of a member; empty: none
  virtual void start_member() {}

  bool inside = false;             // a member
  std::uint64_t member_begin = 0;  // position in the file
};

constexpr std::string_view kXzMagic{"\xFD\x37zXZ\0", 6};
// UserError if this program was built without liblzma.
std::unique_ptr<TextStream::Decoder> make_xz_decoder(const std::string& file);

}  // namespace kintsugi
