#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "backend/backend.h"
#include "comm/communicator.h"
#include "model/micro_batch.h"

namespace kintsugi {

// The next tokens of one sequence.
struct StepSequence {
  std::vector<std::int32_t> tokens;
  std::int64_t position = 0;             // of the first
  std::int32_t slot = 0;                 // of its recurrent state
  std::vector<std::int32_t> pages = {};  // of all its tokens, up to the last of these
  bool is_prompt = false;                // of a prompt, also if it is only one token
  // The logits of the last targets.size() tokens are read: the largest, and that of the target
  // (-1: none).
  std::vector<std::int32_t> targets = {};
  std::int64_t largest = 1;  // how many of the largest logits are read
  bool whole = false;        // also read all logits of the last token
};

// How the rows of a step are arranged.
struct StepShape {
  bool has_pages = true;
  std::int64_t tile_tokens = 1;  // of a tile of a chunk
  // Fixed numbers of rows, so that no result depends on the rest of the batch; 0: as many as
  // needed.
  std::int64_t fixed_rows = 0, fixed_reads = 0;  // a multiple of fixed_reads rows is read
  // Steps of single tokens only are padded to a few sizes, so that their calls can be recorded.
  bool pads_singles = false;
};

// One step as arrays: rows of tokens, and what the layers need to know about them (CachedTokens).
struct StepLayout {
  StepLayout(const std::vector<StepSequence>& sequences, const StepShape& shape);

  std::int64_t rows() const { return std::ssize(ids); }
  std::int64_t reads() const { return std::ssize(read_rows); }

  std::vector<std::int32_t> ids, positions, cache_rows;  // by row
  std::int64_t singles = 0;
  std::vector<std::int32_t> slots;  // by single
  std::vector<CachedTokens::Chunk> chunks;
  std::vector<std::int32_t> single_tiles, chunk_tiles;  // four numbers each
  std::vector<std::int32_t> pages;                      // (sequences, page_columns)
  std::int64_t page_columns = 0, max_keys = 0;
  // Rows whose logits are read, with padding at the end, and their targets.
  std::vector<std::int32_t> read_rows, targets;
  std::vector<std::vector<std::int64_t>> reads_of;  // by sequence: indices of its reads
  std::int64_t largest = 1;
  std::vector<std::int64_t> whole_reads;  // indices of reads of which all logits are read
  // Steps with the same key differ only in the numbers in these arrays; 0: this step is alone.
  std::uint64_t key = 0;

 private:
  void add(const StepSequence& sequence, std::int64_t table_row, const StepShape& shape);
  void add_reads(const StepSequence& sequence, std::size_t index, std::int64_t first_row);
  void pad_singles(std::int64_t count);
  void pad_rows(std::int64_t count);
};

// The next larger size that steps of single tokens are padded to: 1, 2, 4, 8, 16, 24, 32, …
std::int64_t padded_singles(std::int64_t singles);
// The next larger number of keys that tables of pages are made for: 256, 512, 1024, …
std::int64_t padded_keys(std::int64_t keys);

// How rank 0 of a tensor group tells the others what to compute next. The group's tensors are in
// the memory of the backend. All ranks call these in the same order.

void send_step(Backend& backend, Communicator& group, const std::vector<StepSequence>& sequences);
void send_end(Backend& backend, Communicator& group);
// Waits for the next step; none after send_end().
std::optional<std::vector<StepSequence>> receive_step(Backend& backend, Communicator& group);

// The largest of the ranks' values.
std::int32_t largest_of(Backend& backend, Communicator& group, std::int32_t value);

}  // namespace kintsugi
