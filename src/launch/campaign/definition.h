#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace kintsugi {

// campaign.yaml: runs and commands, and what follows from what. docs/campaigns.md has its keys.

// How jobs are started: those of the section `launch`, of a node or of all of them. The words are
// those of the options of `kintsugi launch`.
struct CampaignLaunch {
  std::string machine = {};
  std::int64_t ranks = 1;  // on this machine
  std::int64_t nodes = 1, spare_nodes = 0, min_nodes = 0, ranks_per_node = 0;
  double time_s = 0;
  std::string account = {}, partition = {}, qos = {}, container = {}, exclude = {};
  bool requeue = false;
  bool operator==(const CampaignLaunch&) const = default;
};

// One run of a sweep.
struct CampaignPoint {
  std::string name = {};                    // of its directory: "lr-1e-3_tp-2"
  std::vector<std::string> overrides = {};  // as given with --set
};

enum class CampaignNodeKind : std::uint8_t { Run, Best, Command };

struct CampaignNode {
  std::string name = {};
  std::string where = {};  // "campaign.yaml line 7"
  CampaignNodeKind kind = CampaignNodeKind::Run;
  std::vector<std::string> after = {};  // nodes that end first, besides those that it names
  CampaignLaunch launch = {};

  // Run: the configuration, and what is changed in it, in this order.
  std::string config = {};                 // empty: that of `like`
  std::string like = {};                   // with the changes of this node's run; empty: none
  std::vector<std::string> set = {};       // as given with --set
  std::vector<CampaignPoint> points = {};  // empty: no sweep
  std::string from = {};                   // continues this node's run; empty: starts anew
  std::vector<std::int64_t> at = {};  // a branch from each of these steps; empty: from the last

  // Best: the run of the node `of` with the lowest or highest value.
  std::string of = {};
  std::string metric = "valid_loss";
  bool highest = false;

  // Command: a line for bash.
  std::string command = {};
};

struct CampaignDefinition {
  std::string source = {};
  std::string dir = {};
  double max_gpu_hours = 0;  // 0: no limit
  std::vector<CampaignNode> nodes = {};
};

inline constexpr std::size_t kMostSweepPoints = 1000;

// UserError that names `source`, the line and the node.
CampaignDefinition parse_campaign(const std::string& text, const std::string& source);

// {NAME} in a command or in a value: the directory of another node, or of this one: {self}. Braces
// with other content, and ${NAME}, are never found.
struct NodeReference {
  std::size_t begin = 0, end = 0;  // in the text, with its braces
  std::string name = {};
};
std::optional<NodeReference> find_reference(const std::string& text, std::size_t from);
std::vector<std::string> node_references(const std::string& text);

// `replace`: returns the text instead of a NodeReference, or nothing to leave it as it is.
template <class Replace>
std::string with_references(const std::string& text, Replace&& replace) {
  std::string result;
  std::size_t at = 0;
  while (const auto found = find_reference(text, at)) {
    const std::optional<std::string> value = replace(*found);
    result += text.substr(at, found->begin - at);
    result += value ? *value : text.substr(found->begin, found->end - found->begin);
    at = found->end;
  }
  return result + text.substr(at);
}

// A value for the position `at` of a command, so that bash reads it as one word there: within
// quotes, in a $(…) within quotes, or outside.
std::string quoted_at(const std::string& command, std::size_t at, const std::string& value);

}  // namespace kintsugi
