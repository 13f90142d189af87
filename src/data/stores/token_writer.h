#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <span>

#include "data/stores/token_store.h"

namespace kintsugi {

// Writes one shard in bounded memory with temporary names (PREFIX.partial.bin and so on). After the
// process has died, a new writer can continue from the state at the last sync().
class TokenWriter {
 public:
  struct State {
    std::int64_t tokens = 0, sequences = 0, documents = 0;
    std::int64_t open_tokens = 0;  // in the sequence that has not ended
    std::int64_t empty = 0;        // documents without a sequence
  };
  struct Options {
    bool mask = false;    // write PREFIX.mask too
    bool labels = false;  // write PREFIX.labels too
    // An .idx has 32-bit sequence lengths; a longer document becomes several sequences.
    std::int64_t longest_sequence = std::int64_t{1} << 30;
  };
  TokenWriter(const std::filesystem::path& prefix, TokenType type);
  TokenWriter(const std::filesystem::path& prefix, TokenType type, Options options);
  TokenWriter(const std::filesystem::path& prefix, TokenType type, Options options,
              const State& from);
  ~TokenWriter();

  // Appends tokens to the open document. `mask`: 1 if the token counts in the loss (empty: all do).
  void append(std::span<const std::int32_t> ids, std::span<const std::uint8_t> mask = {});
  void end_sequence();                         // the document continues
  void end_document(std::int32_t label = -1);  // with Options::labels it has one, from 0 on
  // A document without sequences, as stores of other programs may have.
  void empty_document(std::int32_t label = -1);

  State state() const { return state_; }
  std::int64_t bytes() const;  // of the .bin
  // Flushes everything written so far to disk.
  void sync();
  // Writes the index. All documents must have ended.
  StoreInfo::Shard finish();

  // Renames the files of a finished shard to their final names. Does nothing if that is done.
  static void publish(const std::filesystem::path& prefix);
  // Removes the temporary files.
  static void discard(const std::filesystem::path& prefix) noexcept;

 private:
  struct Files;
  void put_length(bool ends_document);
  void put_label(std::int32_t label);
  void write_index();

  std::filesystem::path prefix_;
  TokenType type_;
  Options options_;
  State state_;
  std::unique_ptr<Files> files_;
};

}  // namespace kintsugi
