#pragma once

#include <cstdint>
#include <ctime>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kintsugi {

// Why a node should not be used.
enum class NodeTrouble : std::uint8_t {
  Slow,  // computes or communicates slower than the others
  Sick,  // computes wrong results, or a device or file system does not work
  Lost,  // a process or the node itself was gone
  Hung,  // a rank on it stopped without an error
  User   // excluded by hand
};
std::string_view to_string(NodeTrouble kind);

struct LedgerEntry {
  std::string node;
  std::string kind;  // a word of NodeTrouble, or one of a later version
  std::string reason;
  std::time_t first = 0, last = 0;  // when it was added for the first and the last time
  std::int64_t count = 1;           // how often
  std::time_t until = 0;            // excluded before this time

  bool excludes(std::time_t now) const { return now < until; }
};

// The nodes that jobs should avoid: a JSON file that several jobs and ranks may share. Writers
// hold a lock file beside it and replace the file by a rename, so readers need no lock. Fields that
// this version does not know are kept. A damaged file is renamed to NAME.damaged with a warning,
// and the ledger starts again.
class NodeLedger {
 public:
  explicit NodeLedger(std::filesystem::path path) : path_(std::move(path)) {}
  const std::filesystem::path& path() const { return path_; }

  // Excludes a node for `days` from now; an exclusion that lasts longer is not shortened. Entries
  // that ended three months ago are removed. Throws UserError if the node's name is invalid, and
  // Failure if the file cannot be written.
  void add(const std::string& node, NodeTrouble kind, const std::string& reason, std::time_t now,
           double days) const;
  bool forget(const std::string& node) const;  // false if it is not listed

  // These never throw: a file that cannot be read is a warning and an empty ledger.
  std::vector<LedgerEntry> entries() const;                  // by name, also those that ended
  std::vector<std::string> excluded(std::time_t now) const;  // by name

 private:
  std::filesystem::path path_;
};

// Parses the content of a ledger. UserError if it is damaged.
std::vector<LedgerEntry> parse_node_ledger(const std::string& text);

// The ledger of a run: `configured` (run.node_ledger) if it is not empty, else the environment's
// KINTSUGI_NODE_LEDGER, else nodes.json in the run directory.
std::filesystem::path node_ledger_path(const std::string& configured,
                                       const std::filesystem::path& run_directory);

// Letters, digits, '.', '_' and '-', and no '-' at the beginning: safe in a command line.
bool is_node_name(std::string_view text);

}  // namespace kintsugi
