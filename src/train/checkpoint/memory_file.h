#pragma once

#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace kintsugi {

// A file in memory (/dev/shm) with the state of one rank after one step: a header, a text and
// binary data. It survives its process, but not its node. All its memory is reserved when it is
// opened. Until seal(), and after a kill in between, it is not valid.
class MemoryFile {
 public:
  struct Info {
    std::uint64_t fingerprint = 0;  // of the run and its configuration
    std::int64_t step = 0;
    std::int32_t rank = 0;     // whose state it is
    std::uint64_t after = 0;   // identifies the newest checkpoint at that time; on rank 0
    std::uint64_t series = 0;  // copies of one step belong together only if this is equal
  };
  static std::size_t bytes_for(std::size_t text, std::size_t data);
  // Returns the header of a valid file of this size; its content is not checked. Empty for
  // anything else.
  static std::optional<Info> peek(const std::filesystem::path& path, std::size_t bytes);

  // Creates or opens a file of the current user and reserves its memory. Failure if there is not
  // enough. Keeps the content of a file of the same size.
  MemoryFile(const std::filesystem::path& path, std::size_t bytes);
  MemoryFile(MemoryFile&& other) noexcept;
  MemoryFile& operator=(MemoryFile&&) = delete;
  ~MemoryFile();

  // The whole file, to send it or to receive another one into it.
  std::span<std::byte> bytes() { return {data_, bytes_}; }
  std::optional<Info> info() const;  // like peek()
  void invalidate();
  // Writes the text and returns where `data` bytes belong. Invalid until seal().
  std::byte* begin(std::string_view text, std::size_t data);
  void seal(const Info& info);

 private:
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
};

// The content of a file in memory.
struct MemoryContent {
  std::string_view text;
  std::span<const std::byte> data;
};
// Checks the hash. Empty if the content is not valid or is not that of this rank, step,
// series and run.
std::optional<MemoryContent> checked_content(std::span<const std::byte> file,
                                             const MemoryFile::Info& expected);

}  // namespace kintsugi
