#include "comm/roll_call.h"

#include <poll.h>

#include <algorithm>
#include <random>
#include <sstream>

#include "comm/exchange.h"
#include "core/error.h"

namespace kintsugi {
namespace {

constexpr char kAsk = 'A';
constexpr int kPatienceMs = 1000;         // with a guest that says nothing
constexpr std::size_t kMostAtOnce = 256;  // sockets, of the 1,024 files that a process may have

// Strangers may knock at an open port; only ranks of this job know the word.
std::string make_password() {
  std::random_device random;
  std::string word;
  for (int i = 0; i < 4; ++i) word += fmt::format("{:08x}", random());
  return word;
}

}  // namespace

RollCall::RollCall(World& world, std::function<std::string()> answer)
    : answer_(std::move(answer)),
      listener_(world.local_size() == world.size()),
      password_(make_password()) {
  std::string place = fmt::format("{} {} {}", password_, host_name(), listener_.port());
  for (const std::string& address : host_addresses()) place += " " + address;
  const auto group = world.split("roll call", 0, world.rank());
  places_ = gather_texts(*group, place);
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
    Socket guest = listener_.accept();
    if (!guest) continue;
    const auto question = guest.receive(kPatienceMs);
    if (question && question->type == kAsk && question->text == password_)
      guest.send(kAsk, answer_());
  }
}

RollCall::Peer RollCall::peer(int rank) const {
  std::istringstream stream(places_.at(static_cast<std::size_t>(rank)));
  Peer peer;
  std::string host;
  stream >> peer.password >> host >> peer.port;
  if (host == host_name()) peer.addresses.emplace_back("127.0.0.1");
  for (std::string address; stream >> address;) peer.addresses.push_back(address);
  return peer;
}

namespace {

// A question under way. It is over when the socket is closed.
struct Question {
  std::size_t place = 0;  // of the rank, among those that are asked
  Socket socket;
  std::string password;
  std::chrono::steady_clock::time_point deadline;
  bool asked = false;

  short awaited() const { return asked ? POLLIN : POLLOUT; }
  // When the socket has what was awaited.
  void advance(std::optional<std::string>& answer) {
    if (!asked) {
      asked = connected(socket) && socket.send(kAsk, password);
      if (!asked) socket.close();
      return;
    }
    const bool there = socket.read();
    const auto frame = socket.next();
    if (frame && frame->type == kAsk) answer = frame->text;
    if (frame || !there) socket.close();
  }
};

int milliseconds_until(std::chrono::steady_clock::time_point time) {
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
      time - std::chrono::steady_clock::now());
  return static_cast<int>(std::max<std::int64_t>(left.count() + 1, 0));
}

// Waits until a question has news or its time is over, and deals with it.
void advance(std::vector<Question>& questions, std::vector<std::optional<std::string>>& answers) {
  std::vector<pollfd> entries;
  auto next = questions.front().deadline;
  for (const Question& question : questions) {
    entries.push_back({question.socket.descriptor(), question.awaited(), 0});
    next = std::min(next, question.deadline);
  }
  poll(entries.data(), entries.size(), milliseconds_until(next));
  const auto now = std::chrono::steady_clock::now();
  for (std::size_t i = 0; i < questions.size(); ++i) {
    Question& question = questions[i];
    if (entries[i].revents != 0) question.advance(answers[question.place]);
    if (now >= question.deadline) question.socket.close();
  }
  std::erase_if(questions, [](const Question& question) { return !question.socket; });
}

}  // namespace

void RollCall::ask_round(const std::vector<int>& ranks, std::size_t address,
                         std::vector<std::optional<std::string>>& answers,
                         Clock::time_point deadline) const {
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < ranks.size(); ++i)
    if (!answers[i] && peer(ranks[i]).addresses.size() > address) places.push_back(i);
  // Those that do not answer make room for the next in time for all to be asked.
  const auto waves = static_cast<Clock::rep>((places.size() + kMostAtOnce - 1) / kMostAtOnce);
  const auto patience = (deadline - Clock::now()) / std::max<Clock::rep>(waves, 1);
  std::vector<Question> questions;
  for (auto at = places.begin(); at != places.end() || !questions.empty();) {
    const auto now = Clock::now();
    if (now >= deadline) return;
    while (at != places.end() && questions.size() < kMostAtOnce) {
      const Peer whom = peer(ranks[*at]);
      Question question{.place = *at++,
                        .socket = begin_connect(whom.addresses[address], whom.port),
                        .password = whom.password,
                        .deadline = std::min(now + patience, deadline)};
      if (question.socket) questions.push_back(std::move(question));
    }
    if (!questions.empty()) advance(questions, answers);
  }
}

std::vector<std::optional<std::string>> RollCall::ask(const std::vector<int>& ranks,
                                                      int timeout_ms) const {
  const auto begin = Clock::now();
  const auto whole = std::chrono::milliseconds(timeout_ms);
  std::vector<std::optional<std::string>> answers(ranks.size());
  std::size_t addresses = 0;
  for (const int rank : ranks) addresses = std::max(addresses, peer(rank).addresses.size());
  for (std::size_t i = 0; i < addresses; ++i)
    ask_round(ranks, i, answers,
              begin + whole * static_cast<int>(i + 1) / static_cast<int>(addresses));
  return answers;
}

}  // namespace kintsugi
