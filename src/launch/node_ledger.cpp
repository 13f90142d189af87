#include "launch/node_ledger.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "core/error.h"
#include "core/file.h"
#include "core/log.h"
#include "core/units.h"

namespace kintsugi {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostBytes = 16 << 20;
constexpr std::size_t kMostReasonBytes = 500;
constexpr std::size_t kMostNameBytes = 255;
constexpr std::time_t kDay = 24 * 60 * 60;
constexpr std::time_t kKeptAfterEnd = 90 * kDay;
constexpr double kMostDays = 36500;
constexpr std::int64_t kMostCount = 1'000'000'000'000;
constexpr auto kLockTimeout = std::chrono::seconds(20);

std::string utc(std::time_t time) { return iso_time(static_cast<double>(time)); }

std::time_t parse_utc(const std::string& text) {
  std::tm parts{};
  const char* end = ::strptime(text.c_str(), "%Y-%m-%dT%H:%M:%SZ", &parts);
  if (end == nullptr || *end != '\0' || parts.tm_year > 8000)
    user_error("'{}' is not a time such as 2026-01-31T12:00:00Z", printable(text));
  return timegm(&parts);
}

LedgerEntry entry_of(const json& fields) {
  LedgerEntry entry{.node = fields.at("node").get<std::string>(),
                    .kind = fields.at("kind").get<std::string>(),
                    .reason = fields.at("reason").get<std::string>(),
                    .first = parse_utc(fields.at("first").get<std::string>()),
                    .last = parse_utc(fields.at("last").get<std::string>()),
                    .count = fields.at("count").get<std::int64_t>(),
                    .until = parse_utc(fields.at("until").get<std::string>())};
  // The name becomes an option of the launcher.
  if (!is_node_name(entry.node)) user_error("'{}' is not a node name", printable(entry.node));
  if (entry.count < 1 || entry.count > kMostCount)
    user_error("node {}: a count of {}", entry.node, entry.count);
  return entry;
}

json parse_document(const std::string& text) {
  json document;
  try {
    document = json::parse(text);
    if (!document.is_object() || !document.at("nodes").is_array())
      user_error("it has no list 'nodes'");
    for (const json& fields : document.at("nodes")) entry_of(fields);
  } catch (const json::exception& error) {
    throw UserError(printable(error.what()));
  }
  return document;
}

std::vector<LedgerEntry> entries_of(const json& document) {
  std::vector<LedgerEntry> entries;
  for (const json& fields : document.at("nodes")) entries.push_back(entry_of(fields));
  std::sort(entries.begin(), entries.end(),
            [](const LedgerEntry& a, const LedgerEntry& b) { return a.node < b.node; });
  return entries;
}

json empty_document() { return {{"nodes", json::array()}}; }

// Throws UserError if the file is damaged, and Failure if it cannot be read: another user's file is
// not damaged.
json load(const fs::path& path) {
  std::error_code error;
  if (!fs::exists(path, error) && !error) return empty_document();
  std::string text;
  try {
    open_regular_file(path);  // never waits for the writer of a pipe
    if (fs::file_size(path, error) <= kMostBytes) text = read_text_file(path);
  } catch (const UserError& problem) {
    throw Failure(problem.what());
  }
  return parse_document(text);
}

// The lock of all writers; the system releases it when the process dies. The file stays.
class LedgerLock {
 public:
  explicit LedgerLock(const fs::path& ledger) {
    fs::path path = ledger;
    path += ".lock";
    descriptor_ = ::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0666);
    if (descriptor_ < 0) failure("cannot open {}: {}", path.string(), std::strerror(errno));
    const auto deadline = std::chrono::steady_clock::now() + kLockTimeout;
    while (::flock(descriptor_, LOCK_EX | LOCK_NB) != 0) {
      if (errno == EINTR) continue;
      if (errno != EWOULDBLOCK) {
        log_warning("cannot lock {} ({}): entries of other jobs may be lost", path.string(),
                    std::strerror(errno));
        return;
      }
      if (std::chrono::steady_clock::now() > deadline) {
        ::close(descriptor_);
        failure("another process has held {} for {} s: end it, then try again", path.string(),
                kLockTimeout.count());
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
  }
  ~LedgerLock() { ::close(descriptor_); }
  LedgerLock(const LedgerLock&) = delete;
  LedgerLock& operator=(const LedgerLock&) = delete;

 private:
  int descriptor_ = -1;
};

// With the lock: loads the file, or sets it aside if it is damaged.
json load_or_set_aside(const fs::path& path) {
  std::string why;
  try {
    return load(path);
  } catch (const UserError& error) {
    why = error.what();
  }
  fs::path aside = path;
  aside += ".damaged";
  for (int i = 2; fs::exists(aside) && i < 1000; ++i) {
    aside = path;
    aside += fmt::format(".damaged-{}", i);
  }
  if (::rename(path.c_str(), aside.c_str()) != 0)
    failure("the node ledger {} is damaged ({}) and cannot be renamed: {}", path.string(), why,
            std::strerror(errno));
  log_warning("the node ledger {} is damaged ({}): kept as {}, and started again", path.string(),
              why, aside.string());
  return empty_document();
}

// Replaces the file by what `edit` makes of it.
void change(const fs::path& path, const std::function<void(json& nodes)>& edit) {
  std::error_code ignored;  // opening the lock file reports it
  if (path.has_parent_path()) fs::create_directories(path.parent_path(), ignored);
  const LedgerLock lock(path);
  json document = load_or_set_aside(path);
  edit(document["nodes"]);
  write_file_atomically(path, document.dump(2) + "\n");
}

std::string short_reason(const std::string& reason) {
  std::string text = printable(reason.substr(0, kMostReasonBytes));
  std::replace(text.begin(), text.end(), '\n', ' ');
  return text;
}

}  // namespace

std::string_view to_string(NodeTrouble kind) {
  constexpr std::array<std::string_view, 5> kWords = {"slow", "sick", "lost", "hung", "user"};
  return kWords.at(static_cast<std::size_t>(kind));
}

bool is_node_name(std::string_view text) {
  const auto letter = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' ||
           c == '_' || c == '-';
  };
  return !text.empty() && text.size() <= kMostNameBytes && text.front() != '-' &&
         std::all_of(text.begin(), text.end(), letter);
}

std::vector<LedgerEntry> parse_node_ledger(const std::string& text) {
  return entries_of(parse_document(text));
}

fs::path node_ledger_path(const std::string& configured, const fs::path& run_directory) {
  if (!configured.empty()) return configured;
  const char* shared = std::getenv("KINTSUGI_NODE_LEDGER");
  if (shared != nullptr && *shared != '\0') return shared;
  return run_directory / "nodes.json";
}

void NodeLedger::add(const std::string& node, NodeTrouble kind, const std::string& reason,
                     std::time_t now, double days) const {
  if (!is_node_name(node))
    user_error("'{}' is not a node name: letters, digits, '.', '_' and '-' only", printable(node));
  if (!(days > 0 && days <= kMostDays))
    user_error("{} days: a node is excluded for more than 0 and at most {} days", days, kMostDays);
  change(path_, [&](json& nodes) {
    json kept = json::array();
    for (json& fields : nodes)
      if (fields["node"] == node || entry_of(fields).until + kKeptAfterEnd > now)
        kept.push_back(std::move(fields));
    auto found = std::find_if(kept.begin(), kept.end(),
                              [&](const json& fields) { return fields["node"] == node; });
    if (found == kept.end()) {
      kept.push_back({{"node", node}, {"first", utc(now)}, {"count", 0}, {"until", utc(0)}});
      found = kept.end() - 1;
    }
    json& entry = *found;
    const auto until = now + static_cast<std::time_t>(std::llround(days * kDay));
    entry["kind"] = to_string(kind);
    entry["reason"] = short_reason(reason);
    entry["last"] = utc(now);
    entry["count"] = std::min(entry["count"].get<std::int64_t>() + 1, kMostCount);
    entry["until"] = utc(std::max(until, parse_utc(entry["until"].get<std::string>())));
    nodes = std::move(kept);
  });
}

bool NodeLedger::forget(const std::string& node) const {
  bool found = false;
  change(path_, [&](json& nodes) {
    for (std::size_t i = nodes.size(); i-- > 0;)
      if (nodes[i]["node"] == node) {
        nodes.erase(i);
        found = true;
      }
  });
  return found;
}

std::vector<LedgerEntry> NodeLedger::entries() const {
  try {
    try {
      return entries_of(load(path_));
    } catch (const UserError&) {
      // With the lock, because another process may have replaced the damaged file meanwhile.
      const LedgerLock lock(path_);
      return entries_of(load_or_set_aside(path_));
    }
  } catch (const std::exception& error) {
    log_warning("the node ledger {} is not used: {}", path_.string(), error.what());
    return {};
  }
}

std::vector<std::string> NodeLedger::excluded(std::time_t now) const {
  std::vector<std::string> nodes;
  for (const LedgerEntry& entry : entries())
    if (entry.excludes(now)) nodes.push_back(entry.node);
  nodes.erase(std::unique(nodes.begin(), nodes.end()), nodes.end());
  return nodes;
}

}  // namespace kintsugi
