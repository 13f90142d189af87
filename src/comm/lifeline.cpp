#include "comm/lifeline.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <sstream>

#include "comm/flight_recorder.h"
#include "comm/launch_environment.h"
#include "core/error.h"

namespace kintsugi {
namespace {

constexpr char kHello = 'H', kSay = 'S', kFail = 'F', kGoodbye = 'G', kEnd = 'E', kBeat = 'B',
               kAskPositions = 'Q', kPositions = 'A', kGaveUp = 'U';
constexpr int kConnectSeconds = 30;
constexpr int kReportSeconds = 5;
constexpr std::int64_t kAddressBytes = 4096;
// mpirun kills the others a second after a rank has died.
constexpr auto kAskTime = std::chrono::milliseconds(600);
// Above this number of ranks, messages are read in batches.
constexpr int kManyRanks = 256;
constexpr const char* kKilled = "its process exited unexpectedly (killed?)";

// One socket per rank may exceed the default limit of open files.
void raise_file_limit(int count) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  const rlim_t needed = std::min<rlim_t>(limit.rlim_max, 512 + static_cast<rlim_t>(count));
  if (limit.rlim_cur >= needed) return;
  limit.rlim_cur = needed;
  setrlimit(RLIMIT_NOFILE, &limit);
}

std::vector<RankCalls> parse_positions(const std::vector<std::string>& texts) {
  std::vector<RankCalls> positions;
  for (const std::string& text : texts)
    if (auto position = position_from_json(text)) positions.push_back(std::move(*position));
  return positions;
}

// Broadcasts the text of rank 0.
std::string broadcast_text(World& world, std::string text) {
  KINTSUGI_CHECK(text.size() < kAddressBytes, "an address of {} bytes", text.size());
  text.resize(kAddressBytes, '\0');
  const auto group = world.split("lifeline", 0, world.rank());
  group->wait(group->broadcast(Tensor(text.data(), DType::U8, {kAddressBytes}), 0));
  return text.substr(0, text.find('\0'));
}

}  // namespace

Lifeline::Lifeline(World& world, Callbacks callbacks, LifelineLimits limits)
    : rank_(world.rank()),
      size_(world.size()),
      one_node_(world.local_size() == size_),
      callbacks_(std::move(callbacks)),
      beat_s_(limits.beat_s),
      silence_s_(limits.silence_s),
      call_s_(limits.call_s) {
  if (size_ == 1) return;
  int pipe[2] = {-1, -1};
  if (pipe2(pipe, O_CLOEXEC | O_NONBLOCK) != 0)
    failure("cannot create a pipe: {}", std::strerror(errno));
  wake_read_ = FileDescriptor(pipe[0]);
  wake_write_ = FileDescriptor(pipe[1]);
  if (rank_ == 0) {
    raise_file_limit(size_);
    Listener listener(one_node_);
    const std::string password = make_password();
    std::string address =
        fmt::format("{} {} {} {}", password, host_name(), node_name(), listener.port());
    for (const std::string& interface : one_node_ ? std::vector<std::string>{} : host_addresses())
      if (address.size() + interface.size() + 1 < kAddressBytes) address += " " + interface;
    broadcast_text(world, address);
    accept_all(password, listener);
  } else {
    connect_to_first(broadcast_text(world, ""), one_node_);
  }
  watcher_ = std::thread([this] { watch(); });
}

Lifeline::~Lifeline() {
  if (watcher_.joinable()) {
    {
      const std::lock_guard lock(mutex_);
      stop_ = true;
    }
    (void)!write(wake_write_, "", 1);
    watcher_.join();
  }
}

// Rank 0: accepts the connections that send the password, and answers them.
void Lifeline::accept_all(const std::string& password, Listener& listener) {
  peers_.resize(size_);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kConnectSeconds);
  for (int missing = size_ - 1; missing > 0;) {
    pollfd entry{listener.descriptor(), POLLIN, 0};
    const auto left = deadline - std::chrono::steady_clock::now();
    const auto left_ms = std::chrono::duration_cast<std::chrono::milliseconds>(left).count();
    if (left_ms <= 0 || poll(&entry, 1, static_cast<int>(left_ms)) == 0) {
      const auto absent = std::find_if(peers_.begin() + 1, peers_.end(),
                                       [](const Peer& peer) { return !peer.socket; });
      failure("rank {} did not reach rank 0 ({}) within {} s", absent - peers_.begin(), host_name(),
              kConnectSeconds);
    }
    Socket client = listener.accept();
    if (!client) continue;
    const auto hello = client.receive(1000);
    if (!hello || hello->type != kHello || !hello->text.starts_with(password + " ")) continue;
    std::istringstream words(hello->text.substr(password.size() + 1));
    int rank = -1;
    std::string node;
    words >> rank >> node;
    if (rank < 1 || rank >= size_ || !client.send(kHello, password)) continue;
    if (!peers_[rank].socket) --missing;
    peers_[rank] = {.socket = std::move(client), .node = node};
  }
}

// Other ranks: tries the addresses of rank 0 until one answers with the password.
void Lifeline::connect_to_first(const std::string& address, bool one_node) {
  std::istringstream stream(address);
  std::string password, host, node;
  int port = 0;
  stream >> password >> host >> node >> port;
  std::vector<std::string> interfaces;
  if (one_node || host == host_name()) interfaces.emplace_back("127.0.0.1");
  for (std::string interface; stream >> interface;) interfaces.push_back(interface);
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(kConnectSeconds);
  while (std::chrono::steady_clock::now() < deadline) {
    for (const std::string& interface : interfaces) {
      Socket socket = connect_to(interface, port, 3000);
      if (!socket || !socket.send(kHello, fmt::format("{} {} {}", password, rank_, node_name())))
        continue;
      const auto answer = socket.receive(10'000);
      if (!answer || answer->type != kHello || answer->text != password) continue;
      peers_.resize(1);
      peers_[0] = {.socket = std::move(socket), .node = node};
      return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
  }
  failure("rank {} on {} cannot reach rank 0 on {} (tried {})", rank_, host_name(), host,
          address.substr(address.find(' ') + 1));
}

void Lifeline::set_limits(double silence_s, double call_s) {
  silence_s_ = silence_s;
  call_s_ = call_s;
}

void Lifeline::say(const std::string& text) {
  if (rank_ == 0)
    callbacks_.on_message(0, text);
  else
    send_to_first(kSay, text);
}

void Lifeline::send_to_first(char type, const std::string& text) {
  const std::lock_guard lock(send_mutex_);
  peers_[0].socket.send(type, text);
}

void Lifeline::fail(RankFailure failure) {
  failure.text = fmt::format("rank {}: {}", rank_, failure.text);
  if (rank_ == 0) failure = with_nodes(std::move(failure));
  if (size_ == 1) return callbacks_.on_failure(failure, {});
  {
    const std::lock_guard lock(mutex_);
    if (state_ == State::Over) return;
    own_failure_ = failure;
  }
  if (rank_ != 0) send_to_first(kFail, to_message(failure));
  set_state(State::Failing);
  wait_until_over(kReportSeconds);
}

void Lifeline::goodbye() {
  if (size_ == 1) return;
  if (rank_ != 0) send_to_first(kGoodbye, "");
  set_state(State::Leaving);
  wait_until_over(0);
}

std::optional<RankFailure> Lifeline::own_failure() {
  const std::lock_guard lock(mutex_);
  return own_failure_;
}

void Lifeline::set_state(State state) {
  {
    const std::lock_guard lock(mutex_);
    if (state_ != State::Over) state_ = state;
    changed_.notify_all();
  }
  (void)!write(wake_write_, "", 1);
}

void Lifeline::wait_until_over(int seconds) {
  std::unique_lock lock(mutex_);
  const auto over = [this] { return state_ == State::Over; };
  if (seconds == 0)
    changed_.wait(lock, over);
  else
    changed_.wait_for(lock, std::chrono::seconds(seconds), over);
}

void Lifeline::watch() {
  if (rank_ == 0)
    watch_peers();
  else
    watch_first();
  // So that fail() and goodbye() do not wait for this thread.
  set_state(State::Over);
}

// Returns the indices of the peers with input. Also returns when the state has changed.
std::vector<int> Lifeline::wait_for_input(Clock::duration timeout) {
  std::vector<pollfd> entries{{wake_read_, POLLIN, 0}};
  std::vector<int> ranks{-1}, input;
  for (std::size_t i = 0; i < peers_.size(); ++i) {
    if (!peers_[i].socket) continue;
    entries.push_back({peers_[i].socket.descriptor(), POLLIN, 0});
    ranks.push_back(static_cast<int>(i));
  }
  const auto wait = std::chrono::ceil<std::chrono::milliseconds>(timeout).count();
  (void)poll(entries.data(), entries.size(), static_cast<int>(std::max<std::int64_t>(wait, 0)));
  char bytes[64];
  while (::read(wake_read_, bytes, sizeof bytes) > 0) {
  }
  for (std::size_t i = 1; i < entries.size(); ++i)
    if (entries[i].revents != 0) input.push_back(ranks[i]);
  return input;
}

Lifeline::Clock::duration Lifeline::beat() {
  const auto now = Clock::now();
  if (now < next_beat_) return next_beat_ - now;
  const double waiting = callbacks_.waiting_s ? callbacks_.waiting_s() : 0;
  const std::lock_guard lock(send_mutex_);
  for (Peer& peer : peers_)
    if (peer.socket) peer.socket.send(kBeat, fmt::format("{}", waiting));
  const auto interval =
      std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(beat_s_));
  next_beat_ = now + interval;
  return interval;
}

double Lifeline::silence_limit_s() const {
  return callbacks_.has_begun && !callbacks_.has_begun() ? 3 * silence_s_ : silence_s_.load();
}

int Lifeline::silent_peer() {
  const auto now = Clock::now();
  // This process was stopped itself, perhaps with all others.
  if (now - last_round_ > std::chrono::duration<double>(3 * beat_s_))
    for (Peer& peer : peers_) peer.heard = now;
  last_round_ = now;
  const double limit_s = silence_limit_s();
  if (limit_s <= 0) return -1;
  for (std::size_t i = 0; i < peers_.size(); ++i)
    if (peers_[i].socket && now - peers_[i].heard > std::chrono::duration<double>(limit_s))
      return static_cast<int>(i);
  return -1;
}

RankFailure Lifeline::lost(int rank, FailureKind kind, const std::string& why) const {
  const std::string& node = peers_[rank_ == 0 ? static_cast<std::size_t>(rank) : 0].node;
  return {.kind = kind,
          .culprits = {{rank, node}},
          .text = fmt::format("rank {} was lost{}: {}", rank,
                              one_node_ ? "" : fmt::format(" on node {}", node), why)};
}

// ---- rank 0

RankFailure Lifeline::given_up_by(int rank, const std::string& silence_s) const {
  return {.kind = FailureKind::Silent,
          .culprits = {{0, node_name()}},
          .text = fmt::format(
              "rank 0 was stopped{}: rank {} had no sign of life from it for {} s, and "
              "ended",
              one_node_ ? "" : fmt::format(" on node {}", node_name()), rank, silence_s)};
}

std::string Lifeline::node_of(int rank) const {
  if (rank == 0) return node_name();
  return rank > 0 && rank < static_cast<int>(peers_.size()) ? peers_[rank].node : "";
}

RankFailure Lifeline::with_nodes(RankFailure failure) const {
  for (Culprit& culprit : failure.culprits)
    if (culprit.node.empty()) culprit.node = node_of(culprit.rank);
  return failure;
}

std::optional<RankFailure> Lifeline::read_peer(int rank) {
  Peer& peer = peers_[rank];
  const bool alive = peer.socket.read();
  peer.heard = Clock::now();
  while (const auto frame = peer.socket.next()) {
    if (frame->type == kFail) return with_nodes(failure_from_message(frame->text));
    if (frame->type == kGaveUp) return given_up_by(rank, frame->text);
    if (frame->type == kBeat) peer.waiting_s = std::atof(frame->text.c_str());
    if (frame->type == kPositions && frame->text.empty()) peer.answered = true;  // its last one
    if (frame->type == kPositions && !frame->text.empty()) answers_.push_back(frame->text);
    if (frame->type == kSay) callbacks_.on_message(rank, frame->text);
    if (frame->type == kGoodbye) peer.done = true;
  }
  if (alive) return {};
  peer.socket.close();
  if (peer.done) return {};
  return lost(rank, FailureKind::Lost, kKilled);
}

// Of several failures, a rank that is gone counts last: the launcher ends all ranks after the first
// failure, and they may be gone before this rank, which was stopped, reads why.
std::optional<RankFailure> Lifeline::read_peers(const std::vector<int>& input) {
  std::optional<RankFailure> first;
  for (const int rank : input) {
    std::optional<RankFailure> failure = read_peer(rank);
    if (failure && (!first || first->kind == FailureKind::Lost)) first = std::move(failure);
  }
  return first;
}

void Lifeline::ask_positions(int lost) {
  answers_.clear();
  if (!callbacks_.positions) return;
  for (const std::string& own : callbacks_.positions(lost)) answers_.push_back(own);
  std::vector<Peer*> asked;
  for (std::size_t i = 1; i < peers_.size(); ++i) {
    Peer& peer = peers_[i];
    peer.answered = false;
    if (peer.socket && static_cast<int>(i) != lost &&
        peer.socket.send(kAskPositions, std::to_string(lost)))
      asked.push_back(&peer);
  }
  const auto missing = [](const Peer* peer) { return peer->socket && !peer->answered; };
  const auto deadline = Clock::now() + kAskTime;
  while (std::ranges::any_of(asked, missing) && Clock::now() < deadline)
    for (const int rank : wait_for_input(deadline - Clock::now())) (void)read_peer(rank);
}

std::optional<RankFailure> Lifeline::find_stuck() {
  if (call_s_ <= 0) return {};
  double longest = callbacks_.waiting_s ? callbacks_.waiting_s() : 0;
  int waiting = 0;
  for (std::size_t i = 1; i < peers_.size(); ++i)
    if (peers_[i].waiting_s > longest) {
      longest = peers_[i].waiting_s;
      waiting = static_cast<int>(i);
    }
  if (longest <= call_s_) return {};
  ask_positions(-1);
  RankFailure failure = diagnose(parse_positions(answers_));
  if (failure.text.empty()) failure.text = fmt::format("rank {} waits for a call", waiting);
  failure.text =
      fmt::format("no progress for {:.0f} s (comm.timeout_s): {}", longest, failure.text);
  return failure;
}

void Lifeline::watch_peers() {
  for (;;) {
    const std::vector<int> input = wait_for_input(beat());
    State state;
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
      state = state_;
    }
    if (state == State::Failing) return end_job(*own_failure(), From::This);
    std::optional<RankFailure> failure = read_peers(input);
    if (!failure)
      if (const int rank = silent_peer(); rank >= 0)
        failure = lost(rank, FailureKind::Silent,
                       fmt::format("no sign of life for {:.0f} s (stopped, or its node is "
                                   "down)",
                                   silence_limit_s()));
    if (!failure) failure = find_stuck();
    if (failure) return end_job(std::move(*failure), From::Others);
    const bool all_done =
        std::all_of(peers_.begin() + 1, peers_.end(), [](const Peer& peer) { return peer.done; });
    if (state == State::Leaving && all_done) {
      for (Peer& peer : peers_)
        if (peer.socket) peer.socket.send(kEnd, "");
      return;
    }
    if (size_ > kManyRanks) std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
}

// Reports a failure, notifies the other ranks, and ends this process.
void Lifeline::end_job(RankFailure failure, From from) {
  // Not if rank 0 itself was given up: the others are gone, and the launcher will kill it soon.
  if (failure.rank() != 0 &&
      (failure.kind == FailureKind::Lost || failure.kind == FailureKind::Silent)) {
    ask_positions(failure.rank());
    if (const std::string found = diagnose(parse_positions(answers_)).text; !found.empty())
      failure.text += "; " + found;
  }
  callbacks_.on_failure(failure, answers_);
  for (Peer& peer : peers_)
    if (peer.socket) peer.socket.send(kFail, to_message(failure));
  set_state(State::Over);
  if (from == From::Others) callbacks_.end(failure);
}

// ---- the other ranks

void Lifeline::watch_first() {
  Peer& first = peers_[0];
  for (;;) {
    const bool input = !wait_for_input(beat()).empty();
    {
      const std::lock_guard lock(mutex_);
      if (stop_) return;
    }
    std::optional<RankFailure> failure;
    if (input) {
      const bool alive = first.socket.read();
      first.heard = Clock::now();
      for (auto frame = first.socket.next(); frame && !failure; frame = first.socket.next()) {
        if (frame->type == kEnd) return;
        if (frame->type == kFail) failure = failure_from_message(frame->text);
        if (frame->type != kAskPositions || !callbacks_.positions) continue;
        for (const std::string& text : callbacks_.positions(std::atoi(frame->text.c_str())))
          send_to_first(kPositions, text);
        send_to_first(kPositions, "");
      }
      if (!failure && !alive) failure = lost(0, FailureKind::Lost, kKilled);
    }
    if (!failure && silent_peer() >= 0) {
      const std::string silence_s = fmt::format("{:.0f}", silence_limit_s());
      failure = lost(0, FailureKind::Silent, fmt::format("no sign of life for {} s", silence_s));
      send_to_first(kGaveUp, silence_s);
    }
    if (!failure) continue;
    set_state(State::Over);
    // A rank that called fail() exits with its own exit code.
    if (!own_failure()) callbacks_.end(*failure);
    return;
  }
}

}  // namespace kintsugi
