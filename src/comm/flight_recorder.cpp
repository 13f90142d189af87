#include "comm/flight_recorder.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "core/error.h"
#include "core/file.h"
#include "core/units.h"

namespace kintsugi {
namespace {

using Json = nlohmann::json;

constexpr std::uint64_t kMagic = 0x315448474c464b4bULL;  // "KKFLGHT1"
constexpr std::size_t kRecent = 16;                      // calls remembered per group
constexpr std::size_t kNameBytes = 24;

std::int64_t now_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

}  // namespace

// Only atomics: another process may read it at any time.
struct FlightRecorder::Memory {
  struct Call {
    std::atomic<std::int64_t> number, kind, bytes, peer;
  };
  struct Group {
    std::atomic<std::int64_t> used;
    std::array<char, kNameBytes> name;
    std::int64_t split, color, rank, size, background;
    std::atomic<std::int64_t> calls, waiting_for, waiting_since_ns;
    std::array<Call, kRecent> recent;  // call n is at n % kRecent
  };
  std::atomic<std::uint64_t> magic;  // set last
  std::int64_t rank;
  std::array<char, 256> node;
  std::atomic<std::int64_t> step, in_step;
  std::array<Group, kMaxGroups> groups;
};

FlightRecorder::FlightRecorder(int rank, std::string node, const std::filesystem::path& file)
    : file_(file), node_(std::move(node)) {
  constexpr int kNew = O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW;
  FileDescriptor descriptor(file_.empty() ? -1 : ::open(file_.c_str(), kNew, 0600));
  // posix_fallocate: memory that is missing later would end the process with SIGBUS.
  if (descriptor >= 0 && ::posix_fallocate(descriptor, 0, sizeof(Memory)) != 0) {
    ::unlink(file_.c_str());
    descriptor = FileDescriptor();
  }
  if (descriptor < 0) file_.clear();
  void* const address =
      ::mmap(nullptr, sizeof(Memory), PROT_READ | PROT_WRITE,
             descriptor >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS, descriptor, 0);
  if (address == MAP_FAILED) failure("cannot map {} bytes: {}", sizeof(Memory), strerror(errno));
  memory_ = static_cast<Memory*>(address);  // zeros are a valid state
  memory_->rank = rank;
  node_.copy(memory_->node.data(), memory_->node.size() - 1);
  memory_->magic = kMagic;
}

FlightRecorder::~FlightRecorder() {
  ::munmap(memory_, sizeof(Memory));
  if (!file_.empty()) ::unlink(file_.c_str());
}

int FlightRecorder::add_group(const std::string& name, std::int64_t split, std::int64_t color,
                              int rank, int size, bool background) {
  for (int i = 0; i < kMaxGroups; ++i) {
    Memory::Group& group = memory_->groups[i];
    if (group.used != 0) continue;
    group.name = {};
    name.copy(group.name.data(), kNameBytes - 1);
    group.split = split;
    group.color = color;
    group.background = background ? 1 : 0;
    group.rank = rank;
    group.size = size;
    group.calls = group.waiting_for = group.waiting_since_ns = 0;
    for (Memory::Call& call : group.recent) call.number = 0;
    group.used = 1;
    return i;
  }
  return -1;
}

void FlightRecorder::remove_group(int group) {
  if (group >= 0) memory_->groups[static_cast<std::size_t>(group)].used = 0;
}

std::int64_t FlightRecorder::call(int index, Collective kind, std::int64_t bytes, int peer) {
  if (index < 0) return 0;
  Memory::Group& group = memory_->groups[index];
  const std::int64_t number = group.calls + 1;
  Memory::Call& call = group.recent[static_cast<std::size_t>(number) % kRecent];
  call.kind = static_cast<std::int64_t>(kind);
  call.bytes = bytes;
  call.peer = peer;
  call.number = number;
  group.calls = number;
  return number;
}

void FlightRecorder::begin_wait(int index, std::int64_t number) {
  if (index < 0) return;
  Memory::Group& group = memory_->groups[index];
  group.waiting_since_ns = now_ns();
  group.waiting_for = number;
}

void FlightRecorder::end_wait(int index) {
  if (index >= 0) memory_->groups[index].waiting_for = 0;
}

void FlightRecorder::begin_step(std::int64_t step) {
  memory_->step = step;
  memory_->in_step = 1;
}

void FlightRecorder::end_step() { memory_->in_step = 0; }

std::int64_t FlightRecorder::step() const { return memory_->step; }

double FlightRecorder::waiting_s() const {
  if (memory_->in_step == 0) return 0;
  double longest = 0;
  for (const Memory::Group& group : memory_->groups)
    if (group.used != 0 && group.background == 0 && group.waiting_for != 0)
      longest = std::max(longest, 1e-9 * static_cast<double>(now_ns() - group.waiting_since_ns));
  return longest;
}

RankCalls FlightRecorder::position() const {
  RankCalls position = position_of(*memory_);
  position.node = node_;
  return position;
}

RankCalls FlightRecorder::position_of(const Memory& memory) {
  RankCalls position;
  position.rank = memory.rank;
  position.step = memory.step;
  position.node.assign(memory.node.data(), strnlen(memory.node.data(), memory.node.size()));
  for (const Memory::Group& from : memory.groups) {
    if (from.used != 1) continue;
    RankCalls::Group group;
    group.name.assign(from.name.data(), strnlen(from.name.data(), kNameBytes));
    group.split = from.split;
    group.color = from.color;
    group.rank = from.rank;
    group.size = from.size;
    group.calls = from.calls;
    group.waiting_for = from.waiting_for;
    if (group.waiting_for != 0)
      group.waiting_s = 1e-9 * static_cast<double>(now_ns() - from.waiting_since_ns);
    for (const Memory::Call& call : from.recent) {
      const std::int64_t number = call.number, kind = call.kind;
      if (number <= 0 || number > group.calls || kind < 0 || kind >= kCollectives) continue;
      group.recent.push_back({number, static_cast<Collective>(kind), call.bytes, call.peer});
    }
    std::ranges::sort(group.recent,
                      [](const auto& a, const auto& b) { return a.number < b.number; });
    position.groups.push_back(std::move(group));
  }
  return position;
}

std::optional<RankCalls> FlightRecorder::read(const std::filesystem::path& file) {
  const FileDescriptor descriptor(::open(file.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW));
  if (descriptor < 0) return {};
  auto copy = std::make_unique<std::array<std::byte, sizeof(Memory)>>();
  const ssize_t got = ::pread(descriptor, copy->data(), copy->size(), 0);
  if (got != static_cast<ssize_t>(copy->size())) return {};
  const auto& memory = *reinterpret_cast<const Memory*>(copy->data());
  if (memory.magic != kMagic) return {};
  return position_of(memory);
}

// ---- files

namespace {

namespace fs = std::filesystem;

fs::path recorder_directory() {
  const fs::path memory = "/dev/shm";
  std::error_code error;
  if (!fs::is_directory(memory, error)) return {};
  const fs::path directory = memory / fmt::format("kintsugi-{}", ::geteuid());
  fs::create_directory(directory, error);
  struct stat found {};
  // Not a link, and ours: others may write to /dev/shm.
  if (::lstat(directory.c_str(), &found) != 0 || !S_ISDIR(found.st_mode) ||
      found.st_uid != ::geteuid())
    return {};
  return directory;
}

}  // namespace

fs::path recorder_file(const std::string& key, int rank) {
  const fs::path directory = recorder_directory();
  if (directory.empty()) return {};
  std::error_code error;
  const auto old = fs::file_time_type::clock::now() - std::chrono::hours(1);
  for (const auto& entry : fs::directory_iterator(directory, error)) {
    if (entry.path().extension() != ".flight") continue;
    const auto time = entry.last_write_time(error);
    const int process = std::atoi(entry.path().stem().extension().c_str() + 1);
    if (!error && time < old && process > 0 && ::kill(process, 0) != 0 && errno == ESRCH)
      fs::remove(entry.path(), error);
  }
  return directory / fmt::format("{}-{}.{}.flight", key, rank, ::getpid());
}

std::vector<std::string> positions_here(const FlightRecorder& own, const std::string& key,
                                        int lost) {
  std::vector<std::string> texts = {to_json(own.position())};
  if (lost < 0) return texts;
  std::error_code error;
  const std::string prefix = fmt::format("{}-{}.", key, lost);
  for (const auto& entry : fs::directory_iterator(recorder_directory(), error))
    if (entry.path().filename().string().starts_with(prefix))
      if (const auto position = FlightRecorder::read(entry.path()))
        texts.push_back(to_json(*position));
  return texts;
}

// ---- JSON

std::string to_json(const RankCalls& position) {
  Json groups = Json::array();
  for (const RankCalls::Group& group : position.groups) {
    Json recent = Json::array();
    for (const RankCalls::Call& call : group.recent)
      recent.push_back({call.number, to_string(call.kind), call.bytes, call.peer});
    groups.push_back({{"name", group.name},
                      {"split", group.split},
                      {"color", group.color},
                      {"rank", group.rank},
                      {"size", group.size},
                      {"calls", group.calls},
                      {"waiting_for", group.waiting_for},
                      {"waiting_s", group.waiting_s},
                      {"recent", recent}});
  }
  return Json{
      {"rank", position.rank}, {"node", position.node}, {"step", position.step}, {"groups", groups}}
      .dump(-1, ' ', false, Json::error_handler_t::replace);
}

namespace {

Collective collective_of(const std::string& name) {
  for (int kind = 0; kind < kCollectives; ++kind)
    if (name == to_string(static_cast<Collective>(kind))) return static_cast<Collective>(kind);
  failure("no collective is named {}", name);
}

RankCalls::Group group_from(const Json& json) {
  RankCalls::Group group{.name = json.at("name"),
                         .split = json.at("split"),
                         .color = json.at("color"),
                         .rank = json.at("rank"),
                         .size = json.at("size"),
                         .calls = json.at("calls"),
                         .waiting_for = json.at("waiting_for"),
                         .waiting_s = json.at("waiting_s"),
                         .recent = {}};
  for (const Json& call : json.at("recent"))
    group.recent.push_back({call.at(0), collective_of(call.at(1)), call.at(2), call.at(3)});
  return group;
}

}  // namespace

std::optional<RankCalls> position_from_json(const std::string& text) {
  try {
    const Json json = Json::parse(text);
    RankCalls position{
        .rank = json.at("rank"), .step = json.at("step"), .node = json.at("node"), .groups = {}};
    for (const Json& group : json.at("groups")) position.groups.push_back(group_from(group));
    return position;
  } catch (const std::exception&) {
    return {};
  }
}

// ---- the diagnosis

namespace {

struct Member {
  const RankCalls* rank;
  const RankCalls::Group* group;
};

const RankCalls::Call* find_call(const RankCalls::Group& group, std::int64_t number) {
  for (const RankCalls::Call& call : group.recent)
    if (call.number == number) return &call;
  return nullptr;
}

std::string call_text(const RankCalls::Group& group, std::int64_t number) {
  const RankCalls::Call* const call = find_call(group, number);
  if (call == nullptr) return fmt::format("call {} of group {}", number, group.name);
  if (call->bytes == 0)
    return fmt::format("call {} of group {} ({})", number, group.name, to_string(call->kind));
  return fmt::format("call {} of group {} ({}, {})", number, group.name, to_string(call->kind),
                     format_bytes(static_cast<double>(call->bytes)));
}

std::string ranks_text(const std::vector<Member>& members) {
  std::string text = members.size() == 1 ? "rank" : "ranks";
  for (std::size_t i = 0; i < members.size(); ++i) {
    if (i == 8) return text + fmt::format(" and {} more", members.size() - i);
    text += fmt::format("{} {}", i == 0 ? "" : ",", members[i].rank->rank);
    if (i == 0 && !members[i].rank->node.empty())
      text += fmt::format(" (node {})", members[i].rank->node);
  }
  return text;
}

// What is wrong in one group, and for how long a rank has been waiting because of it.
struct Finding {
  std::string text;
  double waited_s = -1;
  bool cause = false;  // otherwise the missing ranks themselves wait, in another group
  std::vector<Culprit> culprits;

  bool before(const Finding& other) const {
    return cause != other.cause ? cause : waited_s > other.waited_s;
  }
};

Culprit culprit_of(const Member& member) {
  return {.rank = static_cast<int>(member.rank->rank), .node = member.rank->node};
}

// The two ends of a pipeline connection make different calls.
bool is_collective(Collective kind) {
  return kind != Collective::Send && kind != Collective::Receive;
}

Finding different_calls(const std::vector<Member>& members) {
  for (const Member& member : members)
    for (const RankCalls::Call& call : member.group->recent)
      for (const Member& other : members) {
        const RankCalls::Call* const same = find_call(*other.group, call.number);
        if (same == nullptr || !is_collective(call.kind) || !is_collective(same->kind)) continue;
        if (same->kind == call.kind && same->bytes == call.bytes) continue;
        return {fmt::format("ranks {} and {} disagree: {} against {}", member.rank->rank,
                            other.rank->rank, call_text(*member.group, call.number),
                            call_text(*other.group, call.number)),
                std::max(member.group->waiting_s, other.group->waiting_s),
                true,
                {}};
      }
  return {};
}

bool waits(const RankCalls& rank) {
  return std::ranges::any_of(rank.groups, [](const auto& group) { return group.waiting_for != 0; });
}

// A message that a rank waits for while its peer waits for nothing.
Finding missing_message(const Member& waiting, const RankCalls::Call& call,
                        const std::vector<Member>& members) {
  const auto peer = std::ranges::find_if(
      members, [&](const Member& member) { return member.group->rank == call.peer; });
  if (peer == members.end() || waits(*peer->rank)) return {};
  return {fmt::format("{} did not {} the message of {}, for which {} waits", ranks_text({*peer}),
                      call.kind == Collective::Receive ? "send" : "receive",
                      call_text(*waiting.group, call.number), ranks_text({waiting})),
          waiting.group->waiting_s,
          true,
          {culprit_of(*peer)}};
}

Finding missing_call(const std::vector<Member>& members) {
  const Member* first = nullptr;  // the rank that waits for the earliest collective
  Finding finding;
  std::vector<Member> waiting, missing;
  for (const Member& member : members) {
    const std::int64_t number = member.group->waiting_for;
    const RankCalls::Call* const call = find_call(*member.group, number);
    if (number == 0 || call == nullptr) continue;
    if (!is_collective(call->kind)) {
      Finding message = missing_message(member, *call, members);
      if (message.waited_s > finding.waited_s) finding = std::move(message);
      continue;
    }
    waiting.push_back(member);
    if (first == nullptr || number < first->group->waiting_for) first = &member;
  }
  if (first == nullptr) return finding;
  for (const Member& member : members)
    if (member.group->calls < first->group->waiting_for) missing.push_back(member);
  if (missing.empty()) return finding;
  finding = {fmt::format("{} did not make {}, for which {} {}", ranks_text(missing),
                         call_text(*first->group, first->group->waiting_for), ranks_text(waiting),
                         waiting.size() == 1 ? "waits" : "wait"),
             first->group->waiting_s,
             false,
             {}};
  for (const Member& member : missing)
    if (!waits(*member.rank)) finding.culprits.push_back(culprit_of(member));
  finding.cause = !finding.culprits.empty();
  return finding;
}

}  // namespace

RankFailure diagnose(const std::vector<RankCalls>& positions) {
  std::map<std::pair<std::int64_t, std::int64_t>, std::vector<Member>> groups;
  std::set<std::int64_t> seen;
  for (const RankCalls& position : positions)
    if (seen.insert(position.rank).second)
      for (const RankCalls::Group& group : position.groups)
        groups[{group.split, group.color}].push_back({&position, &group});
  Finding first;
  for (const auto& [key, members] : groups) {
    Finding finding = different_calls(members);
    if (finding.text.empty()) finding = missing_call(members);
    if (!finding.text.empty() && finding.before(first)) first = std::move(finding);
  }
  return {.kind = first.culprits.empty() ? FailureKind::Unknown : FailureKind::Stuck,
          .culprits = std::move(first.culprits),
          .text = std::move(first.text)};
}

Communicator::Work RecordedCommunicator::start(const Call& call) {
  // In an all_to_all the ranks send different amounts, which would look like a disagreement.
  const bool sized = call.kind != Collective::AllToAll && call.whole();
  const std::int64_t number =
      recorder_.call(group_, call.kind, sized ? static_cast<std::int64_t>(call.whole().bytes()) : 0,
                     is_message(call.kind) ? call.peer : -1);
  const Work work = inner_->start(call);
  pending_[static_cast<std::size_t>(number) % pending_.size()] = {work.ticket, number};
  return work;
}

void RecordedCommunicator::wait(Work work) {
  std::int64_t number = 0;
  for (const Pending& pending : pending_)
    if (pending.ticket == work.ticket && pending.number > number) number = pending.number;
  recorder_.begin_wait(group_, number);
  inner_->wait(work);
  recorder_.end_wait(group_);
}

void RecordedCommunicator::barrier() {
  recorder_.begin_wait(group_, recorder_.call(group_, Collective::Barrier, 0));
  inner_->barrier();
  recorder_.end_wait(group_);
}

}  // namespace kintsugi
