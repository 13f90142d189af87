#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "data/stores/store_info.h"
#include "data/stores/token_store.h"

namespace kintsugi {

// Writes one shard in bounded memory under temporary names (PREFIX.partial.bin and so on) and can
// go on after the process has died: what was there at the last sync() is what a writer with that
// state starts from.
class TokenWriter {
 public:
  struct State {
    std::int64_t tokens = 0, sequences = 0, documents = 0;
    std::int64_t open_tokens = 0;  // of a sequence that has not ended
    std::int64_t empty = 0;        // documents without a sequence
  };
  struct Options {
    bool mask = false;  // write PREFIX.mask too
    // An .idx counts the tokens of a sequence in 32 bits; a longer document becomes several.
    std::int64_t longest_sequence = std::int64_t{1} << 30;
  };
  TokenWriter(const std::filesystem::path& prefix, TokenType type);
  TokenWriter(const std::filesystem::path& prefix, TokenType type, Options options);
  TokenWriter(const std::filesystem::path& prefix, TokenType type, Options options,
              const State& from);
  ~TokenWriter();

  // More tokens of the open document; `mask` says for each whether it counts (empty: all do).
  void append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask = {});
  void end_sequence();  // the document goes on
  void end_document();
  void empty_document();  // one without any sequence, as foreign stores may have

  State state() const { return state_; }
  std::int64_t bytes() const;  // of the .bin
  // What has been written is on disk.
  void sync();
  // Writes the index. All documents must have ended.
  StoreInfo::Shard finish();

  // Gives a finished shard its final names; one that has them already is left alone.
  static void publish(const std::filesystem::path& prefix);
  // Removes the temporary files.
  static void discard(const std::filesystem::path& prefix) noexcept;

 private:
  struct Files;
  void put_length(bool ends_document);
  void write_index();

  std::filesystem::path prefix_;
  TokenType type_;
  Options options_;
  State state_;
  std::unique_ptr<Files> files_;
};

}  // namespace kintsugi
