#include "comm/roll_call.h"

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

}  // namespace kintsugi
