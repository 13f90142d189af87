#include "comm/roll_call.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <sstream>

#include "comm/exchange.h"
#include "core/error.h"

namespace kintsugi {
namespace {

constexpr char kAsk = 'A';
constexpr int kReceiveTimeoutMs = 1000;
constexpr std::size_t kMaxConnections = 256;  // a process may have 1,024 open files by default

}  // namespace

RollCall::RollCall(World& world, std::function<std::string()> answer)
    : answer_(std::move(answer)),
      listener_(world.local_size() == world.size()),
      password_(make_password()) {
  std::string endpoint = fmt::format("{} {} {}", password_, host_name(), listener_.port());
  for (const std::string& address : host_addresses()) endpoint += " " + address;
  const auto group = world.split("roll call", 0, world.rank());
  endpoints_ = gather_texts(*group, endpoint);
  thread_ = std::thread([this] { serve(); });
}

RollCall::~RollCall() {
  stop_ = true;
  thread_.join();
}

void RollCall::serve() {
  while (!stop_) {
    pollfd entry{listener_.descriptor(), POLLIN, 0};
    if (poll(&entry, 1, 100) <= 0) continue;
    Socket client = listener_.accept();
    if (!client) continue;
    const auto question = client.receive(kReceiveTimeoutMs);
    if (question && question->type == kAsk && question->text == password_)
      client.send(kAsk, answer_());
  }
}

RollCall::Peer RollCall::peer(int rank) const {
  std::istringstream stream(endpoints_.at(static_cast<std::size_t>(rank)));
  Peer peer;
  std::string host;
  stream >> peer.password >> host >> peer.port;
  if (host == host_name()) peer.addresses.emplace_back("127.0.0.1");
  for (std::string address; stream >> address;) peer.addresses.push_back(address);
  return peer;
}

namespace {

// A question in progress. The socket is closed when it is finished.
struct Question {
  std::size_t index = 0;  // in the list of ranks
  Socket socket;
  std::string password;
  std::chrono::steady_clock::time_point deadline;
  bool asked = false;

  short events() const { return asked ? POLLIN : POLLOUT; }
  // Call when one of events() has occurred.
  void advance(std::optional<std::string>& answer) {
    if (!asked) {
      asked = connected(socket) && socket.send(kAsk, password);
      if (!asked) socket.close();
      return;
    }
    const bool open = socket.read();
    const auto frame = socket.next();
    if (frame && frame->type == kAsk) answer = frame->text;
    if (frame || !open) socket.close();
  }
};

int milliseconds_until(std::chrono::steady_clock::time_point time) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      time - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count() + 1, 0));
}

// Waits until a socket is ready or a deadline has passed, and advances the questions.
void advance(std::vector<Question>& questions, std::vector<std::optional<std::string>>& answers) {
  std::vector<pollfd> entries;
  auto next = questions.front().deadline;
  for (const Question& question : questions) {
    entries.push_back({question.socket.descriptor(), question.events(), 0});
    next = std::min(next, question.deadline);
  }
  poll(entries.data(), entries.size(), milliseconds_until(next));
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    Question& question = questions[i];
    if (entries[i].revents != 0) question.advance(answers[question.index]);
    if (now >= question.deadline) question.socket.close();
  }
  std::erase_if(questions, [](const Question& question) { return !question.socket; });
}

}  // namespace

void RollCall::ask_round(const std::vector<int>& ranks, std::size_t address,
                         std::vector<std::optional<std::string>>& answers,
                         Clock::time_point deadline) const {
  std::vector<std::size_t> unanswered;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (!answers[i] && peer(ranks[i]).addresses.size() > address) unanswered.push_back(i);
  // Each batch of connections gets an equal part of the time, so that all ranks are asked.
  const auto batches =
      static_cast<Clock::rep>((unanswered.size() + kMaxConnections - 1) / kMaxConnections);
  const auto timeout = (deadline - Clock::now()) / std::max<Clock::rep>(batches, 1);
  std::vector<Question> questions;
  for (auto at = unanswered.begin(); at != unanswered.end() || !questions.empty();) {
    const auto now = Clock::now();
    if (now >= deadline) return;
    while (at != unanswered.end() && questions.size() < kMaxConnections) {
      const Peer to = peer(ranks[*at]);
      Question question{.index = *at++,
                        .socket = begin_connect(to.addresses[address], to.port),
                        .password = to.password,
                        .deadline = std::min(now + timeout, deadline)};
      if (question.socket) questions.push_back(std::move(question));
    }
    if (!questions.empty()) advance(questions, answers);
  }
}

std::vector<std::optional<std::string>> RollCall::ask(const std::vector<int>& ranks,
                                                      int timeout_ms) const {
  const auto begin = Clock::now();
  const auto total = std::chrono::milliseconds(timeout_ms);
  std::vector<std::optional<std::string>> answers(ranks.size());
  std::size_t addresses = 0;
  for (const int rank : ranks) addresses = std::max(addresses, peer(rank).addresses.size());
  for (std::size_t i = 0; i < addresses; ++i)
    ask_round(ranks, i, answers,
              begin + total * static_cast<int>(i + 1) / static_cast<int>(addresses));
  return answers;
}

namespace {

// "rank 3, rank 4 and 500 more".
struct RankList {
  static constexpr int kNamed = 8;
  std::string names = {};
  int count = 0;

  void add(const std::string& name) {
    if (count++ < kNamed) names += (names.empty() ? "" : ", ") + name;
  }
  std::string text() const {
    return count <= kNamed ? names : fmt::format("{} and {} more", names, count - kNamed);
  }
};

std::int64_t started_in(const std::vector<LaneCalls>& lanes, const std::string& id) {
  const auto lane = std::ranges::find_if(lanes, [&](const LaneCalls& one) { return one.id == id; });
  return lane == lanes.end() ? 0 : lane->started;
}

bool waits_itself(const std::vector<LaneCalls>& lanes) {
  return std::ranges::any_of(lanes,
                             [](const LaneCalls& lane) { return lane.finished < lane.started; });
}

}  // namespace

std::string to_text(const std::vector<LaneCalls>& lanes) {
  std::string text;
  for (const LaneCalls& lane : lanes)
    text += fmt::format("{}\t{}\t{}\n", lane.id, lane.started, lane.finished);
  return text;
}

std::vector<LaneCalls> lane_calls_of(const std::string& text) {
  std::vector<LaneCalls> lanes;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream fields(line);
    LaneCalls lane;
    if (std::getline(fields, lane.id, '\t') && fields >> lane.started >> lane.finished)
      lanes.push_back(std::move(lane));
  }
  return lanes;
}

RankFailure find_missing_ranks(const std::vector<int>& asked,
                               const std::vector<std::optional<std::string>>& answers,
                               const std::string& lane, std::int64_t number) {
  RankFailure missing;
  RankList silent, behind;
  // Without any answer, the network of this rank itself may be broken.
  const bool reachable =
      std::ranges::any_of(answers, [](const auto& one) { return one.has_value(); });
  for (std::size_t i = 0; i < asked.size(); ++i) {
    if (!answers[i]) {
      silent.add(fmt::format("rank {}", asked[i]));
      if (!reachable) continue;
      missing.culprits.push_back({.rank = asked[i]});
      if (missing.kind == FailureKind::Unknown) missing.kind = FailureKind::Silent;
      continue;
    }
    const std::vector<LaneCalls> lanes = lane_calls_of(*answers[i]);
    const std::int64_t started = started_in(lanes, lane);
    if (started >= number) continue;
    // A rank that waits too only passes the delay on: another one is the cause.
    const bool waits = waits_itself(lanes);
    behind.add(fmt::format("rank {} (after {} calls{})", asked[i], started,
                           waits ? "; it waits for another call" : ""));
    if (waits) continue;
    missing.culprits.push_back({.rank = asked[i]});
    missing.kind = FailureKind::Stuck;
  }
  if (silent.count == 0 && behind.count == 0)
    missing.text = "all its ranks have made that call: a GPU or the network hangs";
  else
    missing.text = (behind.count == 0 ? "" : "it was not called by " + behind.text()) +
                   (behind.count == 0 || silent.count == 0 ? "" : "; ") +
                   (silent.count == 0 ? "" : "no answer from " + silent.text());
  return missing;
}

}  // namespace kintsugi
