#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <vector>

#include "train/checkpoint/checkpoint.h"
#include "train/checkpoint/memory_file.h"
#include "train/engine.h"

namespace kintsugi {

// Copies of every rank's state in the memory of its node and of another node, which survive their
// processes (train.memory_copy_every). A restart continues from them if all ranks find theirs, on
// their own node or on another one. For each rank a node has the two newest copies, so that one is
// valid while the other is written.
//
// A series is what one process has trained without a rewind. Only copies of the same series and
// step belong together.
//
// All functions are collective over all ranks.
class MemoryCopies {
 public:
  struct Options {
    std::string run;            // identifies the run on a node: the path of its directory
    std::string configuration;  // a copy is valid only for the same text
    std::string node;           // name of this node
    int node_ranks = 1;         // on this node
    std::filesystem::path root = "/dev/shm";
    std::size_t text_bytes = std::size_t{1} << 20;  // most bytes of the trainer's state
  };

  MemoryCopies(Engine& engine, Options options);  // the engine must outlive it

  // Reserves the memory, after restore(), and begins a series. Copies of later steps than `step`,
  // at which the run continues, are given up. Failure, on all ranks, if a node has too little
  // memory.
  void open(std::int64_t step);
  // After a rewind: gives up all copies and begins a series.
  void give_up();
  // What open() reserves on this node for one rank: its copies and those of a rank of another node.
  std::size_t reserved_bytes() const;
  const std::filesystem::path& directory() const { return directory_; }
  bool has_partner() const { return partner_ >= 0; }

  // Copies the state of this rank, and sends it to its partner. `checkpoint` is the id of the
  // newest checkpoint; used on rank 0. Failure, on all ranks, if the text does not fit.
  void save(const TrainerState& state, const std::string& checkpoint);

  // Loads the newest copies that all ranks have, if they are of a later step than `step` and were
  // made after one of these checkpoints (ids; used on rank 0). Returns nothing, and leaves the
  // engine unchanged, if there are none or one is damaged. The returned state has no history.
  std::optional<TrainerState> restore(std::int64_t step, const std::vector<std::string>& after);

  // Removes all copies of the run from the nodes of its ranks.
  void remove();

 private:
  struct Listed;
  struct Found {
    std::int64_t step = -1;  // -1: nothing
    std::uint64_t series = 0;
  };
  void find_partners();
  void begin_series();
  // Files of ranks that were on this node, or sent their copies to it, before a restart.
  void remove_strays() const;
  std::filesystem::path path_of(int rank, bool own, int generation) const;
  void check_directory() const;
  void check_space() const;
  std::vector<Listed> list_all();
  Found newest_complete(const std::vector<Listed>& all, std::int64_t step,
                        const std::vector<std::string>& after);
  std::vector<std::byte> fetch(const std::vector<Listed>& all, const Found& wanted);
  void load(std::span<const std::byte> data);

  Engine& engine_;
  Communicator& world_;
  Options options_;
  std::filesystem::path directory_;
  std::vector<Tensor> tensors_;  // the state of this rank
  std::size_t data_bytes_ = 0, file_bytes_ = 0;
  std::vector<std::int64_t> file_sizes_;  // by rank
  std::uint64_t fingerprint_ = 0;
  std::uint64_t series_ = 0;
  bool first_on_node_ = true;
  std::set<std::string> expected_;  // names of the files of this node
  bool restored_ = false;
  std::int64_t saves_ = 0;          // since open()
  int partner_ = -1, client_ = -1;  // sends to partner_, receives from client_; -1: one node
  std::vector<MemoryFile> own_, received_;
};

}  // namespace kintsugi
